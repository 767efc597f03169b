"""The boundary search of a calibration, on the fake engine (docs/spec/calibration.md, part 1)."""

from __future__ import annotations

import pytest

from tallystick.execution.calibrate_child import MAX_FLOOR, _floors
from tests.support.fake_engine import FakeModel


def found(floor: int, top: int = 128) -> list[int]:
    return _floors(FakeModel(floor=floor), 1, top, lambda _rows: None)


@pytest.mark.parametrize(
    ("floor", "first"), [(1, 2), (2, 2), (3, 3), (4, 4), (5, 7), (8, 8), (10, 15), (16, 16)]
)
def test_the_first_candidate_is_the_smallest_tested_size_within_the_class(
    floor: int, first: int
) -> None:
    assert found(floor)[0] == first


def test_one_row_is_never_a_class_even_where_no_trial_shows_a_difference() -> None:
    """Rounding can hide the one-row kernel from a trial: measured with Q4_0 weights."""
    assert 1 not in found(1)


@pytest.mark.parametrize("floor", [17, 100])
def test_a_class_that_begins_beyond_the_bound_is_none(floor: int) -> None:
    assert floor > MAX_FLOOR
    assert found(floor) == []


def test_a_small_context_bounds_the_floor_to_a_quarter_of_it() -> None:
    assert found(3, top=32)[0] == 3
    assert found(9, top=32) == []
