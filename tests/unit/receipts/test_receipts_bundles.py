"""The bundle of a set: every section of it changed alone, and sealed again, is refused.

The forger holds the audit key, and adapts public document and marker.
"""

from __future__ import annotations

import copy
from dataclasses import fields, replace
from enum import IntEnum
from typing import Any

import pytest

from tallystick.attest.keys import SigningKey
from tallystick.canonical.hashing import sha256
from tallystick.canonical.json import jcs, parse_strict
from tallystick.contracts.assignment import (
    SignedAssignment,
    SignedRequest,
    assignment_signing_digest,
    request_signing_digest,
)
from tallystick.contracts.bundle import BundlePrivate, BundlePublic, encode_private, encode_public
from tallystick.contracts.codec import encode_bytes
from tallystick.contracts.compute_receipt import (
    EvidenceLevel,
)
from tallystick.contracts.layout import BUNDLE
from tallystick.contracts.manifest import RuntimeManifest
from tallystick.contracts.manifest_facts import ManifestFacts, MetadataFile
from tallystick.contracts.manifest_parts import ShapeProfile
from tallystick.contracts.runtime import RowClass
from tallystick.errors import EvidenceError, InputError
from tallystick.evidence.portable import PortableEvidence, decode_portable, encode_portable
from tallystick.receipts.report import VerificationReport
from tallystick.receipts.verify import verify_set
from tests.support.documents import ENGINE
from tests.support.forgery import Forger, changed_leaf, edited, flipped, leaves
from tests.support.sets import AUDIT_KEY, NOW, STRANGER, TRUST, make_set, make_traced

OTHER = sha256(b"another value")
STATES = Forger(make_set().files())
ALL = Forger(make_traced("states", "graph", "gemm", experts=True).files())
LIVE = Forger(make_traced("gemm", experts=True, sequential=True).files())
FORGERS = {"states": STATES, "all": ALL, "live": LIVE}


def check(files: dict[str, bytes]) -> VerificationReport:
    return verify_set(files, TRUST, now=NOW, key=AUDIT_KEY)


def failing_step(files: dict[str, bytes]) -> int:
    report = check(files)
    assert not report.verified
    assert report.failure is not None
    return report.failure.number


# Public part of the bundle, sealed again: the step that refuses another value.
PUBLIC_PART = {
    "version": 1,
    "receipt_binding": 1,
    "receipt_id": 1,
    "verification_epoch": 2,
    "scheduler_key": 3,
    "prompt_commitment": 11,
    "manifest": 5,
    "evidence": 9,
}


def test_every_field_of_the_public_part_has_its_step() -> None:
    assert list(PUBLIC_PART) == [field.name for field in fields(BundlePublic)]


@pytest.mark.parametrize("forger", FORGERS.values(), ids=FORGERS)
@pytest.mark.parametrize("name", PUBLIC_PART)
def test_a_changed_public_part_is_refused(forger: Forger, name: str) -> None:
    value = getattr(forger.public, name)
    replaced: Any = value + 24 if isinstance(value, int) else flipped(value, 0)
    if name == "scheduler_key":
        replaced = STRANGER.public.raw
    public = edited(forger.public, name, replaced)
    assert failing_step(forger.with_bundle(forger.sealed(public=public))) == PUBLIC_PART[name]


@pytest.mark.parametrize("name", ["manifest", "evidence"])
def test_an_empty_or_foreign_encoding_in_the_public_part_is_refused(name: str) -> None:
    for data in (b"", getattr(STATES.public, name), getattr(ALL.public, name) + b"\x00"):
        public = edited(ALL.public, name, data)
        step = failing_step(ALL.with_bundle(ALL.sealed(public=public)))
        assert step in ((5, 6) if name == "manifest" else (9,))


def test_an_epoch_within_the_window_but_not_of_the_issue_is_refused() -> None:
    """Whoever has the key could write any number there: only a signed one may be repeated."""
    public = replace(ALL.public, verification_epoch=ALL.public.verification_epoch + 1)
    assert failing_step(ALL.with_bundle(ALL.sealed(public=public))) == 2


