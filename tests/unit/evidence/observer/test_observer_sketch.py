"""The sketch: bits only, and the same as arithmetic on the values."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.errors import EvidenceError, RunFailedError
from tallystick.evidence.observer.sketch import lanes, sketch, sketch_batch, sketch_bytes
from tests.golden import reference_observer as reference

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(FINITE, min_size=1, max_size=64))
def test_it_is_what_arithmetic_says(values: list[float]) -> None:
    data = struct.pack(f"<{len(values)}f", *values)
    assert sketch(data) == reference.sketch(data)
    assert list(lanes(sketch(data))) == reference.lanes(sketch(data))


@pytest.mark.parametrize("low", [0x0000, 0x0001])
def test_every_sign_and_exponent_is_what_arithmetic_says(low: int) -> None:
    """All upper halves of a float32; the quick way must not differ from the plain one anywhere."""
    for start in range(0, 1 << 16, 64):
        tops = [top for top in range(start, start + 64) if top & 0x7F80 != 0x7F80]
        if tops:
            data = struct.pack(f"<{len(tops)}I", *[top << 16 | low for top in tops])
            assert sketch(data) == reference.sketch(data)


@pytest.mark.parametrize("bits", [0x7F800000, 0xFF800000, 0x7FC00000, 0xFFFFFFFF, 0x7F800001])
@pytest.mark.parametrize("count", [1, 63, 64])
def test_a_value_that_is_not_finite(bits: int, count: int) -> None:
    data = struct.pack(f"<{count - 1}f", *[1.0] * (count - 1)) + struct.pack("<I", bits)
    for attempt in (sketch, sketch_bytes, lambda one: sketch_batch([one])):
        with pytest.raises(RunFailedError, match="not finite"):
            attempt(data)


@given(st.lists(st.lists(FINITE, min_size=1, max_size=64), max_size=6), st.data())
def test_a_batch_is_its_parts(batch: list[list[float]], draw: st.DataObject) -> None:
    wide = draw.draw(st.integers(0, 6))  # most products are wider than a sketch
    values = [one * 64 if place < wide else one for place, one in enumerate(batch)]
    parts = [struct.pack(f"<{len(one[:64])}f", *one[:64]) for one in values]
    assert sketch_batch(parts) == [bytes.fromhex(reference.sketch(part)) for part in parts]


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
