"""What is refused says what was expected and what was found, in public values and counts."""

from __future__ import annotations

import pytest

from tallystick.errors import EvidenceError
from tallystick.evidence.gemm_trace import TRACE_SCHEME_LIVE, TRACE_SCHEME_SEALING, GemmTrace
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