def test_a_weak_scheduler_key_is_refused_while_the_bundle_is_locked() -> None:
    public = replace(ALL.public, scheduler_key=bytes(32))
    files = ALL.with_bundle(ALL.sealed(public=public))
    report = verify_set(files, TRUST, now=NOW)
    assert report.failure is not None
    assert report.failure.number == 3


# Private part of the bundle, sealed again.
PRIVATE_PART = {
    "version": 1,
    "signed_request": 3,
    "signed_assignment": 3,
    "credential": 4,
    "owner_key": 4,
    "owner_salt": 4,
    "request_nonce": 3,
    "prompt_nonce": 11,
    "output_nonce": 13,
    "opening": 1,
    "expert_routes": 10,
    "gemm_trace": 10,
}


def test_every_field_of_the_private_part_has_its_step() -> None:
    assert list(PRIVATE_PART) == [field.name for field in fields(BundlePrivate)]


@pytest.mark.parametrize("forger", [ALL, LIVE], ids=["all", "live"])
@pytest.mark.parametrize("name", PRIVATE_PART)
def test_a_changed_private_part_is_refused(forger: Forger, name: str) -> None:
    value: Any = getattr(forger.private, name)
    if name == "credential":
        replaced: Any = edited(value, "expires_epoch", value.expires_epoch + 1)
    elif name.startswith("signed_"):
        replaced = edited(value, "signature", bytes(64))
    elif name == "owner_key":
        replaced = STRANGER.public.raw
    else:
        replaced = value + 1 if isinstance(value, int) else flipped(value, 0)
    private = edited(forger.private, name, replaced)
    assert failing_step(forger.with_bundle(forger.sealed(private))) == PRIVATE_PART[name]


@pytest.mark.parametrize("name", ["expert_routes", "gemm_trace"])
def test_evidence_that_is_left_out_or_added_is_refused(name: str) -> None:
    private = edited(ALL.private, name, None)
    assert failing_step(ALL.with_bundle(ALL.sealed(private))) == 10
    private = edited(STATES.private, name, getattr(ALL.private, name))
    assert failing_step(STATES.with_bundle(STATES.sealed(private))) == 10


@pytest.mark.parametrize("name", ["expert_routes", "gemm_trace"])
def test_every_part_of_the_evidence_is_bound(name: str) -> None:
    data = getattr(ALL.private, name)
    for at in range(0, len(data), 7):
        private = edited(ALL.private, name, flipped(data, at))
        assert failing_step(ALL.with_bundle(ALL.sealed(private))) == 10, at


def numbers_and_hashes(document: Any) -> list[str]:
    return [field.name for field in fields(document) if field.name != "version"]


def changed_field(document: Any, name: str) -> Any:
    value = getattr(document, name)
    if isinstance(value, IntEnum):
        kinds = list(type(value))
        return edited(document, name, kinds[(kinds.index(value) + 1) % len(kinds)])
    if isinstance(value, int):
        return edited(document, name, value - 1 if name.startswith("issued") else value + 1)
    return edited(document, name, OTHER)


REQUEST_FIELDS = numbers_and_hashes(ALL.private.signed_request.body)
ASSIGNMENT_FIELDS = numbers_and_hashes(ALL.private.signed_assignment.body)
CREDENTIAL_FIELDS = numbers_and_hashes(ALL.private.credential)


@pytest.mark.parametrize("name", REQUEST_FIELDS)
@pytest.mark.parametrize("key", [None, STRANGER], ids=["unsigned", "another scheduler"])
def test_a_changed_request_is_refused(name: str, key: SigningKey | None) -> None:
    signed = ALL.private.signed_request
    body = changed_field(signed.body, name)
    signature = signed.signature if key is None else key.sign(request_signing_digest(body))
    private = replace(ALL.private, signed_request=SignedRequest(body, signature))
    public = ALL.public if key is None else replace(ALL.public, scheduler_key=key.public.raw)
    assert failing_step(ALL.with_bundle(ALL.sealed(private, public))) == 3


