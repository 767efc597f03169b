"""What is refused says what was expected and what was found, in public values and counts."""

from __future__ import annotations

import pytest

from tallystick.errors import EvidenceError
from tallystick.evidence.gemm_trace import TRACE_SCHEME_LIVE, TRACE_SCHEME_SEALING, GemmTrace
from tallystick.evidence.observer.sketch import lanes
from tallystick.evidence.routes import ExpertRoutes
from tallystick.evidence.schedule import OperationSchedule, ScheduleStep
from tests.support.evidence import PREFILL


def test_schemes_are_named() -> None:
    with pytest.raises(EvidenceError) as caught:
        GemmTrace(b"x" * 32, b"")
    for scheme in (TRACE_SCHEME_LIVE, TRACE_SCHEME_SEALING):
        assert scheme.hex() in (caught.value.expected or "")
    assert caught.value.found == (b"x" * 32).hex()


def test_sizes_are_named() -> None:
    with pytest.raises(EvidenceError) as caught:
        OperationSchedule((), ())
    assert (caught.value.expected, caught.value.found) == ("1 step or more", "0")
    with pytest.raises(EvidenceError) as caught:
        OperationSchedule((), (ScheduleStep(PREFILL, 0, 0, 1, b"abc"),))
    assert (caught.value.expected, caught.value.found) == ("a multiple of 4 bytes", "3 bytes")


def test_routes_are_named_by_row_and_never_by_expert() -> None:
    def routes(*numbers: int) -> EvidenceError:
        ids = b"".join(number.to_bytes(4, "little") for number in numbers)
        with pytest.raises(EvidenceError) as caught:
            ExpertRoutes(1, 1000, 2, len(numbers) // 2, ids)
        return caught.value

    beyond, twice = routes(0, 1, 2, 3, 77_777, 5), routes(0, 1, 777, 777)
    assert (beyond.expected, beyond.found) == ("ids below 1000", "a larger one in row 2")
    assert (twice.expected, twice.found) == ("2 different ids in each row", "fewer in row 1")
    assert "777" not in str(beyond) + str(twice)


def test_sketches_are_named_by_their_length() -> None:
    for text, found in {"ab": "2 characters", "X" * 64: "64 characters, not all"}.items():
        with pytest.raises(EvidenceError) as caught:
            lanes(text)
        assert caught.value.expected == "64 lower-case hex digits"
        assert (caught.value.found or "").startswith(found)
        assert text not in str(caught.value)
