"""The papers of a job that a worker gives itself (docs/spec/compute-receipt.md#self-local-jobs).

A run of one machine has no scheduler but itself: a scheduler key, job id, nonces and an owner are
made for it, so that the receipt has the form that any verifier knows and two receipts of one
machine share nothing. Pure: whoever calls draws the randomness.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tallystick.attest.keys import SigningKey
from tallystick.contracts.assignment import WorkerCredential
from tallystick.contracts.commitments import SALT_BYTES, local_network_id
from tallystick.contracts.compute_receipt import JobClass, epoch_of
from tallystick.contracts.request import InferenceRun
from tallystick.errors import InputError
from tallystick.receipts.papers import JobPapers
from tallystick.receipts.scheduling import JobTerms, new_credential, order_job


@dataclass(frozen=True, slots=True, repr=False)
class JobSecrets:
    """32 fresh random bytes each; they show nothing of themselves.

    ``scheduler_job_id`` is public. Raises InputError for another length, for zeros and for two
    that are equal: then they did not come from a random source.
    """

    scheduler_seed: bytes
    owner_seed: bytes
    owner_salt: bytes
    scheduler_job_id: bytes
    request_nonce: bytes
    prompt_nonce: bytes
    output_nonce: bytes

    def __post_init__(self) -> None:
        """Refuse what cannot be fresh randomness."""
        values = [getattr(self, name) for name in _SECRETS]
        if any(len(value) != SALT_BYTES or not any(value) for value in values):
            raise InputError("not random bytes", expected=f"{SALT_BYTES} bytes, not all zero")
        if len({*values}) != len(values):
            raise InputError("two random values are equal", expected="one draw for each")

    @classmethod
    def of(cls, random: bytes) -> JobSecrets:
        """Return the secrets in ``random``, ``JOB_SECRETS_BYTES`` bytes from the system's source.

        Raises InputError.
        """
        if len(random) != JOB_SECRETS_BYTES:
            raise InputError(
                "not enough random bytes",
                expected=f"{JOB_SECRETS_BYTES} bytes",
                found=f"{len(random)} bytes",
            )
        cut = range(0, JOB_SECRETS_BYTES, SALT_BYTES)
        return cls(*(random[at : at + SALT_BYTES] for at in cut))

    def __repr__(self) -> str:
        return "<JobSecrets>"


_SECRETS: Final = (
    "scheduler_seed",
    "owner_seed",
    "owner_salt",
    "scheduler_job_id",
    "request_nonce",
    "prompt_nonce",
    "output_nonce",
)
JOB_SECRETS_BYTES: Final = len(_SECRETS) * SALT_BYTES


def self_local_credential(
    secrets: JobSecrets, worker_key: bytes, timestamp: int
) -> WorkerCredential:
    """Return the credential of a self-scheduled run, for salts that need its id early.

    ``worker_key`` is the raw public key that signs the receipt, ``timestamp`` in milliseconds.
    """
    owner = SigningKey.from_seed(secrets.owner_seed).public.raw
    return new_credential(
        local_network_id(), worker_key, owner, secrets.owner_salt, epoch_of(timestamp)
    )


def self_local_papers(
    secrets: JobSecrets,
    credential: WorkerCredential,
    run: InferenceRun,
    *,
    model_profile_id: bytes,
    max_prefill_tokens: int,
) -> JobPapers:
    """Return request and assignment, signed by a scheduler of this run only, with the credential.

    The windows are those of the credential: a run may cross an epoch between its papers and its
    receipt. ``max_prefill_tokens`` is what the shape profile allows. Raises InputError for numbers
    that do not fit.
    """
    terms = JobTerms(
        network_id=credential.network_id,
        scheduler_job_id=secrets.scheduler_job_id,
        job_class=JobClass.SELF_LOCAL,
        model_profile_id=model_profile_id,
        max_prefill_tokens=max_prefill_tokens,
        issued_epoch=credential.issued_epoch,
        expires_epoch=credential.expires_epoch,
    )
    scheduler = SigningKey.from_seed(secrets.scheduler_seed)
    job = order_job(run, terms, scheduler, (credential.worker_key,), secrets.request_nonce)
    return JobPapers(
        scheduler_key=job.scheduler_key,
        request=job.request,
        assignment=job.assignments[0],
        credential=credential,
        owner_key=SigningKey.from_seed(secrets.owner_seed).public.raw,
        owner_salt=secrets.owner_salt,
        request_nonce=secrets.request_nonce,
    )
