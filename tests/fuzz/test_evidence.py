"""Hostile evidence: every decoder raises the project's error, or gives back what it was given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.errors import EvidenceError
from tallystick.evidence.adapter.offload import scan_offload
from tallystick.evidence.gemm_trace import decode_trace, encode_trace
from tallystick.evidence.observed import ObservedEvidence, decode_observed, encode_observed
from tallystick.evidence.portable import decode_portable, encode_portable
from tallystick.evidence.portable_parts import GatheredEvidence, RunNumbers, make_portable
from tallystick.evidence.routes import decode_routes, encode_routes
from tallystick.evidence.schedule import encode_schedule
from tests.support.decoding import decode_schedule
from tests.support.evidence import BLIND, HYBRID, live, routes_of, trace_of

SCHEDULE = live(5, 2)
TRACE = trace_of(SCHEDULE)
OBSERVED = ObservedEvidence(SCHEDULE, TRACE)
ROUTES = routes_of(HYBRID, 1)
PORTABLE = make_portable(
    GatheredEvidence(OBSERVED, ROUTES, b"r" * 32),
    RunNumbers(b"j" * 32, b"s" * 32, 5, 2),
    HYBRID,
    BLIND,
)
Codec = tuple[Callable[[bytes], Any], Callable[[Any], bytes], bytes]
CODECS: dict[str, Codec] = {
    "schedule": (decode_schedule, encode_schedule, encode_schedule(SCHEDULE)),
    "trace": (decode_trace, encode_trace, encode_trace(TRACE)),
    "observed": (decode_observed, encode_observed, encode_observed(OBSERVED)),
    "routes": (decode_routes, encode_routes, encode_routes(ROUTES)),
    "portable": (decode_portable, encode_portable, encode_portable(PORTABLE)),
}


def hold(name: str, data: bytes) -> None:
    """What decodes is encoded as the same bytes; anything else is an EvidenceError."""
    decode, encode, _ = CODECS[name]
    try:
        value = decode(data)
    except EvidenceError:
        return
    assert encode(value) == data


@pytest.mark.parametrize("name", CODECS)
def test_the_whole_is_accepted(name: str) -> None:
    decode, encode, data = CODECS[name]
    assert encode(decode(data)) == data


@settings(deadline=None)
@given(st.sampled_from([*CODECS]), st.binary(max_size=300))
def test_random_bytes(name: str, data: bytes) -> None:
    hold(name, data)


@settings(deadline=None)
@given(st.sampled_from([*CODECS]), st.data())
def test_spliced_bytes(name: str, draw: st.DataObject) -> None:
    data = CODECS[name][2]
    start = draw.draw(st.integers(0, len(data)))
    end = draw.draw(st.integers(start, min(len(data), start + 40)))
    hold(name, data[:start] + draw.draw(st.binary(max_size=12)) + data[end:])


@settings(deadline=None)
@given(st.sampled_from([*CODECS]), st.data())
def test_numbers_at_their_limits(name: str, draw: st.DataObject) -> None:
    data = bytearray(CODECS[name][2])
    for _ in range(draw.draw(st.integers(1, 3))):
        width = draw.draw(st.sampled_from([1, 4, 8]))
        place = draw.draw(st.integers(0, len(data) - width))
        value = draw.draw(st.sampled_from([b"\0", b"\xff", b"\x01"]))
        data[place : place + width] = value * width
    hold(name, bytes(data))


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "offloaded ",
                "offloading ",
                "0",
                "41",
                "/",
                " layers",
                " to GPU",
                "\n",
                "output layer",
            ]
        ),
        max_size=12,
    ).map("".join)
)
def test_any_log(log: str) -> None:
    try:
        found = scan_offload(log)
    except EvidenceError:
        return
    assert found.layers in (0, found.total)
