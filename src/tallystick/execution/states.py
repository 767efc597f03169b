"""Turn what the tap saw of one batch into rows of the state tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tallystick.engine.port import Context, Rows, Tap
from tallystick.errors import IncomparableError, RunFailedError
from tallystick.evidence.state_tree import StateTree, row_digests
from tallystick.execution.schedule import Chunk


@dataclass(frozen=True, slots=True)
class StateShape:
    """How many layers there are, and how many floats a layer row and a logits row have."""

    layers: int
    embedding: int
    vocabulary: int


class StateGatherer:
    """Feeds a `StateTree` batch by batch. Scratch rows never enter."""

    def __init__(
        self, tap: Tap, tree: StateTree, shape: StateShape, outputs_from: int
    ) -> None:
        self._tap = tap
        self._tree = tree
        self._layers = shape.layers
        self._row_bytes = 4 * shape.embedding
        self._logits_bytes = 4 * shape.vocabulary
        self._outputs_from = outputs_from

    def gather(self, context: Context, chunk: Chunk, rows: Rows) -> None:
        """Add the rows of ``chunk``, just evaluated as ``rows``."""
        blocks = layer_blocks(self._tap.take(), self._layers, len(rows.tokens), sum(rows.outputs))
        own = chunk.rows
        wanted = max(0, min(own, chunk.end - self._outputs_from))
        body = [_rows(block, 0, own, len(rows.tokens)) for block in blocks[:-1]]
        logits = [row_digests(context.logits(i), self._logits_bytes)[0]
                  for i in range(own - wanted, own)]
        self._tree.push_digests(
            chunk.first,
            own,
            [self._digests(block) for block in body],
            self._last(blocks[-1], rows, own, wanted),
            logits,
        )

    def _last(
        self, block: tuple[int, memoryview], rows: Rows, own: int, wanted: int
    ) -> list[bytes]:
        """The last layer has rows for outputs only, or (some architectures) for every row."""
        if not wanted:
            return []
        count = block[0]
        end = sum(rows.outputs[:own]) if count == sum(rows.outputs) else own
        return self._digests(_rows(block, end - wanted, end, count))

    def _digests(self, block: memoryview) -> list[bytes]:
        return row_digests(block, self._row_bytes)


def _rows(block: tuple[int, memoryview], first: int, end: int, count: int) -> memoryview:
    rows, data = block
    if rows != count:
        raise RunFailedError(
            "a layer gave another number of rows than its batch has",
            expected=str(count),
            found=str(rows),
        )
    size = len(data) // rows
    return data[first * size : end * size]


def layer_blocks(
    records: Sequence[tuple[int, int, memoryview]], layers: int, rows: int, outputs: int
) -> list[tuple[int, memoryview]]:
    """Return (rows, bytes) for layers 0..layers-1, checking that each was seen exactly once.

    The last layer runs over the output rows only and is absent when a batch has none.
    """
    seen = [layer for layer, _, _ in records]
    expected = list(range(layers if outputs else layers - 1))
    if seen[: len(expected)] != expected or len(seen) > layers:
        raise IncomparableError(
            "the engine's graph does not show one output for each layer",
            expected=f"layers 0..{layers - 1}, in order",
            found=f"{len(seen)} outputs",
            hint="this architecture's states cannot be committed to: run with --evidence none",
        )
    blocks = [(count, data) for _, count, data in records]
    if not outputs:
        blocks = [*blocks[: layers - 1], (0, memoryview(b""))]
    return blocks
