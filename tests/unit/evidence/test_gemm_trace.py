"""Traces: one group for each product, at its place, and nothing else."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.canonical.hashing import domain_hash
from tallystick.errors import EvidenceError
from tallystick.evidence.gemm_trace import (
    GROUP_BYTES,
    TRACE_SCHEME_LIVE,
    TRACE_SCHEME_SEALING,
    GemmTrace,
    check_trace,
    decode_trace,
    encode_trace,
    gemm_root,
    make_trace,
)
from tallystick.evidence.observed import ObservedEvidence, decode_observed, encode_observed
from tallystick.evidence.observer.sketch import lanes as lanes_of
from tallystick.evidence.schedule import OperationSchedule
from tests.support.evidence import BLIND, live, schedules, sealed, trace_of


def groups(*pairs: tuple[int, bytes]) -> bytes:
    return b"".join(struct.pack("<I32s", place, sketch) for place, sketch in pairs)


def test_a_group_is_a_place_and_a_sketch() -> None:
    schedule = live(1, 1)
    sketches = [b"\x80" + bytes(31), b"\x70" + bytes(31)]
    trace = make_trace(schedule, sketches)

    assert trace.groups == groups((1, sketches[0]), (3, sketches[1]))
    assert trace.scheme == TRACE_SCHEME_LIVE != TRACE_SCHEME_SEALING
    assert trace.lanes(1) == lanes_of(sketches[1].hex())
    assert encode_trace(trace) == trace.scheme + b"\2\0\0\0" + trace.groups
    assert gemm_root(BLIND, trace) == domain_hash(
        "palw.gemm-trace", 1, [BLIND, trace.scheme, trace.groups]
    )
    assert gemm_root(BLIND[::-1], trace) != gemm_root(BLIND, trace)


def test_the_two_schemes_are_told_apart() -> None:
    sealing = trace_of(sealed(3))
    assert sealing.scheme == TRACE_SCHEME_SEALING
    with pytest.raises(EvidenceError, match="scheme is not that"):
        check_trace(GemmTrace(TRACE_SCHEME_LIVE, sealing.groups), sealed(3))


@given(schedules())
def test_round_trip(schedule: OperationSchedule) -> None:
    trace = make_trace(schedule, [bytes(32)] * schedule.gemms)
    check_trace(trace, schedule)
    assert decode_trace(encode_trace(trace)) == trace
    for observed in (ObservedEvidence(schedule, None), ObservedEvidence(schedule, trace)):
        assert decode_observed(encode_observed(observed)) == observed
    assert ObservedEvidence(schedule, None).trace_events == 0
    assert ObservedEvidence(schedule, trace).trace_events == schedule.gemms


def test_every_changed_byte_of_evidence_is_refused_or_changes_a_commitment() -> None:
    observed = ObservedEvidence(live(2, 2), trace_of(live(2, 2)))
    data = encode_observed(observed)

    def commitments(evidence: ObservedEvidence) -> tuple[bytes, bytes | None]:
        root = None if evidence.trace is None else gemm_root(BLIND, evidence.trace)
        return evidence.schedule.commitment(bytes(32)), root

    refused = 0
    for place in range(len(data)):
        for change in (1, 0x80, 0xFF):
            edited = bytearray(data)
            edited[place] ^= change
            try:
                other = decode_observed(bytes(edited))
            except EvidenceError:
                refused += 1
                continue
            assert commitments(other) != commitments(observed)
    assert refused > len(data)
    for length in range(len(data)):
        with pytest.raises(EvidenceError):
            decode_observed(data[:length])


@pytest.mark.parametrize(
    ("scheme", "blob", "message"),
    [
        (bytes(32), groups((1, bytes(32))), "unknown scheme"),
        (TRACE_SCHEME_LIVE, bytes(GROUP_BYTES - 1), "whole groups"),
        (TRACE_SCHEME_LIVE, groups((1, bytes(32)), (1, bytes(32))), "out of order"),
        (TRACE_SCHEME_LIVE, groups((2, bytes(32)), (1, bytes(32))), "out of order"),
    ],
)
def test_what_no_trace_is(scheme: bytes, blob: bytes, message: str) -> None:
    with pytest.raises(EvidenceError, match=message):
        GemmTrace(scheme, blob)


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ((1,), "another number"),
        ((1, 3, 4), "another number"),
        ((0, 3), "bound to another operation"),
        ((1, 2), "bound to another operation"),
    ],
)
def test_a_trace_of_another_schedule(places: tuple[int, ...], message: str) -> None:
    trace = GemmTrace(TRACE_SCHEME_LIVE, groups(*[(place, bytes(32)) for place in places]))
    with pytest.raises(EvidenceError, match=message):
        check_trace(trace, live(1, 1))
    with pytest.raises(EvidenceError, match=message):
        ObservedEvidence(live(1, 1), trace)


@pytest.mark.parametrize("sketches", [[], [bytes(32)], [bytes(32)] * 3, [bytes(32), bytes(31)]])
def test_each_product_has_one_sketch(sketches: list[bytes]) -> None:
    with pytest.raises(EvidenceError, match="not every matrix product"):
        make_trace(live(1, 1), sketches)


@given(st.integers(0, 63))
def test_a_digit_of_an_element_that_does_not_exist(digit: int) -> None:
    """The second product has one element, so one digit."""
    text = "0" * digit + "1" + "0" * (63 - digit)
    trace = make_trace(live(1, 1), [bytes.fromhex(text)] * 2)
    if digit == 0:
        check_trace(trace, live(1, 1))
    else:
        with pytest.raises(EvidenceError, match="do not exist"):
            check_trace(trace, live(1, 1))


def test_each_sketch_is_held_to_its_own_product() -> None:
    full, one = b"\xff" * 32, b"\xf0" + bytes(31)
    check_trace(make_trace(live(2, 1), [full, one, full, one]), live(2, 1))
    with pytest.raises(EvidenceError, match="do not exist"):
        check_trace(make_trace(live(2, 1), [one, one, one, full]), live(2, 1))


def test_a_flag_that_is_none() -> None:
    data = bytearray(encode_observed(ObservedEvidence(live(1, 1), None)))
    assert data[-1] == 0
    data[-1] = 2
    with pytest.raises(EvidenceError, match="not a flag"):
        decode_observed(bytes(data))


def test_nothing_private_is_shown() -> None:
    trace = trace_of(live(1, 1))
    observed = ObservedEvidence(live(1, 1), trace)
    assert "groups" not in repr(trace)
    assert "trace" not in repr(observed)
