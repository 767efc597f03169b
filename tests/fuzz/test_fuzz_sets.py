"""Hostile bytes in any member: a verdict or an incomplete set, never another exception."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.canonical.json import JSONValue, parse_strict
from tallystick.contracts.layout import (
    BUNDLE,
    ENVELOPES,
    MEMBERS,
    RECEIPT,
    STATE,
    TELEMETRY,
    MemberKind,
)
from tallystick.errors import EvidenceError
from tallystick.receipts.inspect import inspect_receipt
from tallystick.receipts.report import VerificationReport
from tallystick.receipts.verify import verify_set
from tallystick.telemetry.log import parse_log
from tests.support.forgery import Forger, edited
from tests.support.sets import AUDIT_KEY, NOW, TRUST, make_set, make_traced

FORGER = Forger(make_set().files())
TRACED = Forger(make_traced("states", "graph", "gemm", experts=True).files())
# What the state store says is compared with the disk at hand, not by the stateless steps.
KINDS = st.sampled_from([kind for kind in MEMBERS if kind is not STATE])
JSON_SCRAPS = st.sampled_from(
    [b"{}", b"[]", b"null", b'{"core":{}}', b"\xff", b'"\\ud800"', b"1e999"]
)
PUBLIC_SECTIONS = ("manifest", "evidence")
PRIVATE_SECTIONS = ("opening", "expert_routes", "gemm_trace")


def check(files: dict[str, bytes]) -> VerificationReport:
    return verify_set(files, TRUST, now=NOW, key=AUDIT_KEY)


def without_leaf_checks(opening: bytes) -> JSONValue:
    document = parse_strict(opening, max_bytes=1 << 20)
    assert isinstance(document, dict)
    return {**document, "leaf_checks": ""}


def spliced(whole: bytes, draw: st.DataObject) -> bytes:
    start = draw.draw(st.integers(0, len(whole)))
    end = draw.draw(st.integers(start, len(whole)))
    return whole[:start] + draw.draw(st.binary(max_size=8)) + whole[end:]


@settings(deadline=None)
@given(KINDS, st.binary(max_size=200) | JSON_SCRAPS)
def test_a_replaced_member_is_refused(kind: MemberKind, data: bytes) -> None:
    failure = check(FORGER.with_member(kind, data)).failure
    assert failure is not None
    assert failure.number == (12 if kind is ENVELOPES else 1)


@settings(deadline=None)
@given(KINDS, st.data())
def test_a_spliced_member_is_refused(kind: MemberKind, draw: st.DataObject) -> None:
    whole = FORGER.data(kind)
    forged = spliced(whole, draw)
    report = check(FORGER.with_member(kind, forged))
    if forged == whole:
        assert report.verified
    elif kind is not ENVELOPES:  # a key id decides nothing, and may be anything
        assert not report.verified
        if kind in (RECEIPT, TELEMETRY, BUNDLE):
            assert report.failure is not None
            assert report.failure.number == 1


@settings(deadline=None)
@given(st.sampled_from(PUBLIC_SECTIONS + PRIVATE_SECTIONS), st.data())
def test_a_spliced_section_of_a_bundle_sealed_again_is_refused(
    name: str, draw: st.DataObject
) -> None:
    """The attacker has the audit key: what is decoded after the bundle is open is hostile too."""
    part = TRACED.public if name in PUBLIC_SECTIONS else TRACED.private
    whole = getattr(part, name)
    forged = spliced(whole, draw)
    if name in PUBLIC_SECTIONS:
        bundle = TRACED.sealed(public=edited(TRACED.public, name, forged))
    else:
        bundle = TRACED.sealed(edited(TRACED.private, name, forged))
    report = check(TRACED.with_bundle(bundle))
    if forged == whole:
        assert report.verified
    elif report.verified:  # leaf checks are bound by their length only
        assert name == "opening"
        assert without_leaf_checks(forged) == without_leaf_checks(whole)
    else:
        assert report.failure is not None
        assert report.failure.number in (1, 3, 5, 6, 9, 10, 11)


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_a_private_part_of_any_bytes_is_refused(data: bytes) -> None:
    failure = check(FORGER.with_bundle(FORGER.sealed(data))).failure
    assert failure is not None
    assert failure.number == 1


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_readers_raise_their_own_error(data: bytes) -> None:
    for reader in (parse_log, inspect_receipt):
        try:
            reader(data)
        except EvidenceError:
            continue
        raise AssertionError("random bytes were accepted")
