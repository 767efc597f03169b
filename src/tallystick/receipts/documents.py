"""Step 1, first half: the bytes of a set become typed documents, or the step fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tallystick.canonical.hashing import format_digest, sha256
from tallystick.contracts.codec import decode_bytes
from tallystick.contracts.digests import core_digest, observed_digest, receipt_digest_of, receipt_id
from tallystick.contracts.layout import (
    ENVELOPES,
    MARKER,
    MEMBERS,
    OPENING,
    RECEIPT,
    TELEMETRY,
    split_name,
)
from tallystick.contracts.opening import Opening, ReceiptSet
from tallystick.contracts.receipt import Receipt
from tallystick.errors import EvidenceError, NothingToVerifyError
from tallystick.telemetry.log import TelemetryLog, parse_log


@dataclass(frozen=True, slots=True)
class SetDocuments:
    """One set, parsed and bound together by digests; ``opening`` is None when withheld."""

    set_id: str
    receipt: Receipt
    receipt_bytes: bytes = field(repr=False)
    receipt_digest: str
    core_digest: str
    telemetry: TelemetryLog
    telemetry_digest: str
    envelopes: bytes = field(repr=False)
    opening: Opening | None = field(repr=False)


def find_id(files: Mapping[str, bytes]) -> str:
    """Return the id that all ``files`` share.

    Raises NothingToVerifyError without a marker, EvidenceError for a foreign file name.
    """
    markers = [name for name in files if name.endswith(MARKER.suffix)]
    if len(markers) != 1:
        raise NothingToVerifyError(
            "no artifact set, or an incomplete one",
            expected=f"one completion marker, <id>{MARKER.suffix}",
            found=f"{len(markers)}",
        )
    parts = split_name(markers[0])
    if parts is None:
        raise NothingToVerifyError(f"{markers[0]!a} is not the name of a completion marker")
    return parts[0]


def read_documents(files: Mapping[str, bytes], set_id: str) -> SetDocuments:
    """1 structure and bounds: parse every member and check what names what.

    Raises EvidenceError naming the file; NothingToVerifyError when a public file is missing.
    """
    marker_name = set_id + MARKER.suffix
    marker = decode_bytes(
        ReceiptSet, files[marker_name], max_bytes=MARKER.max_bytes, where=marker_name
    )
    _check_members(marker, files, set_id)
    _check_digests(marker, files)
    name = set_id + RECEIPT.suffix
    receipt_bytes = files[name]
    receipt = decode_bytes(Receipt, receipt_bytes, max_bytes=RECEIPT.max_bytes, where=name)
    core = core_digest(receipt.core)
    digest = receipt_digest_of(core, observed_digest(receipt.observed))
    _check_names(marker, set_id, digest)
    telemetry = files[set_id + TELEMETRY.suffix]
    return SetDocuments(
        set_id=set_id,
        receipt=receipt,
        receipt_bytes=receipt_bytes,
        receipt_digest=digest,
        core_digest=core,
        telemetry=parse_log(telemetry),
        telemetry_digest=format_digest(sha256(telemetry)),
        envelopes=files[set_id + ENVELOPES.suffix],
        opening=_read_opening(files, set_id),
    )


def _check_members(marker: ReceiptSet, files: Mapping[str, bytes], set_id: str) -> None:
    expected = tuple((set_id + kind.suffix, kind.visibility) for kind in MEMBERS)
    found = tuple((member.name, member.visibility) for member in marker.members)
    if found != expected:
        raise EvidenceError(
            f"{set_id}{MARKER.suffix}: members are not those of a set",
            expected=", ".join(f"{name} ({visibility})" for name, visibility in expected),
            found=", ".join(f"{name} ({visibility})" for name, visibility in found)[:400],
        )
    for kind in MEMBERS:
        name = set_id + kind.suffix
        if kind.visibility == "public" and name not in files:
            raise NothingToVerifyError(
                f"{name} is missing: the set is incomplete", hint="ask for all public files"
            )
        if len(files.get(name, b"")) > kind.max_bytes:
            raise EvidenceError(f"{name} is too large", expected=f"at most {kind.max_bytes} B")
    foreign = sorted(set(files) - {name for name, _ in expected} - {set_id + MARKER.suffix})
    if foreign:
        raise EvidenceError(
            f"{foreign[0]!a} is no member of the set", expected="only files the marker names"
        )


def _check_digests(marker: ReceiptSet, files: Mapping[str, bytes]) -> None:
    for member in marker.members:
        data = files.get(member.name)
        if data is None:
            continue  # private and withheld: step 11 says so
        found = format_digest(sha256(data))
        if found != member.digest:
            raise EvidenceError(
                f"{member.name} is not the file that the marker names",
                expected=member.digest,
                found=found,
            )


def _check_names(marker: ReceiptSet, set_id: str, digest: str) -> None:
    if marker.receipt_digest != digest:
        raise EvidenceError(
            f"{set_id}{MARKER.suffix}: receipt_digest is not that of the receipt",
            expected=digest,
            found=marker.receipt_digest,
        )
    if receipt_id(digest) != set_id:
        raise EvidenceError(
            "the files do not carry the receipt's id",
            expected=receipt_id(digest),
            found=set_id,
        )


def _read_opening(files: Mapping[str, bytes], set_id: str) -> Opening | None:
    name = set_id + OPENING.suffix
    data = files.get(name)
    if data is None:
        return None
    return decode_bytes(Opening, data, max_bytes=OPENING.max_bytes, where=name)
