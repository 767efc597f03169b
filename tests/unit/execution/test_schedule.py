"""The schedule: every position once and in order, and no batch outside its row class."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.contracts.runtime import RowClass
from tallystick.execution.schedule import (
    Chunk,
    batch,
    chunks,
    context_cells,
    scratch_rows,
)


@st.composite
def row_classes(draw: st.DrawFn) -> RowClass:
    floor = draw(st.integers(1, 20))
    return RowClass(floor, draw(st.integers(floor, 6 * floor + 3)))


COUNTS = st.integers(0, 200)


def sizes(count: int, floor: int, top: int) -> list[int]:
    return [chunk.rows for chunk in chunks(count, RowClass(floor, top))]


@settings(deadline=None)
@given(COUNTS, row_classes())
def test_every_position_is_evaluated_once_and_in_order(count: int, row_class: RowClass) -> None:
    found = [p for chunk in chunks(count, row_class) for p in range(chunk.first, chunk.end)]

    assert found == list(range(count))


@settings(deadline=None)
@given(COUNTS, row_classes(), st.integers(0, 200))
def test_every_batch_is_within_its_class(
    count: int, row_class: RowClass, outputs_from: int
) -> None:
    for chunk in chunks(count, row_class):
        rows = batch(range(chunk.first, chunk.end), chunk, outputs_from, row_class)
        own = chunk.rows

        assert row_class.floor <= len(rows.tokens) <= row_class.max_rows
        # A chunk of the sequence itself, or one row of it: never a few rows beside scratch rows.
        assert own == 1 or own == len(rows.tokens)
        assert rows.tokens[:own] == tuple(range(chunk.first, chunk.end))
        assert rows.positions[:own] == tuple(range(chunk.first, chunk.end))
        assert set(rows.sequences[:own]) == {0}
        # Each scratch row is a sequence of its own that a context of `floor` sequences has.
        assert rows.sequences[own:] == tuple(range(1, len(rows.tokens) - own + 1))
        assert len(rows.tokens) - own == scratch_rows(own, row_class) < row_class.floor
        assert set(rows.positions[own:]) <= {0}


@settings(deadline=None)
@given(COUNTS, row_classes(), st.integers(0, 200))
def test_output_rows_are_never_below_the_floor_when_any_is_wanted(
    count: int, row_class: RowClass, outputs_from: int
) -> None:
    for chunk in chunks(count, row_class):
        rows = batch(range(chunk.first, chunk.end), chunk, outputs_from, row_class)
        wanted = [p for p in range(chunk.first, chunk.end) if p >= outputs_from]

        assert len(rows.outputs) == len(rows.tokens)
        if not wanted:
            assert not any(rows.outputs)
            continue
        asked = sum(rows.outputs)
        assert asked >= row_class.floor
        assert all(rows.outputs[p - chunk.first] for p in wanted)
        # No more than needed: the head is the largest product of a small model.
        assert asked == max(len(wanted), row_class.floor)


@pytest.mark.parametrize(
    ("count", "floor", "top", "expected"),
    [
        (0, 2, 8, []),
        (1, 2, 8, [1]),  # below the floor: padded
        (2, 2, 8, [2]),  # the floor itself
        (8, 2, 8, [8]),
        (9, 2, 8, [7, 2]),  # the remainder borrows
        (10, 2, 8, [8, 2]),
        (17, 2, 8, [8, 7, 2]),
        (7, 8, 64, [1] * 7),
        (71, 8, 64, [63, 8]),
        (65, 8, 64, [57, 8]),
        (72, 8, 64, [64, 8]),
        (9, 4, 8, [5, 4]),  # the floor is half of the largest
        (12, 4, 8, [8, 4]),
        (11, 4, 8, [7, 4]),
        (3, 1, 1, [1, 1, 1]),
        (5, 1, 2, [2, 2, 1]),
        (4, 2, 2, [1] * 4),  # too narrow to borrow: three rows could not be split
        (5, 3, 4, [1] * 5),
        (4, 3, 5, [1] * 4),
    ],
)
def test_chunk_sizes(count: int, floor: int, top: int, expected: list[int]) -> None:
    assert sizes(count, floor, top) == expected


@settings(deadline=None)
@given(COUNTS, row_classes())
def test_no_more_batches_than_needed(count: int, row_class: RowClass) -> None:
    floor, top = row_class.floor, row_class.max_rows
    if count >= floor and top >= 2 * floor:
        assert len(list(chunks(count, row_class))) == -(-count // top)


def test_the_rows_of_a_padded_step() -> None:
    rows = batch((42,), Chunk(7, 8), 5, RowClass(3, 8))

    assert rows.tokens == (42, 0, 0)
    assert rows.positions == (7, 0, 0)
    assert rows.sequences == (0, 1, 2)
    assert rows.outputs == (True, True, True)


def test_the_rows_of_the_last_prompt_chunk() -> None:
    rows = batch((1, 2, 3, 4, 5), Chunk(3, 8), 7, RowClass(3, 8))

    assert rows.sequences == (0,) * 5
    assert rows.outputs == (False, False, True, True, True)


@pytest.mark.parametrize(
    ("prompt", "limit", "floor", "cells"),
    [(1, 1, 1, 256), (200, 56, 1, 256), (200, 56, 2, 512), (200, 57, 1, 512), (249, 1, 8, 512)],
)
def test_context_cells(prompt: int, limit: int, floor: int, cells: int) -> None:
    assert context_cells(prompt, limit, RowClass(floor, 512)) == cells


@settings(deadline=None)
@given(st.integers(1, 5000), st.integers(1, 1024), row_classes())
def test_a_context_holds_the_run_and_its_scratch_rows(
    prompt: int, limit: int, row_class: RowClass
) -> None:
    cells = context_cells(prompt, limit, row_class)

    assert cells % 256 == 0
    assert 0 <= cells - (prompt + limit + row_class.floor - 1) < 256
