"""The boundary search of a calibration, on the fake engine (docs/spec/calibration.md, part 1)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tallystick.contracts.model import ModelFacts, WeightType
from tallystick.execution.calibrate import Setting, settings_for
from tallystick.execution.calibrate_child import _floors
from tallystick.execution.knobs import KNOB_SETTINGS
from tallystick.execution.schedule import MAX_FLOOR
from tests.support.documents import example_facts
from tests.support.fake_engine import FakeModel


def found(floor: int, top: int = 128, min_floor: int = 2) -> list[int]:
    return _floors(FakeModel(floor=floor), 1, top, min_floor, lambda _rows: None)


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


def test_a_known_threshold_is_not_left_to_a_trial() -> None:
    assert found(2, min_floor=8) == [8, 9, 15, 16]


@pytest.mark.parametrize("floor", [17, 100])
def test_a_class_that_begins_beyond_the_bound_is_none(floor: int) -> None:
    assert floor > MAX_FLOOR
    assert found(floor) == []


def test_a_small_context_bounds_the_floor_to_a_quarter_of_it() -> None:
    assert found(3, top=32)[0] == 3
    assert found(9, top=32) == []


def weighted(*types: str, experts: int = 0) -> ModelFacts:
    kinds = tuple(WeightType(name, 1, 1) for name in types)
    return replace(example_facts(), weight_types=kinds, experts=experts)


def test_weights_that_never_meet_the_tiled_kernel_need_no_switch() -> None:
    assert settings_for(weighted("F32", "Q4_1", "Q8_0", experts=8)) == (Setting((), 2),)


def test_tiled_weights_start_at_eight_rows_unless_the_kernel_is_switched() -> None:
    default, off, on = settings_for(weighted("F32", "Q4_K"))
    assert default == Setting((), 8)
    assert (off, on) == (Setting(KNOB_SETTINGS[1], 2), Setting(KNOB_SETTINGS[2], 2))


def test_tiled_experts_are_never_run_as_the_engine_likes() -> None:
    """What an expert receives depends on the rest of the batch: no floor fixes it."""
    settings = settings_for(weighted("Q8_0", "IQ4_XS", experts=8))
    assert [setting.knobs for setting in settings] == list(KNOB_SETTINGS[1:])