@pytest.mark.parametrize("name", ASSIGNMENT_FIELDS)
@pytest.mark.parametrize("key", [None, STRANGER], ids=["unsigned", "another scheduler"])
def test_a_changed_assignment_is_refused(name: str, key: SigningKey | None) -> None:
    signed = ALL.private.signed_assignment
    body = changed_field(signed.body, name)
    signature = signed.signature if key is None else key.sign(assignment_signing_digest(body))
    private = replace(ALL.private, signed_assignment=SignedAssignment(body, signature))
    public = ALL.public if key is None else replace(ALL.public, scheduler_key=key.public.raw)
    assert failing_step(ALL.with_bundle(ALL.sealed(private, public))) == 3


@pytest.mark.parametrize("name", CREDENTIAL_FIELDS)
def test_a_changed_credential_is_refused(name: str) -> None:
    private = replace(ALL.private, credential=changed_field(ALL.private.credential, name))
    assert failing_step(ALL.with_bundle(ALL.sealed(private))) == 4


# The header of the envelope: (offset, length) of docs/spec/bundle.md, and what is said.
HEADER = {
    "magic": (0, 8, "not a sealed bundle"),
    "version": (8, 2, "unknown version"),
    "salt": (10, 32, "another key"),
    "receipt binding": (42, 32, "another compute receipt"),
    "key commitment": (74, 32, "another key"),
    "nonce": (106, 24, "damaged"),
}


@pytest.mark.parametrize("section", HEADER)
def test_a_changed_header_is_refused(section: str) -> None:
    start, length, words = HEADER[section]
    for at in range(start, start + length):
        report = check(ALL.with_bundle(flipped(ALL.data(BUNDLE), at)))
        assert report.failure is not None
        assert report.failure.number == 1
        assert words in report.failure.detail


def test_public_part_and_ciphertext_are_authenticated() -> None:
    data = ALL.data(BUNDLE)
    envelope = ALL.envelope
    start = data.index(envelope.public)
    cipher = data.index(envelope.ciphertext)
    for at in (*range(start, start + len(envelope.public), 97), *range(cipher, len(data), 97)):
        report = check(ALL.with_bundle(flipped(data, at)))
        assert report.failure is not None
        assert report.failure.number == 1


def test_lengths_of_the_parts_are_bounded_and_exact() -> None:
    data = ALL.data(BUNDLE)
    for forged in (data[:-1], data + b"\x00", data[:130], data[:130] + b"\xff" * 4 + data[134:]):
        assert failing_step(ALL.with_bundle(forged)) == 1
    for part in (encode_private(ALL.private), encode_public(ALL.public)):
        for forged in (part[:-1], part + b"\x00", b""):
            changes: dict[str, Any] = (
                {"private": forged}
                if part != encode_public(ALL.public)
                else {"public": forged, "private": None}
            )
            assert failing_step(ALL.with_bundle(ALL.sealed(**changes))) == 1


MANIFEST_PARTS = ("model_profile", "runtime_class", "shape_profile", "digests")


def manifest_paths() -> list[tuple[str, ...]]:
    manifest = ALL.manifest
    paths: list[tuple[str, ...]] = []
    for field in fields(RuntimeManifest):
        value = getattr(manifest, field.name)
        if field.name in MANIFEST_PARTS:
            paths += [(field.name, inner.name) for inner in fields(value)]
        elif field.name != "facts":
            paths.append((field.name,))
    return paths + [("facts", inner.name) for inner in fields(ManifestFacts)]


