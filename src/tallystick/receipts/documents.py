"""Step 1, first half: the bytes of a set become typed documents, or the step fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tallystick.attest.bundlekeys import AuditKey, BundleKey
from tallystick.canonical.hashing import format_digest, sha256
from tallystick.contracts.bundle import (
    MAX_BUNDLE,
    BundlePrivate,
    BundlePublic,
    decode_private,
    decode_public,
    receipt_binding,
)
from tallystick.contracts.codec import decode, decode_bytes, parse_bytes
from tallystick.contracts.compute_receipt import SignedReceipt, decode_strict
from tallystick.contracts.digests import digests_of_parts, receipt_digest_of, receipt_id
from tallystick.contracts.exec_envelope import ExecEnvelope, read_exec_envelope
from tallystick.contracts.layout import (
    BUNDLE,
    COMPUTE_RECEIPT,
    ENVELOPES,
    EXEC,
    MARKER,
    MEMBERS,
    PUBLIC_JSON,
    RECEIPT,
    TELEMETRY,
    split_name,
)
from tallystick.contracts.opening import OPENING_BOUNDS, Opening, ReceiptSet
from tallystick.contracts.public_receipt import PublicReceipt
from tallystick.contracts.receipt import Receipt
from tallystick.contracts.request import InferenceRun
from tallystick.errors import EvidenceError, NothingToVerifyError
from tallystick.receipts.sealing import Envelope, open_with, parse
from tallystick.telemetry.log import TelemetryLog, parse_log


@dataclass(frozen=True, slots=True)
class OpenedBundle:
    """A bundle's envelope and public part; ``private`` and ``opening`` are None while locked."""

    envelope: Envelope
    public: BundlePublic
    private: BundlePrivate | None = field(repr=False)
    opening: Opening | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class SetDocuments:
    """One set, parsed and bound together by digests; ``bundle`` is None when withheld."""

    set_id: str
    receipt: Receipt
    receipt_bytes: bytes = field(repr=False)
    receipt_digest: str
    core_digest: str
    compute: SignedReceipt
    compute_bytes: bytes = field(repr=False)
    public_json: PublicReceipt
    execution: ExecEnvelope
    execution_digest: str
    telemetry: TelemetryLog
    telemetry_digest: str
    envelopes: bytes = field(repr=False)
    bundle: OpenedBundle | None

    @property
    def opening(self) -> Opening | None:
        """The private opening; None when the bundle is withheld or locked."""
        return None if self.bundle is None else self.bundle.opening


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


def read_documents(
    files: Mapping[str, bytes], set_id: str, key: AuditKey | BundleKey | None = None
) -> SetDocuments:
    """1 structure and bounds: parse every member and check what names what.

    ``key`` opens the private part of the bundle. Raises EvidenceError naming the file;
    NothingToVerifyError when a public file is missing.
    """
    marker_name = MARKER.name(set_id)
    marker = decode_bytes(
        ReceiptSet, files[marker_name], max_bytes=MARKER.max_bytes, where=marker_name
    )
    _check_members(marker, files, set_id)
    _check_digests(marker, files)
    name = RECEIPT.name(set_id)
    receipt_bytes = files[name]
    document = parse_bytes(receipt_bytes, max_bytes=RECEIPT.max_bytes, where=name)
    receipt = decode(Receipt, document, where=name)
    core, observed = digests_of_parts(document)
    digest = receipt_digest_of(core, observed)
    _check_names(marker, set_id, digest)
    compute_bytes = files[COMPUTE_RECEIPT.name(set_id)]
    execution = files[EXEC.name(set_id)]
    telemetry = files[TELEMETRY.name(set_id)]
    return SetDocuments(
        set_id=set_id,
        receipt=receipt,
        receipt_bytes=receipt_bytes,
        receipt_digest=digest,
        core_digest=core,
        compute=decode_strict(compute_bytes),
        compute_bytes=compute_bytes,
        public_json=_read_public_json(files, set_id),
        execution=read_exec_envelope(execution),
        execution_digest=format_digest(sha256(execution)),
        telemetry=parse_log(telemetry),
        telemetry_digest=format_digest(sha256(telemetry)),
        envelopes=files[ENVELOPES.name(set_id)],
        bundle=_read_bundle(files, set_id, receipt_binding(compute_bytes), key),
    )


def _read_public_json(files: Mapping[str, bytes], set_id: str) -> PublicReceipt:
    name = PUBLIC_JSON.name(set_id)
    return decode_bytes(PublicReceipt, files[name], max_bytes=PUBLIC_JSON.max_bytes, where=name)


def _read_bundle(
    files: Mapping[str, bytes], set_id: str, binding: bytes, key: AuditKey | BundleKey | None
) -> OpenedBundle | None:
    data = files.get(BUNDLE.name(set_id))
    if data is None:
        return None
    envelope = parse(data)
    if envelope.receipt_binding != binding:
        raise EvidenceError(
            "the bundle was sealed for another compute receipt",
            expected=binding.hex(),
            found=envelope.receipt_binding.hex(),
        )
    public = decode_public(envelope.public)
    if key is None:
        return OpenedBundle(envelope, public, None, None)
    private = decode_private(open_with(envelope, key))
    opening = decode_bytes(
        Opening,
        private.opening,
        max_bytes=MAX_BUNDLE,
        where="opening in the bundle",
        bounds=OPENING_BOUNDS,
    )
    return OpenedBundle(envelope, public, private, opening)


def opened_request(
    files: Mapping[str, bytes], key: AuditKey | BundleKey | None
) -> InferenceRun | None:
    """Return the run that a set's private half holds, None where it is withheld or locked.

    Nothing is verified: step 1 and step 11 do that. A half that cannot be opened gives None too.
    """
    if key is None:
        return None
    try:
        set_id = find_id(files)
        binding = receipt_binding(files[COMPUTE_RECEIPT.name(set_id)])
        opened = _read_bundle(files, set_id, binding, key)
    except (EvidenceError, NothingToVerifyError, KeyError):
        return None
    return None if opened is None or opened.opening is None else opened.opening.request


def _check_members(marker: ReceiptSet, files: Mapping[str, bytes], set_id: str) -> None:
    expected = tuple((kind.name(set_id), kind.visibility) for kind in MEMBERS)
    found = tuple((member.name, member.visibility) for member in marker.members)
    if found != expected:
        raise EvidenceError(
            f"{set_id}{MARKER.suffix}: members are not those of a set",
            expected=", ".join(f"{name} ({visibility})" for name, visibility in expected),
            found=", ".join(f"{name} ({visibility})" for name, visibility in found)[:400],
        )
    for kind in MEMBERS:
        name = kind.name(set_id)
        if kind.visibility == "public" and name not in files:
            raise NothingToVerifyError(
                f"{name} is missing: the set is incomplete", hint="ask for all public files"
            )
        if len(files.get(name, b"")) > kind.max_bytes:
            raise EvidenceError(f"{name} is too large", expected=f"at most {kind.max_bytes} B")
    foreign = sorted(set(files) - {name for name, _ in expected} - {MARKER.name(set_id)})
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
                found=f"{found} of {len(data)} bytes",
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
