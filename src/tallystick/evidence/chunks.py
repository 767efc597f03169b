"""How a pass over a finished run is cut into batches (docs/spec/execution.md#chunks)."""

from __future__ import annotations

from collections.abc import Iterator

from tallystick.contracts.runtime import RowClass


def chunk_sizes(count: int, row_class: RowClass) -> Iterator[int]:
    """Yield how many of ``count`` positions each batch of a pass has.

    A remainder below the floor borrows rows from the chunk before it; where the class is too
    narrow for that, each batch has one.
    """
    floor, top = row_class.floor, row_class.max_rows
    if count < floor or top < 2 * floor:
        yield from (1 for _ in range(count))
        return
    while count > top:
        size = min(top, count - floor)
        yield size
        count -= size
    yield count
