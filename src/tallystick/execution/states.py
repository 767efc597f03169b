"""Turn the observed rows of one batch into rows of the state tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tallystick.engine.port import LayerRows, ObservedContext, Rows
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
        self, context: ObservedContext, tree: StateTree, shape: StateShape, outputs_from: int
    ) -> None:
        self._context = context
        self._tree = tree
        self._layers = shape.layers
        self._row_bytes = 4 * shape.embedding
        self._logits_bytes = 4 * shape.vocabulary
        self._outputs_from = outputs_from

    def gather(self, chunk: Chunk, rows: Rows) -> None:
        """Add the rows of ``chunk``, just evaluated as ``rows``."""
        context = self._context
        count = len(rows.tokens)
        blocks = layer_blocks(context.observation().layers, self._layers, sum(rows.outputs))
        own = chunk.rows
        wanted = max(0, min(own, chunk.end - self._outputs_from))
        body = [_rows(block, 0, own, count) for block in blocks[:-1]]
        logits = [
            row_digests(context.logits(i), self._logits_bytes)[0] for i in range(own - wanted, own)
        ]
        self._tree.push_digests(
            chunk.first,
            own,
            [self._digests(block) for block in body],
            self._last(blocks[-1], rows, own, wanted),
            logits,
        )

    def _last(self, block: LayerRows, rows: Rows, own: int, wanted: int) -> list[bytes]:
        """The last layer has rows for outputs only, or (some architectures) for every row."""
        if not wanted:
            return []
        asked = sum(rows.outputs)
        if block.rows == asked:
            end = sum(rows.outputs[:own])
            return self._digests(_rows(block, end - wanted, end, asked))
        return self._digests(_rows(block, own - wanted, own, len(rows.tokens)))

    def _digests(self, block: memoryview) -> list[bytes]:
        return row_digests(block, self._row_bytes)


def _rows(block: LayerRows, first: int, end: int, count: int) -> memoryview:
    if block.rows != count:
        raise RunFailedError(
            "a layer gave another number of rows than its batch has",
            expected=str(count),
            found=str(block.rows),
        )
    size = len(block.data) // count
    return block.data[first * size : end * size]


def layer_blocks(records: Sequence[LayerRows], layers: int, outputs: int) -> list[LayerRows]:
    """Return the blocks of layers 0..layers-1, checking that each was seen once and in order.

    The last layer runs over the output rows only; of a batch with none its block is empty.
    """
    seen = [record.layer for record in records]
    expected = list(range(layers))
    if not outputs and seen == expected[:-1]:
        return [*records, LayerRows(layers - 1, 0, memoryview(b""))]
    if seen != expected:
        raise IncomparableError(
            "the engine's graph does not show one output for each layer of this architecture",
            expected=f"layers 0 to {layers - 1}, in order",
            found=f"{len(seen)} outputs",
            hint="the states of this model cannot be committed to",
        )
    return list(records)
