"""The two parts of a verification bundle (docs/spec/bundle.md#the-parts).

The public part is authenticated cleartext and says nothing of the text; the private part holds
everything that opens a commitment. How the two are sealed into one file is receipts.sealing's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tallystick.canonical.codec import BinaryReader, BinaryWriter, decode_strict
from tallystick.canonical.hashing import domain_hash
from tallystick.contracts.assignment import (
    CREDENTIAL_BYTES,
    SIGNED_ASSIGNMENT_BYTES,
    SIGNED_REQUEST_BYTES,
    SignedAssignment,
    SignedRequest,
    WorkerCredential,
    decode_credential,
    decode_signed_assignment,
    decode_signed_request,
    encode_credential,
    encode_signed_assignment,
    encode_signed_request,
)
from tallystick.errors import EvidenceError, InputError

BUNDLE_VERSION: Final = 1
MAX_BUNDLE: Final = 64 * 1024 * 1024  # either part; the envelope bounds both together
MAX_MANIFEST: Final = 1024 * 1024
MAX_EVIDENCE: Final = 32 * 1024 * 1024
_ABSENT, _PRESENT = 0, 1


@dataclass(frozen=True, slots=True)
class BundlePublic:
    """What everyone may read. ``manifest`` and ``evidence`` are encodings with pages of their own.

    ``verification_epoch`` is the epoch (hours) at which the worker verified its own receipt,
    ``scheduler_key`` the raw Ed25519 key that signed request and assignment.
    """

    version: int
    receipt_binding: bytes
    receipt_id: bytes
    verification_epoch: int
    scheduler_key: bytes
    prompt_commitment: bytes
    manifest: bytes
    evidence: bytes


@dataclass(frozen=True, slots=True, repr=False)
class BundlePrivate:
    """What opens the commitments; it shows nothing of itself.

    ``opening`` is the canonical JSON of a contracts.opening.Opening; ``expert_routes`` and
    ``gemm_trace`` are encodings of their own, None when that part was not gathered.
    """

    version: int
    signed_request: SignedRequest
    signed_assignment: SignedAssignment
    credential: WorkerCredential
    owner_key: bytes
    owner_salt: bytes
    request_nonce: bytes
    prompt_nonce: bytes
    output_nonce: bytes
    opening: bytes
    expert_routes: bytes | None
    gemm_trace: bytes | None

    def __repr__(self) -> str:
        return "<BundlePrivate>"


def receipt_binding(palw: bytes) -> bytes:
    """Return what ties a bundle to the bytes of one ``<id>.palw``, the signature included."""
    return domain_hash("palw.receipt-binding", 1, [palw])


def encode_public(public: BundlePublic) -> bytes:
    """Return the encoding. Raises InputError for a field that does not fit."""
    writer = BinaryWriter()
    writer.u16(public.version)
    writer.digest(public.receipt_binding)
    writer.digest(public.receipt_id)
    writer.u64(public.verification_epoch)
    writer.digest(public.scheduler_key)
    writer.digest(public.prompt_commitment)
    writer.sized(public.manifest, limit=MAX_MANIFEST)
    writer.sized(public.evidence, limit=MAX_EVIDENCE)
    return writer.finish()


def decode_public(data: bytes) -> BundlePublic:
    """Return the public part that ``data`` encodes. Raises EvidenceError."""
    return decode_strict(
        data, _read_public, max_bytes=MAX_BUNDLE, where="public part of the bundle"
    )


def encode_private(private: BundlePrivate) -> bytes:
    """Return the encoding. Raises InputError for a field that does not fit, and for too much."""
    writer = BinaryWriter()
    writer.u16(private.version)
    writer.fixed(encode_signed_request(private.signed_request), SIGNED_REQUEST_BYTES)
    writer.fixed(encode_signed_assignment(private.signed_assignment), SIGNED_ASSIGNMENT_BYTES)
    writer.fixed(encode_credential(private.credential), CREDENTIAL_BYTES)
    for secret in (
        private.owner_key,
        private.owner_salt,
        private.request_nonce,
        private.prompt_nonce,
        private.output_nonce,
    ):
        writer.digest(secret)
    writer.sized(private.opening, limit=MAX_BUNDLE)
    for part in (private.expert_routes, private.gemm_trace):
        _write_optional(writer, part)
    data = writer.finish()
    if len(data) > MAX_BUNDLE:
        raise InputError(
            "the private part of the bundle is too large",
            expected=f"at most {MAX_BUNDLE} bytes",
            found=f"{len(data)} bytes",
            hint="ask for fewer tokens or fewer parts of evidence",
        )
    return data


def decode_private(data: bytes) -> BundlePrivate:
    """Return the private part that ``data`` encodes. Raises EvidenceError without its values."""
    return decode_strict(
        data, _read_private, max_bytes=MAX_BUNDLE, where="private part of the bundle"
    )


def _read_public(reader: BinaryReader) -> BundlePublic:
    return BundlePublic(
        version=_version(reader),
        receipt_binding=reader.digest(),
        receipt_id=reader.digest(),
        verification_epoch=reader.u64(),
        scheduler_key=reader.digest(),
        prompt_commitment=reader.digest(),
        manifest=reader.sized(limit=MAX_MANIFEST),
        evidence=reader.sized(limit=MAX_EVIDENCE),
    )


def _read_private(reader: BinaryReader) -> BundlePrivate:
    return BundlePrivate(
        version=_version(reader),
        signed_request=decode_signed_request(reader.fixed(SIGNED_REQUEST_BYTES)),
        signed_assignment=decode_signed_assignment(reader.fixed(SIGNED_ASSIGNMENT_BYTES)),
        credential=decode_credential(reader.fixed(CREDENTIAL_BYTES)),
        owner_key=reader.digest(),
        owner_salt=reader.digest(),
        request_nonce=reader.digest(),
        prompt_nonce=reader.digest(),
        output_nonce=reader.digest(),
        opening=reader.sized(limit=MAX_BUNDLE),
        expert_routes=_read_optional(reader),
        gemm_trace=_read_optional(reader),
    )


def _version(reader: BinaryReader) -> int:
    version = reader.u16()
    if version != BUNDLE_VERSION:
        raise EvidenceError(
            "the bundle has an unknown version", expected=str(BUNDLE_VERSION), found=str(version)
        )
    return version


def _write_optional(writer: BinaryWriter, part: bytes | None) -> None:
    writer.u8(_ABSENT if part is None else _PRESENT)
    if part is not None:
        writer.sized(part, limit=MAX_BUNDLE)


def _read_optional(reader: BinaryReader) -> bytes | None:
    flag = reader.u8()
    if flag == _ABSENT:
        return None
    if flag == _PRESENT:
        return reader.sized(limit=MAX_BUNDLE)
    raise reader.refusal("not a flag", expected="0 or 1", found=str(flag))
