"""ComputeReceiptV1: 30 fields, signed over their bytes (docs/spec/compute-receipt.md).

Digests are raw 32 bytes here. The file ``<id>.palw`` is the 606 bytes of the body and then the
64 bytes of the worker's signature.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Final

from tallystick.canonical.hashing import domain_hash
from tallystick.contracts.commitments import empty_gemm_root, no_trace_scheme
from tallystick.contracts.fixed import U8, U16, U32, U64, ZERO, FixedLayout, Hash
from tallystick.errors import EvidenceError, InputError

RECEIPT_VERSION: Final = 1
SIGNATURE_BYTES: Final = 64
EPOCH_MILLISECONDS: Final = 3_600_000
LIFETIME_EPOCHS: Final = 24
MAX_EVENTS: Final = 250_000  # of a schedule or a trace


class JobClass(IntEnum):
    """Who ordered the job, and how many workers execute it."""

    SELF_LOCAL = 0
    REPLICA_EXTERNAL = 1
    REPLICA_SELF_ORDERED = 2
    SOLO_UNPAID = 3

    @property
    def slots(self) -> int:
        """Number of replica slots of a job of this class."""
        return 2 if self in (JobClass.REPLICA_EXTERNAL, JobClass.REPLICA_SELF_ORDERED) else 1


class EvidenceLevel(IntEnum):
    """What was committed about the computation."""

    NONE = 0
    GRAPH = 1
    GEMM_TRACED = 2
    STATE_COMMITTED = 3


class TraceEvidence(IntEnum):
    """Where the trace of matrix products comes from.

    Only ABSENT and GRAPH_FALLBACK are made or accepted here: nothing here binds a trace to
    kernels, so the others can be decoded but never hold.
    """

    ABSENT = 0
    GRAPH_FALLBACK = 1
    METAL_KERNEL = 2
    CUDA_KERNEL_LAUNCH = 3
    KERNEL_SKETCH = 4


@dataclass(frozen=True, slots=True)
class ComputeReceipt:
    """The signed body. ``timestamp`` is in milliseconds since the Unix epoch, epochs are hours.

    ``decode_tokens`` is the number of generated tokens, the end of generation included.
    """

    receipt_version: U16
    network_id: Hash
    request_commitment: Hash
    scheduler_job_id: Hash
    signed_assignment_id: Hash
    replica_slot: U8
    model_profile_id: Hash
    runtime_class_id: Hash
    runtime_manifest_hash: Hash
    shape_profile_id: Hash
    cu_ruleset_id: Hash
    trace_scheme_id: Hash
    trace_evidence: Annotated[TraceEvidence, "B"]
    operation_schedule_commitment: Hash
    schedule_event_count: U64
    canonical_compute_units: U64
    prefill_tokens: U32
    decode_tokens: U32
    output_commitment: Hash
    gemm_trace_root: Hash
    trace_event_count: U64
    owner_commitment: Hash
    worker_credential_id: Hash
    job_nullifier: Hash
    execution_nullifier: Hash
    job_class: Annotated[JobClass, "B"]
    evidence_level: Annotated[EvidenceLevel, "B"]
    timestamp: U64
    issued_epoch: U64
    expires_epoch: U64


_LAYOUT: Final = FixedLayout(ComputeReceipt, "compute receipt")
BODY_BYTES: Final = _LAYOUT.size
SIGNED_BYTES: Final = BODY_BYTES + SIGNATURE_BYTES
DIGEST_FIELDS: Final = _LAYOUT.hash_fields


@dataclass(frozen=True, slots=True)
class SignedReceipt:
    """A receipt and the worker's Ed25519 signature over :func:`signing_digest`."""

    body: ComputeReceipt
    signature: bytes


def encode_body(receipt: ComputeReceipt) -> bytes:
    """Return the 606 bytes that are hashed and signed. Raises InputError naming a misfit."""
    return _LAYOUT.encode(receipt)


def decode_body(data: bytes) -> ComputeReceipt:
    """Return the receipt of 606 bytes. Raises EvidenceError; see :func:`check_structure`."""
    return _LAYOUT.decode(data)


def encode(receipt: SignedReceipt) -> bytes:
    """Return the 670 bytes of ``<id>.palw``. Raises InputError naming a misfit."""
    if len(receipt.signature) != SIGNATURE_BYTES:
        raise InputError(
            "compute receipt: the signature has another length",
            expected=f"{SIGNATURE_BYTES} bytes",
            found=f"{len(receipt.signature)} bytes",
        )
    return encode_body(receipt.body) + receipt.signature


