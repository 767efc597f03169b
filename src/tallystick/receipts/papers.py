"""The papers of one job: who asked, who was given it, who the worker is (steps 3 and 4).

The same checks hold a receipt that is about to be signed and one that is verified. Errors name the
field and hold public values only: ids, commitments and counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from tallystick.attest.keys import PublicKey
from tallystick.canonical.json import shorten
from tallystick.contracts.assignment import (
    SignedAssignment,
    SignedRequest,
    WorkerCredential,
    assignment_signing_digest,
    credential_id,
    request_signing_digest,
    signed_assignment_id,
    signed_request_id,
)
from tallystick.contracts.commitments import owner_commitment, request_commitment
from tallystick.contracts.compute_receipt import (
    ComputeReceipt,
    EvidenceLevel,
    JobClass,
    TraceEvidence,
)
from tallystick.contracts.digests import request_body
from tallystick.contracts.request import InferenceRun
from tallystick.errors import EvidenceError, InputError

_RECEIPT: Final = "compute receipt"


@dataclass(frozen=True, slots=True, repr=False)
class JobPapers:
    """What binds a receipt to a request, a slot, a worker and an owner. Private; shows nothing.

    ``scheduler_key`` and ``owner_key`` are raw Ed25519 public keys.
    """

    scheduler_key: bytes
    request: SignedRequest
    assignment: SignedAssignment
    credential: WorkerCredential
    owner_key: bytes
    owner_salt: bytes
    request_nonce: bytes

    def __repr__(self) -> str:
        return "<JobPapers>"


def require_same(what: str, expected: object, found: object) -> None:
    """Raise EvidenceError naming ``what`` unless both values, which must be public, are equal."""
    if expected != found:
        raise EvidenceError(f"{what} does not hold", expected=_text(expected), found=_text(found))


def public_key(raw: bytes, whose: str) -> PublicKey:
    """Return the key of 32 bytes. Raises EvidenceError for a weak or invalid one."""
    try:
        return PublicKey.from_raw(raw)
    except InputError as error:
        raise EvidenceError(
            f"the {whose} is a weak or invalid Ed25519 key",
            expected=error.expected,
            hint=error.hint,
        ) from None


def check_assignment(receipt: ComputeReceipt, papers: JobPapers, run: InferenceRun) -> None:
    """3 assignment binding and policy. Raises EvidenceError naming the field.

    ``run`` is what was asked for, as the opening holds it.
    """
    _check_scheduler(papers)
    _check_request(receipt, papers, run)
    _check_slot(receipt, papers, run)
    _check_policy(receipt, papers, run)
    _check_windows(receipt, papers)


def check_worker(receipt: ComputeReceipt, papers: JobPapers) -> PublicKey:
    """4 owner and worker: return the key that has to have signed. Raises EvidenceError."""
    credential = papers.credential
    require_same(
        f"{_RECEIPT}: worker_credential_id",
        credential_id(credential),
        receipt.worker_credential_id,
    )
    require_same("credential.network_id", receipt.network_id, credential.network_id)
    require_same(
        f"{_RECEIPT}: owner_commitment", credential.owner_commitment, receipt.owner_commitment
    )
    public_key(papers.owner_key, "owner's key")
    if owner_commitment(papers.owner_salt, papers.owner_key) != receipt.owner_commitment:
        raise EvidenceError(
            f"{_RECEIPT}: owner_commitment is not opened by the owner's key and salt",
            expected=receipt.owner_commitment.hex(),
        )
    require_same("assignment.worker_key", credential.worker_key, papers.assignment.body.worker_key)
    _check_window("credential", credential.issued_epoch, credential.expires_epoch, receipt)
    return public_key(credential.worker_key, "worker's key")


def required_level(run: InferenceRun) -> EvidenceLevel:
    """Return the evidence level of the parts that a request asks for."""
    for part, level in (
        ("states", EvidenceLevel.STATE_COMMITTED),
        ("gemm", EvidenceLevel.GEMM_TRACED),
        ("graph", EvidenceLevel.GRAPH),
    ):
        if part in run.evidence:
            return level
    return EvidenceLevel.NONE


def _check_scheduler(papers: JobPapers) -> None:
    scheduler = public_key(papers.scheduler_key, "scheduler's key")
    for what, signature, message in (
        ("request", papers.request.signature, request_signing_digest(papers.request.body)),
        (
            "assignment",
            papers.assignment.signature,
            assignment_signing_digest(papers.assignment.body),
        ),
    ):
        try:
            scheduler.verify(signature, message)
        except EvidenceError as error:
            raise EvidenceError.of(error, f"the scheduler did not sign the {what}") from None


def _check_request(receipt: ComputeReceipt, papers: JobPapers, run: InferenceRun) -> None:
    request, assignment = papers.request.body, papers.assignment.body
    commitment = request_commitment(papers.request_nonce, request_body(run))
    require_same(f"{_RECEIPT}: request_commitment", commitment, receipt.request_commitment)
    for name in ("network_id", "scheduler_job_id", "request_commitment", "job_class"):
        for what, document in (("request", request), ("assignment", assignment)):
            require_same(f"{what}.{name}", getattr(receipt, name), getattr(document, name))
    require_same("request.model_profile_id", receipt.model_profile_id, request.model_profile_id)
    require_same(
        "assignment.signed_request_id",
        signed_request_id(papers.request),
        assignment.signed_request_id,
    )
    require_same(
        f"{_RECEIPT}: signed_assignment_id",
        signed_assignment_id(papers.assignment),
        receipt.signed_assignment_id,
    )
    if run.network_id is not None:
        require_same(f"{_RECEIPT}: network_id", run.network_id, receipt.network_id.hex())


def _check_slot(receipt: ComputeReceipt, papers: JobPapers, run: InferenceRun) -> None:
    require_same(
        "assignment.replica_slot", receipt.replica_slot, papers.assignment.body.replica_slot
    )
    require_same("request.replicas", receipt.job_class.slots, papers.request.body.replicas)
    if run.replica_slot is not None:
        require_same(f"{_RECEIPT}: replica_slot", run.replica_slot, receipt.replica_slot)
    external = receipt.job_class is JobClass.REPLICA_EXTERNAL
    if external and papers.scheduler_key == papers.credential.worker_key:
        raise EvidenceError(
            f"{_RECEIPT}: job_class says that another ordered the job",
            expected="a scheduler that is not the worker, or replica_self_ordered",
            found="the worker's own key as scheduler",
        )


def _check_policy(receipt: ComputeReceipt, papers: JobPapers, run: InferenceRun) -> None:
    request, assignment = papers.request.body, papers.assignment.body
    level = receipt.evidence_level
    require_same("request.required_evidence_level", level, request.required_evidence_level)
    require_same("assignment.required_evidence_level", level, assignment.required_evidence_level)
    require_same(f"{_RECEIPT}: evidence_level", required_level(run), level)
    asked = "gemm" in run.evidence
    if (receipt.trace_evidence is not TraceEvidence.ABSENT) is not asked:
        raise EvidenceError(
            f"{_RECEIPT}: trace_evidence is not what was asked for",
            expected="a trace" if asked else "absent",
            found=receipt.trace_evidence.name.lower(),
        )
    for name, most, found in (
        ("prefill_tokens", request.max_prefill_tokens, receipt.prefill_tokens),
        ("decode_tokens", request.max_decode_tokens, receipt.decode_tokens),
        ("decode_tokens", run.max_tokens, receipt.decode_tokens),
    ):
        if found > most:
            raise EvidenceError(
                f"{_RECEIPT}: {name} is more than was asked for",
                expected=f"at most {most}",
                found=str(found),
            )


def _check_windows(receipt: ComputeReceipt, papers: JobPapers) -> None:
    request, assignment = papers.request.body, papers.assignment.body
    _check_window("request", request.issued_epoch, request.expires_epoch, receipt)
    _check_window("assignment", assignment.issued_epoch, assignment.expires_epoch, receipt)
    if assignment.issued_epoch < request.issued_epoch:
        raise EvidenceError(
            "assignment.issued_epoch is before its request",
            expected=f"at least {request.issued_epoch}",
            found=str(assignment.issued_epoch),
        )
    if assignment.expires_epoch > request.expires_epoch:
        raise EvidenceError(
            "assignment.expires_epoch is after its request",
            expected=f"at most {request.expires_epoch}",
            found=str(assignment.expires_epoch),
        )


def _check_window(what: str, issued: int, expires: int, receipt: ComputeReceipt) -> None:
    if not issued <= receipt.issued_epoch < expires:
        raise EvidenceError(
            f"the {what} was not valid when the receipt was issued",
            expected=f"from epoch {issued}, before epoch {expires}",
            found=f"epoch {receipt.issued_epoch}",
        )


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, IntEnum):
        return value.name.lower()
    return shorten(value) if isinstance(value, str) else str(value)
