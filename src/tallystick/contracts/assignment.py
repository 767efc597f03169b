"""Who asked for a job, who was given it, and who the worker is (docs/spec/compute-receipt.md).

The scheduler signs the request and one assignment per replica; the worker presents a credential
that commits to its owner. Digests and keys are raw 32 bytes, epochs are hours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

from tallystick.canonical.hashing import domain_hash
from tallystick.contracts.compute_receipt import SIGNATURE_BYTES, EvidenceLevel, JobClass
from tallystick.contracts.fixed import U8, U16, U32, U64, FixedLayout, Hash
from tallystick.errors import EvidenceError, InputError

CREDENTIAL_VERSION: Final = 1
REQUEST_VERSION: Final = 1
ASSIGNMENT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class WorkerCredential:
    """A worker's key and the commitment to its owner, on one network and for some epochs."""

    version: U16
    network_id: Hash
    worker_key: Hash
    owner_commitment: Hash
    issued_epoch: U64
    expires_epoch: U64


@dataclass(frozen=True, slots=True)
class Request:
    """What the scheduler asks of whoever takes the job. ``replicas`` is the number of slots."""

    version: U16
    network_id: Hash
    scheduler_job_id: Hash
    request_commitment: Hash
    model_profile_id: Hash
    job_class: Annotated[JobClass, "B"]
    required_evidence_level: Annotated[EvidenceLevel, "B"]
    max_prefill_tokens: U32
    max_decode_tokens: U32
    replicas: U8
    issued_epoch: U64
    expires_epoch: U64


@dataclass(frozen=True, slots=True)
class Assignment:
    """One slot of a requested job, given to the worker with ``worker_key``."""

    version: U16
    network_id: Hash
    scheduler_job_id: Hash
    request_commitment: Hash
    signed_request_id: Hash
    replica_slot: U8
    worker_key: Hash
    job_class: Annotated[JobClass, "B"]
    required_evidence_level: Annotated[EvidenceLevel, "B"]
    issued_epoch: U64
    expires_epoch: U64


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A request and the scheduler's Ed25519 signature over :func:`request_signing_digest`."""

    body: Request
    signature: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SignedAssignment:
    """An assignment and the scheduler's signature over :func:`assignment_signing_digest`."""

    body: Assignment
    signature: bytes = field(repr=False)


_CREDENTIAL: Final = FixedLayout(WorkerCredential, "worker credential")
_REQUEST: Final = FixedLayout(Request, "request")
_ASSIGNMENT: Final = FixedLayout(Assignment, "assignment")
CREDENTIAL_BYTES: Final = _CREDENTIAL.size
SIGNED_REQUEST_BYTES: Final = _REQUEST.size + SIGNATURE_BYTES
SIGNED_ASSIGNMENT_BYTES: Final = _ASSIGNMENT.size + SIGNATURE_BYTES


def encode_credential(credential: WorkerCredential) -> bytes:
    """Return the encoding. Raises InputError naming a misfit."""
    return _CREDENTIAL.encode(credential)


def decode_credential(data: bytes) -> WorkerCredential:
    """Return the credential that ``data`` encodes. Raises EvidenceError."""
    credential = _CREDENTIAL.decode(data)
    _require_version("worker credential", CREDENTIAL_VERSION, credential.version)
    return credential


def encode_signed_request(request: SignedRequest) -> bytes:
    """Return body and signature. Raises InputError naming a misfit."""
    return _REQUEST.encode(request.body) + _signature("request", request.signature)


def decode_signed_request(data: bytes) -> SignedRequest:
    """Return the request of body and signature; the signature is not checked here.

    Raises EvidenceError.
    """
    body, signature = _split("request", data, SIGNED_REQUEST_BYTES)
    request = _REQUEST.decode(body)
    _require_version("request", REQUEST_VERSION, request.version)
    return SignedRequest(request, signature)


def encode_signed_assignment(assignment: SignedAssignment) -> bytes:
    """Return body and signature. Raises InputError naming a misfit."""
    return _ASSIGNMENT.encode(assignment.body) + _signature("assignment", assignment.signature)


def decode_signed_assignment(data: bytes) -> SignedAssignment:
    """Return the assignment of body and signature; the signature is not checked here.

    Raises EvidenceError.
    """
    body, signature = _split("assignment", data, SIGNED_ASSIGNMENT_BYTES)
    assignment = _ASSIGNMENT.decode(body)
    _require_version("assignment", ASSIGNMENT_VERSION, assignment.version)
    return SignedAssignment(assignment, signature)


def credential_id(credential: WorkerCredential) -> bytes:
    """Return the 32-byte name of a worker credential."""
    return domain_hash("palw.worker-credential", 1, [encode_credential(credential)])


def request_signing_digest(request: Request) -> bytes:
    """Return what the scheduler signs: the request, salted with its network."""
    parts = [request.network_id, _REQUEST.encode(request)]
    return domain_hash("palw.request-signing", 1, parts)


def assignment_signing_digest(assignment: Assignment) -> bytes:
    """Return what the scheduler signs: the assignment, salted with its network."""
    parts = [assignment.network_id, _ASSIGNMENT.encode(assignment)]
    return domain_hash("palw.assignment-signing", 1, parts)


def signed_request_id(request: SignedRequest) -> bytes:
    """Return the 32-byte name of a request together with its signature."""
    parts = [_REQUEST.encode(request.body), _signature("request", request.signature)]
    return domain_hash("palw.signed-request", 1, parts)


def signed_assignment_id(assignment: SignedAssignment) -> bytes:
    """Return the 32-byte name of an assignment together with its signature."""
    parts = [_ASSIGNMENT.encode(assignment.body), _signature("assignment", assignment.signature)]
    return domain_hash("palw.signed-assignment", 1, parts)


def _signature(what: str, signature: bytes) -> bytes:
    if len(signature) != SIGNATURE_BYTES:
        raise InputError(
            f"{what}: the signature has another length",
            expected=f"{SIGNATURE_BYTES} bytes",
            found=f"{len(signature)} bytes",
        )
    return signature


def _split(what: str, data: bytes, size: int) -> tuple[bytes, bytes]:
    if len(data) != size:
        raise EvidenceError(
            f"{what}: another length", expected=f"{size} bytes", found=f"{len(data)} bytes"
        )
    return data[:-SIGNATURE_BYTES], data[-SIGNATURE_BYTES:]


def _require_version(what: str, expected: int, found: int) -> None:
    if expected != found:
        raise EvidenceError(f"{what}: unknown version", expected=str(expected), found=str(found))