def changed_manifest(path: tuple[str, ...]) -> bytes:
    manifest = ALL.manifest
    if path[0] == "facts":
        document = facts_with(manifest.decoded_facts(), path[1])
        return replace(manifest, facts=document).canonical_bytes
    holder = manifest if len(path) == 1 else getattr(manifest, path[0])
    value = getattr(holder, path[-1])
    if isinstance(value, IntEnum):
        kinds = list(type(value))
        other: Any = kinds[(kinds.index(value) + 1) % len(kinds)]
    elif isinstance(value, int):
        other = value + 1
    elif isinstance(value, str):
        other = value + "x"
    elif isinstance(value, RowClass):
        other = replace(value, floor=value.floor + 1)
    else:
        other = flipped(value, len(value) // 2)
    holder = edited(holder, path[-1], other)
    forged: RuntimeManifest = holder if len(path) == 1 else edited(manifest, path[0], holder)
    return forged.canonical_bytes


def facts_with(facts: ManifestFacts, name: str) -> bytes:
    if name == "base_metadata":
        return encode_bytes(replace(facts, base_metadata=(MetadataFile("a", ENGINE.library),)))
    document: Any = parse_strict(encode_bytes(facts), max_bytes=1 << 20)
    path = next(path for path in leaves(document) if path[0] == name)
    return jcs(changed_leaf(document, path))


@pytest.mark.parametrize("path", manifest_paths(), ids=".".join)
def test_a_changed_manifest_is_refused(path: tuple[str, ...]) -> None:
    public = replace(ALL.public, manifest=changed_manifest(path))
    report = check(ALL.with_bundle(ALL.sealed(public=public)))
    assert report.failure is not None
    # A value that contradicts nothing else in the manifest is found by the ids that were signed.
    assert report.failure.number in (5, 6), report.failure


def test_a_manifest_that_holds_but_is_another_is_refused_by_its_ids() -> None:
    for other, step in ((STATES, 6), (LIVE, 6)):
        public = replace(ALL.public, manifest=other.public.manifest)
        assert failing_step(ALL.with_bundle(ALL.sealed(public=public))) == step
    shape: ShapeProfile = ALL.manifest.shape_profile
    assert shape == STATES.manifest.shape_profile


EVIDENCE_STEPS = {
    "version": 9,
    "level": 9,
    "prefill_tokens": 9,
    "decode_tokens": 9,
    "ruleset_version": 9,
    "job_nullifier": 9,
    "shape_profile_id": 9,
    "schedule": 9,
    "trace_events": 9,
    "state_root": 10,
    "expert_route_root": 10,
    "gemm_root": 10,
    "claimed_units": 9,
    "claimed_ruleset_id": 9,
}


def test_every_field_of_the_portable_evidence_has_its_step() -> None:
    assert list(EVIDENCE_STEPS) == [field.name for field in fields(PortableEvidence)]


def unchecked(evidence: PortableEvidence, name: str, value: Any) -> PortableEvidence:
    """Return evidence with a field that its own checks would refuse."""
    copied = copy.copy(evidence)
    object.__setattr__(copied, name, value)
    return copied


@pytest.mark.parametrize("name", EVIDENCE_STEPS)
def test_changed_portable_evidence_is_refused(name: str) -> None:
    evidence = decode_portable(ALL.public.evidence)
    value = getattr(evidence, name)
    other: Any
    if name == "schedule":
        other = decode_portable(LIVE.public.evidence).schedule
    elif name == "level":
        other = EvidenceLevel.GEMM_TRACED
    else:
        other = value + 1 if isinstance(value, int) else OTHER
    try:
        data = encode_portable(unchecked(evidence, name, other))
    except (EvidenceError, InputError) as error:
        pytest.fail(f"cannot even be written: {error}")
    public = replace(ALL.public, evidence=data)
    assert failing_step(ALL.with_bundle(ALL.sealed(public=public))) == EVIDENCE_STEPS[name]


def test_flipped_bytes_of_the_portable_evidence_are_refused() -> None:
    data = ALL.public.evidence
    for at in range(len(data)):
        public = replace(ALL.public, evidence=flipped(data, at))
        assert failing_step(ALL.with_bundle(ALL.sealed(public=public))) in (9, 10), at


def test_an_opening_of_many_small_values_is_refused_before_they_are_built() -> None:
    report = check(STATES.with_opening([[] for _ in range(1000)]))

    assert report.failure is not None
    assert "too many arrays and objects" in report.failure.detail
    assert report.failure.expected == "at most 256"
