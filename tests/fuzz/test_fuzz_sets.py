"""Hostile bytes in any member: a verdict or an incomplete set, never another exception."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.errors import EvidenceError
from tallystick.receipts.inspect import inspect_receipt
from tallystick.receipts.verify import verify_set
from tallystick.telemetry.log import parse_log
from tests.support.sets import NOW, TRUST, Forger, make_set

FORGER = Forger(make_set().files())
SUFFIXES = (".geoai.json", ".telemetry.jsonl", ".intoto.jsonl", ".opening")
JSON_SCRAPS = st.sampled_from(
    [b"{}", b"[]", b"null", b'{"core":{}}', b"\xff", b'"\\ud800"', b"1e999"]
)


@settings(deadline=None)
@given(st.sampled_from(SUFFIXES), st.binary(max_size=200) | JSON_SCRAPS)
def test_a_replaced_member_is_refused(suffix: str, data: bytes) -> None:
    report = verify_set(FORGER.with_member(suffix, data), TRUST, now=NOW)
    assert report.failure is not None
    assert report.failure.number in (1, 12)


@settings(deadline=None)
@given(st.sampled_from(SUFFIXES), st.data())
def test_a_spliced_member_is_refused(suffix: str, draw: st.DataObject) -> None:
    whole = FORGER.files[FORGER.set_id + suffix]
    start = draw.draw(st.integers(0, len(whole)))
    end = draw.draw(st.integers(start, len(whole)))
    edited = whole[:start] + draw.draw(st.binary(max_size=8)) + whole[end:]
    report = verify_set(FORGER.with_member(suffix, edited), TRUST, now=NOW)
    if edited == whole:
        assert report.verified
    elif suffix == ".geoai.json" or suffix == ".telemetry.jsonl":
        assert not report.verified


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_readers_raise_their_own_error(data: bytes) -> None:
    for reader in (parse_log, inspect_receipt):
        try:
            reader(data)
        except EvidenceError:
            continue
        raise AssertionError("random bytes were accepted")
