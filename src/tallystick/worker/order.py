"""Declaring a run, and ordering a job for several workers. Nothing is executed here."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tallystick.attest.keyfiles import commit_key, default_key, read_public_key
from tallystick.attest.keys import PublicKey, SigningKey
from tallystick.contracts.codec import encode_bytes
from tallystick.contracts.commitments import SALT_BYTES, local_network_id
from tallystick.contracts.compute_receipt import LIFETIME_EPOCHS, JobClass, epoch_of
from tallystick.contracts.layout import PRIVATE_MODE
from tallystick.contracts.request import InferenceRun
from tallystick.errors import InputError, UnavailableError, UsageError
from tallystick.execution.launch import OnProgress, no_progress
from tallystick.models.manifest import model_profile, pinned_facts
from tallystick.models.registry import resolve
from tallystick.receipts.scheduling import JobTerms, order_job, tickets
from tallystick.sandbox.profiles import shipped_profile
from tallystick.store.artifacts import OutputPlace, prepare
from tallystick.store.files import exists, opened_directory, remove, write_new
from tallystick.store.home import home as default_home
from tallystick.store.home import unavailable
from tallystick.worker.keys import SignerChoice, existing_key, require_apart
from tallystick.worker.papers import now_ms
from tallystick.worker.request import RunOptions, check_options, declare

_MAX_WORKERS = 2


@dataclass(frozen=True, slots=True)
class PlacedOrder:
    """A job that was ordered: its class, its id (64 hex digits), its tickets by slot.

    ``signer`` is the id of the key that signed it; ``default_key_created`` says that this key was
    made on the occasion.
    """

    job_class: str
    scheduler_job_id: str
    tickets: tuple[Path, ...]
    signer: str
    default_key_created: bool


def place_order(
    model: str,
    options: RunOptions,
    *,
    workers: tuple[Path, ...],
    output_dir: Path,
    network_id: bytes | None = None,
    signer: SignerChoice | None = None,
    home: Path | None = None,
    on_progress: OnProgress = no_progress,
) -> PlacedOrder:
    """Sign a job for the ``workers`` (public key files) and write their tickets (0600).

    One worker makes a solo job, two make replicas: of a job that its own scheduler executes too
    when one of them is the signing key, else of external workers. ``network_id`` is the network
    that the job is of, None the local one. Raises UsageError, InputError,
    IncomparableError for a model without compute units, or UnavailableError.
    """
    check_options(options)
    sandbox = shipped_profile(options.sandbox)
    keys = tuple(read_public_key(path) for path in workers)
    if not 1 <= len(keys) <= _MAX_WORKERS or len({*keys}) != len(keys):
        raise UsageError("a job has one worker or two different ones", found=f"{len(keys)} keys")
    where = home or default_home()
    require_apart(where, output_dir)
    with prepare(output_dir) as place:
        chosen = resolve(model, where, on_progress, sandbox)
        profile = model_profile(pinned_facts(chosen))
        scheduler, created = _scheduler(signer or SignerChoice(), where)
        run = declare(options, chosen.digest, chosen.facts, commit_key(where), sandbox)
        issued = epoch_of(now_ms())
        terms = JobTerms(
            network_id=local_network_id() if network_id is None else network_id,
            scheduler_job_id=os.urandom(SALT_BYTES),
            job_class=_job_class(scheduler, keys),
            model_profile_id=profile.model_profile_id,
            max_prefill_tokens=profile.native_context_tokens,
            issued_epoch=issued,
            expires_epoch=issued + LIFETIME_EPOCHS,
        )
        job = order_job(
            run, terms, scheduler, tuple(key.raw for key in keys), os.urandom(SALT_BYTES)
        )
        paths = write_tickets(place, tuple(encode_bytes(ticket) for ticket in tickets(run, job)))
    return PlacedOrder(
        terms.job_class.name.lower(),
        terms.scheduler_job_id.hex(),
        paths,
        signer=scheduler.public.key_id,
        default_key_created=created,
    )


def declare_run(
    model: str,
    options: RunOptions,
    *,
    output: Path,
    home: Path | None = None,
    on_progress: OnProgress = no_progress,
) -> InferenceRun:
    """Declare a run of ``model`` and write it to the new file ``output`` (0600), for a queue.

    The file is private: it holds the prompt and the blind. Raises UsageError, InputError also when
    ``output`` exists, UnavailableError.
    """
    check_options(options)
    sandbox = shipped_profile(options.sandbox)
    where = home or default_home()
    chosen = resolve(model, where, on_progress, sandbox)
    run = declare(options, chosen.digest, chosen.facts, commit_key(where), sandbox)
    try:
        with opened_directory(output.parent) as descriptor:
            if exists(descriptor, output.name):
                raise InputError(f"{output} exists already", hint="nothing is ever overwritten")
            write_new(descriptor, output.name, encode_bytes(run), PRIVATE_MODE)
    except OSError as error:
        raise unavailable(output, error) from error
    return run


def _scheduler(choice: SignerChoice, home: Path) -> tuple[SigningKey, bool]:
    known = existing_key(choice, home)
    return default_key(home) if known is None else (known, False)


def _job_class(scheduler: SigningKey, workers: tuple[PublicKey, ...]) -> JobClass:
    if len(workers) == 1:
        return JobClass.SOLO_UNPAID
    own = scheduler.public in workers
    return JobClass.REPLICA_SELF_ORDERED if own else JobClass.REPLICA_EXTERNAL


def write_tickets(place: OutputPlace, documents: tuple[bytes, ...]) -> tuple[Path, ...]:
    """Write the tickets of a job, durably: all, or none, as one alone is half a job.

    ``documents`` has their bytes by slot. Raises UnavailableError.
    """
    paths = tuple(place.directory / f"slot-{slot}.ticket" for slot in range(len(documents)))
    try:
        with opened_directory(place.directory) as descriptor:
            if os.listdir(descriptor):
                raise UnavailableError(
                    f"something else was written into {place.directory} meanwhile"
                )
            try:
                for path, data in zip(paths, documents, strict=True):
                    write_new(descriptor, path.name, data, PRIVATE_MODE)
                os.fsync(descriptor)
                place.keep()
            except BaseException:
                for path in paths:
                    remove(descriptor, path.name)
                raise
    except OSError as error:
        raise unavailable(place.directory, error) from error
    return paths
