"""The sketch: bits only, and the same as arithmetic on the values."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.errors import EvidenceError
from tallystick.evidence.observer.sketch import lanes, sketch
from tests.golden import reference_observer as reference

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(FINITE, min_size=1, max_size=64))
def test_it_is_what_arithmetic_says(values: list[float]) -> None:
    data = struct.pack(f"<{len(values)}f", *values)
    assert sketch(data) == reference.sketch(data)
    assert list(lanes(sketch(data))) == reference.lanes(sketch(data))


def test_minus_zero_keeps_its_sign_and_missing_values_are_zero() -> None:
    assert sketch(struct.pack("<3f", 0.0, -0.0, -1.0)) == "08d" + "0" * 61


@pytest.mark.parametrize("size", [0, 3, 65 * 4])
def test_another_number_of_bytes_is_a_defect_of_the_caller(size: int) -> None:
    with pytest.raises(ValueError, match="1 to 64"):
        sketch(bytes(size))


@pytest.mark.parametrize("text", ["", "0" * 63, "0" * 65, "A" * 64, "g" * 64, " " + "0" * 63])
def test_lanes_of_another_text(text: str) -> None:
    with pytest.raises(EvidenceError):
        lanes(text)
