"""Which rows share a batch: the whole reason why a batched pass can equal a decode bit for bit.

Every row's bits depend only on the row class of its batch. So no batch is ever below the floor
of the class, and neither are its output rows (docs/how-it-works.md). Two kinds of batch exist:

* a chunk of ``floor``..``max_rows`` rows of the sequence itself;
* one row of the sequence and ``floor - 1`` scratch rows, each in a sequence of its own, because
  recurrent models split a batch so that all sequences in a part have equally many rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tallystick.contracts.runtime import RowClass
from tallystick.engine.port import Rows
from tallystick.evidence.chunks import chunk_sizes

#: No class has a higher floor: a step of a generation is padded to it, scratch row by scratch row.
MAX_FLOOR: Final = 16
_CELL_STEP = 256


@dataclass(frozen=True, slots=True)
class Chunk:
    """Positions ``first``..``end - 1`` of the sequence, evaluated in one batch."""

    first: int
    end: int

    @property
    def rows(self) -> int:
        """Number of rows of the sequence itself."""
        return self.end - self.first


def chunks(count: int, row_class: RowClass) -> Iterator[Chunk]:
    """Split ``count`` positions into batches, each within the class or a single padded row."""
    first = 0
    for size in chunk_sizes(count, row_class):
        yield Chunk(first, first + size)
        first += size


def scratch_rows(rows: int, row_class: RowClass) -> int:
    """Return how many scratch rows a batch with ``rows`` rows of the sequence needs."""
    return max(0, row_class.floor - rows)


def batch(tokens: Sequence[int], chunk: Chunk, outputs_from: int, row_class: RowClass) -> Rows:
    """Return the rows to evaluate for ``chunk``; ``tokens`` are those of the chunk alone.

    Rows at positions >= ``outputs_from`` have outputs; when a chunk has fewer such rows than the
    floor, the rows before them (or the scratch rows) are asked for too and ignored.
    """
    n = chunk.rows
    pad = scratch_rows(n, row_class)
    wanted = max(0, min(n, chunk.end - outputs_from))
    asked = max(wanted, min(n, row_class.floor)) if wanted else 0
    return Rows(
        tokens=(*tokens, *(0,) * pad),
        positions=(*range(chunk.first, chunk.end), *(0,) * pad),
        sequences=(*(0,) * n, *range(1, pad + 1)),
        outputs=(*(False,) * (n - asked), *(True,) * asked, *(bool(wanted),) * pad),
    )


def context_cells(prompt: int, limit: int, row_class: RowClass) -> int:
    """Return the KV cells that a run opens: a pure function of the request, so part of the class.

    (Some rope scalings pick their factors by the size of the context.)
    """
    need = prompt + limit + row_class.floor - 1
    return -(-need // _CELL_STEP) * _CELL_STEP