def decode_strict(data: bytes) -> SignedReceipt:
    """Return the receipt of the bytes of ``<id>.palw``; the signature is not checked here.

    Raises EvidenceError for another length, a number that names no kind, and for what
    :func:`check_structure` refuses.
    """
    if len(data) != SIGNED_BYTES:
        raise EvidenceError(
            "compute receipt: another length",
            expected=f"{SIGNED_BYTES} bytes",
            found=f"{len(data)} bytes",
        )
    body = decode_body(data[:BODY_BYTES])
    check_structure(body)
    return SignedReceipt(body, data[BODY_BYTES:])


def signing_digest(receipt: ComputeReceipt) -> bytes:
    """Return what the worker signs: the body, salted with its network."""
    return domain_hash("palw.receipt-signing", 1, [receipt.network_id, encode_body(receipt)])


def body_id(receipt: ComputeReceipt) -> bytes:
    """Return the name of the body as an object of its own.

    Nothing here is looked up by it: it is one of the three digests of the format, for indexes that
    others keep.
    """
    return domain_hash("palw.receipt-body", 1, [encode_body(receipt)])


def receipt_id(receipt: ComputeReceipt) -> bytes:
    """Return the name of the receipt: the signature is no part of it."""
    return domain_hash("palw.receipt-id", 1, [encode_body(receipt)])


def epoch_of(timestamp: int) -> int:
    """Return the epoch (hours since the Unix epoch) of a time in milliseconds."""
    return timestamp // EPOCH_MILLISECONDS


def check_structure(receipt: ComputeReceipt) -> None:
    """Check what the 30 fields say about each other. Raises EvidenceError naming the field."""
    _require("receipt_version", RECEIPT_VERSION, receipt.receipt_version)
    for name in DIGEST_FIELDS:
        if getattr(receipt, name) == ZERO:
            raise _refusal(name, "a digest that is not zero", "32 zero bytes")
    _check_slot(receipt)
    _check_epochs(receipt)
    _check_counts(receipt)
    _check_trace(receipt)


def _check_slot(receipt: ComputeReceipt) -> None:
    if receipt.replica_slot >= receipt.job_class.slots:
        raise _refusal(
            "replica_slot",
            f"at most {receipt.job_class.slots - 1} for {receipt.job_class.name.lower()}",
            str(receipt.replica_slot),
        )


def _check_epochs(receipt: ComputeReceipt) -> None:
    _require("issued_epoch", epoch_of(receipt.timestamp), receipt.issued_epoch)
    _require("expires_epoch", receipt.issued_epoch + LIFETIME_EPOCHS, receipt.expires_epoch)


def _check_counts(receipt: ComputeReceipt) -> None:
    for name in (
        "prefill_tokens",
        "decode_tokens",
        "schedule_event_count",
        "canonical_compute_units",
    ):
        if getattr(receipt, name) == 0:
            raise _refusal(name, "at least 1", "0")
    if receipt.schedule_event_count > MAX_EVENTS:
        raise _refusal(
            "schedule_event_count", f"at most {MAX_EVENTS}", str(receipt.schedule_event_count)
        )
    if receipt.trace_event_count > receipt.schedule_event_count:
        raise _refusal(
            "trace_event_count",
            f"at most the {receipt.schedule_event_count} operations of the schedule",
            str(receipt.trace_event_count),
        )


def _check_trace(receipt: ComputeReceipt) -> None:
    """The level says whether there has to be a trace, or must be none."""
    level = receipt.evidence_level
    traced = receipt.trace_evidence is not TraceEvidence.ABSENT
    if level in (EvidenceLevel.NONE, EvidenceLevel.GRAPH) and traced:
        raise _refusal(
            "trace_evidence",
            f"absent at evidence level {level.name.lower()}",
            receipt.trace_evidence.name.lower(),
        )
    if level is EvidenceLevel.GEMM_TRACED and not traced:
        raise _refusal("trace_evidence", "a trace at evidence level gemm_traced", "absent")
    if (receipt.trace_event_count != 0) != traced:
        expected = "at least 1 with a trace" if traced else "0 without a trace"
        raise _refusal("trace_event_count", expected, str(receipt.trace_event_count))
    if (receipt.trace_scheme_id != no_trace_scheme()) != traced:
        expected = "a scheme with a trace" if traced else "that of no trace"
        raise _refusal("trace_scheme_id", expected, receipt.trace_scheme_id.hex())
    empty = receipt.gemm_trace_root == empty_gemm_root()
    if empty is (level in (EvidenceLevel.GEMM_TRACED, EvidenceLevel.STATE_COMMITTED)):
        raise _refusal(
            "gemm_trace_root",
            f"{'not ' if empty else ''}the root of no trace at level {level.name.lower()}",
            receipt.gemm_trace_root.hex(),
        )


def _require(name: str, expected: int, found: int) -> None:
    if expected != found:
        raise _refusal(name, str(expected), str(found))


def _refusal(name: str, expected: str, found: str) -> EvidenceError:
    return EvidenceError(f"compute receipt: {name} does not hold", expected=expected, found=found)
