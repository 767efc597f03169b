"""Attackers who edit one document of a set and make everything that names it agree again."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tallystick.attest import dsse
from tallystick.attest.keys import SigningKey
from tallystick.attest.statements import execution_statement
from tallystick.canonical.hashing import domain_hash, format_digest, sha256
from tallystick.canonical.json import jcs, parse_strict
from tallystick.contracts import digests
from tallystick.contracts.bundle import (
    BundlePrivate,
    BundlePublic,
    decode_private,
    decode_public,
    encode_private,
    encode_public,
    receipt_binding,
)
from tallystick.contracts.codec import decode_bytes, encode_bytes
from tallystick.contracts.compute_receipt import (
    ComputeReceipt,
    SignedReceipt,
    decode_strict,
    encode,
    receipt_id,
    signing_digest,
)
from tallystick.contracts.layout import (
    BUNDLE,
    COMPUTE_RECEIPT,
    ENVELOPES,
    EXEC,
    MARKER,
    MEMBERS,
    PUBLIC_JSON,
    RECEIPT,
    MemberKind,
)
from tallystick.contracts.manifest import RuntimeManifest
from tallystick.contracts.opening import ReceiptSet
from tallystick.contracts.receipt import Receipt
from tallystick.contracts.request import PRODUCER
from tallystick.errors import EvidenceError, InputError
from tallystick.receipts.compute_case import ComputeCase, ComputeContext, ComputeDocuments
from tallystick.receipts.public_json import PublicNames, public_receipt
from tallystick.receipts.sealing import Envelope, bundle_id, open_with, parse, seal
from tests.support.sets import AUDIT_KEY, OPENING


@dataclass(frozen=True, slots=True)
class Forger:
    """Holds a set's files and its audit key, so that the bundle can be sealed anew.

    He has the worker's signing key only where a test gives him one.
    """

    files: Mapping[str, bytes]

    @property
    def set_id(self) -> str:
        """The id of the untouched set."""
        return next(name for name in self.files if name.endswith(MARKER.suffix))[:32]

    def data(self, kind: MemberKind) -> bytes:
        """Return the bytes of one member."""
        return self.files[kind.name(self.set_id)]

    def document(self, suffix: str) -> Any:
        """Return one member as a JSON value of its own; ``OPENING`` is inside the bundle."""
        if suffix == OPENING:
            return parse_strict(self.private.opening, max_bytes=1 << 26)
        return parse_strict(self.files[self.set_id + suffix], max_bytes=1 << 26)

    @property
    def envelope(self) -> Envelope:
        """The sealed bundle."""
        return parse(self.data(BUNDLE))

    @property
    def public(self) -> BundlePublic:
        """The public part of the bundle."""
        return decode_public(self.envelope.public)

    @property
    def private(self) -> BundlePrivate:
        """The private part of the bundle."""
        return decode_private(open_with(self.envelope, AUDIT_KEY))

    @property
    def manifest(self) -> RuntimeManifest:
        """The manifest in the bundle."""
        return RuntimeManifest.decode_strict(self.public.manifest)

    @property
    def compute(self) -> SignedReceipt:
        """The compute receipt."""
        return decode_strict(self.data(COMPUTE_RECEIPT))

    def in_place(self, kind: MemberKind, data: bytes) -> dict[str, bytes]:
        """Return the set with one file edited and nothing else."""
        return {**self.files, kind.name(self.set_id): data}

    def with_member(self, kind: MemberKind, data: bytes) -> dict[str, bytes]:
        """Return the set with one member replaced and the marker adapted."""
        return self.with_members({kind: data})

    def with_members(self, changes: Mapping[MemberKind, bytes]) -> dict[str, bytes]:
        """Return the set with some members replaced and the marker adapted."""
        contents = {kind: self.data(kind) for kind in MEMBERS}
        marker = decode_bytes(ReceiptSet, self.data(MARKER), max_bytes=65536)
        return reseal(marker.receipt_digest, {**contents, **changes}, set_id=self.set_id)

    def sealed(
        self,
        private: BundlePrivate | bytes | None = None,
        public: BundlePublic | bytes | None = None,
        binding: bytes | None = None,
    ) -> bytes:
        """Return the bundle with other parts, sealed with the right key and the same header."""
        envelope = self.envelope
        if isinstance(public, BundlePublic):
            public = encode_public(public)
        if not isinstance(private, bytes):
            private = encode_private(private or self.private)
        return seal(
            envelope.public if public is None else public,
            private,
            receipt_binding=binding or envelope.receipt_binding,
            key=AUDIT_KEY,
            salt=envelope.salt,
            nonce=envelope.nonce,
        )

    def with_bundle(self, bundle: bytes) -> dict[str, bytes]:
        """Return the set around another bundle; public document and marker name it."""
        document = self.document(PUBLIC_JSON.suffix)
        document["verification_bundle_id"] = format_digest(bundle_id(bundle))
        return self.with_members({BUNDLE: bundle, PUBLIC_JSON: jcs(document)})

    def with_opening(self, value: Any) -> dict[str, bytes]:
        """Return the set whose bundle holds the opening ``value``."""
        return self.with_bundle(self.sealed(replace(self.private, opening=jcs(value))))

    def with_receipt(
        self,
        value: Any,
        *,
        key: SigningKey | None = None,
        compute: SignedReceipt | None = None,
        execution: bytes | None = None,
        source: bytes = b"",
    ) -> dict[str, bytes]:
        """Return a set around the receipt ``value``: renamed, everything that names it adapted.

        The old signature stays, or ``key`` signs a matching statement, and ``source`` is the lines
        after it. ``compute`` takes the place of the compute receipt, and the bundle is bound to it;
        ``execution`` that of the execution envelope.
        """
        receipt_bytes = jcs(value)
        core, observed = sha256(jcs(value["core"])), sha256(jcs(value["observed"]))
        digest = format_digest(domain_hash("geoai.receipt", 1, [core, observed]))
        opening = self.document(OPENING)
        opening["receipt_digest"] = digest
        palw = self.data(COMPUTE_RECEIPT) if compute is None else encode(compute)
        public = self.public
        if compute is not None:
            public = replace(
                public, receipt_binding=receipt_binding(palw), receipt_id=receipt_id(compute.body)
            )
        private = replace(self.private, opening=jcs(opening))
        bundle = self.sealed(private, public, receipt_binding(palw))
        document = self.document(PUBLIC_JSON.suffix)
        document["receipt_digest"], document["core_digest"] = digest, format_digest(core)
        document["verification_bundle_id"] = format_digest(bundle_id(bundle))
        contents = {
            **{kind: self.data(kind) for kind in MEMBERS},
            COMPUTE_RECEIPT: palw,
            RECEIPT: receipt_bytes,
            PUBLIC_JSON: jcs(document)
            if compute is None
            else _derived_document(compute, public, receipt_bytes, bundle) or jcs(document),
            BUNDLE: bundle,
        }
        if key is not None:
            receipt = decode_bytes(Receipt, receipt_bytes, max_bytes=1 << 20)
            statement = execution_statement(receipt, receipt_bytes)
            contents[ENVELOPES] = dsse.sign(statement, dsse.PAYLOAD_TYPE, [key]) + b"\n" + source
        if execution is not None:
            contents[EXEC] = execution
        return reseal(digest, contents)

    def with_compute(
        self, compute: SignedReceipt, *, key: SigningKey | None = None
    ) -> dict[str, bytes]:
        """Return a set around another compute receipt, which the receipt names by its digest."""
        value = self.document(RECEIPT.suffix)
        value["observed"]["compute_receipt_digest"] = format_digest(sha256(encode(compute)))
        return self.with_receipt(value, key=key, compute=compute)

    def signed(self, key: SigningKey, **changes: Any) -> SignedReceipt:
        """Return the compute receipt with another body, signed with ``key``."""
        body = replace(self.compute.body, **changes)
        return SignedReceipt(body, key.sign(signing_digest(body)))


def _derived_document(
    compute: SignedReceipt, public: BundlePublic, receipt_bytes: bytes, bundle: bytes
) -> bytes | None:
    """Return the public document that fits, or None where none can be derived."""
    try:
        receipt = decode_bytes(Receipt, receipt_bytes, max_bytes=1 << 20)
        case = ComputeCase(
            ComputeDocuments(
                palw=encode(compute),
                receipt=compute,
                public=public,
                private=None,
                core=receipt.core,
                core_digest=digests.core_digest(receipt.core),
                observed=receipt.observed,
            ),
            ComputeContext(),
        )
        names = PublicNames(bundle_id(bundle), digests.receipt_digest(receipt))
        return encode_bytes(public_receipt(case, names))
    except (EvidenceError, InputError):
        return None


def edited(document: Any, name: str, value: Any) -> Any:
    """Return a dataclass with one field, known only by its name, replaced."""
    return replace(document, **{name: value})


def flipped(data: bytes, at: int) -> bytes:
    """Return ``data`` with one bit of the byte ``at`` flipped."""
    forged = bytearray(data)
    forged[at] ^= 1
    return bytes(forged)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a JSON document that is no container."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from leaves(value[key], (*path, key))
    else:
        yield path


def changed_leaf(document: Any, path: tuple[Any, ...]) -> Any:
    """Return a copy in which one value is another of its kind."""
    result = copy.deepcopy(document)
    holder = result
    for key in path[:-1]:
        holder = holder[key]
    value = holder[path[-1]]
    holder[path[-1]] = _another(value)
    return result


def _another(value: Any) -> Any:
    enumerated = {
        "self_local": "solo_unpaid",
        "state_committed": "gemm_traced",
        "graph_fallback": "absent",
        "private": "public",
        "sealed": "withheld",
        "withheld": "sealed",
        "not_gathered": "sealed",
    }
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if value in enumerated:
        return enumerated[value]
    if value.startswith("sha256:"):
        return "sha256:" + value[7:][::-1]
    return str(int(value) + 1) if value.isdecimal() else value + "x"


def other_value_of(body: ComputeReceipt, name: str) -> Any:
    """Return another value that a field of the body could have."""
    value = getattr(body, name)
    return sha256(name.encode()) if isinstance(value, bytes) else type(value)(value ^ 1)


def reseal(
    receipt_digest: str, contents: Mapping[MemberKind, bytes], *, set_id: str | None = None
) -> dict[str, bytes]:
    """Return files by name under the right id, with a completion marker that fits them."""
    name = set_id or digests.receipt_id(receipt_digest)
    files = {kind.name(name): data for kind, data in contents.items()}
    marker = {
        "schema": "misaka.palw.receipt-set.v2",
        "producer": PRODUCER,
        "receipt_digest": receipt_digest,
        "members": [
            {
                "name": kind.name(name),
                "digest": format_digest(sha256(contents[kind])),
                "visibility": kind.visibility,
            }
            for kind in MEMBERS
        ],
    }
    files[MARKER.name(name)] = jcs(marker)  # type: ignore[arg-type]
    return files
