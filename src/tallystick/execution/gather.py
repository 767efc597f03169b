"""Turn what was watched of a batch into evidence of the run's own rows; scratch rows never enter.

Nothing is left out unnoticed: a layer, a row or a product that is missing is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from tallystick.contracts.runtime import SEQUENTIAL
from tallystick.engine.port import LayerRows, Model, NodeReading, Observation, RouteRows, Rows
from tallystick.errors import EvidenceError, IncomparableError, RunFailedError
from tallystick.evidence.adapter.collector import Collector, StepInfo
from tallystick.evidence.adapter.nodes import ModelFigures
from tallystick.evidence.routes import RouteBuilder
from tallystick.evidence.schedule import SchedulePhase
from tallystick.evidence.state_tree import StateTree, row_digests
from tallystick.execution.evidence import Evidence, as_failed_run
from tallystick.execution.schedule import Chunk

Logits = Callable[[int], memoryview]


class Gatherer:
    """Feeds an `Evidence` of one sequence, batch by batch."""

    def __init__(self, evidence: Evidence, model: Model, outputs_from: int, policy: str) -> None:
        self._evidence = evidence
        self._sequential = policy == SEQUENTIAL
        self._steps = 0
        self._layers = model.layers
        self._row_bytes = 4 * model.embedding
        self._logits_bytes = 4 * model.vocabulary
        self._outputs_from = outputs_from

    def gather(self, seen: Observation, logits: Logits, chunk: Chunk, rows: Rows) -> None:
        """Take what was ``seen`` of ``chunk``, evaluated as ``rows``.

        Raises IncomparableError for a graph that does not show what is gathered or has operations
        without a canonical one, RunFailedError for numbers of rows that cannot be.
        """
        if self._evidence.tree is not None:
            self._states(self._evidence.tree, seen.layers, logits, chunk, rows)
        if self._evidence.routes is not None:
            self._routes(self._evidence.routes, seen.routes, chunk, rows)
        if self._evidence.graph is not None:
            nodes = _given(seen.nodes, self._evidence.reads)
            self._graph(self._evidence.graph, nodes, chunk, rows)
        sink = self._evidence.sink
        if sink is not None:
            sink.step(self._step(chunk, rows), _given(seen.nodes, sink.reads))
        self._steps += 1

    def _graph(
        self, graph: Collector, nodes: Sequence[NodeReading], chunk: Chunk, rows: Rows
    ) -> None:
        try:
            graph.step(self._step(chunk, rows), nodes)
        except EvidenceError as error:
            raise IncomparableError(
                f"the engine's graph is none that evidence is defined for: {error.message}",
                expected=error.expected,
                found=error.found,
                hint="ask for no other evidence than states",
            ) from None

    def _step(self, chunk: Chunk, rows: Rows) -> StepInfo:
        scratch = len(rows.tokens) - chunk.rows
        prompt = self._outputs_from + 1
        if not self._sequential:
            phase, number = SchedulePhase.SEALING, self._steps
        elif chunk.first < prompt:
            phase, number = SchedulePhase.PREFILL, chunk.first
        else:
            phase, number = SchedulePhase.DECODE, chunk.first - prompt
        return StepInfo(phase, number, chunk.first, chunk.rows, scratch)

    def _states(
        self,
        tree: StateTree,
        records: Sequence[LayerRows],
        logits: Logits,
        chunk: Chunk,
        rows: Rows,
    ) -> None:
        own, count = chunk.rows, len(rows.tokens)
        blocks = layer_blocks(records, self._layers, sum(rows.outputs))
        wanted = max(0, min(own, chunk.end - self._outputs_from))
        tree.push_digests(
            chunk.first,
            own,
            [self._digests(_rows(block, 0, own, count)) for block in blocks[:-1]],
            self._digests(_last_rows(blocks[-1], rows, own, wanted)),
            [row_digests(logits(i), self._logits_bytes)[0] for i in range(own - wanted, own)],
        )

    def _digests(self, block: memoryview) -> list[bytes]:
        return row_digests(block, self._row_bytes)

    def _routes(
        self, builder: RouteBuilder, records: Sequence[RouteRows], chunk: Chunk, rows: Rows
    ) -> None:
        own, count = chunk.rows, len(rows.tokens)
        blocks = route_blocks(records, self._layers, sum(rows.outputs), self._evidence.experts)
        due = builder.rows_due(chunk.first, own)
        layers = [_rows(block, 0, own, count) for block in blocks[:-1]]
        with as_failed_run():
            builder.push(chunk.first, own, [*layers, _last_rows(blocks[-1], rows, own, due)])


def _given(
    nodes: Sequence[NodeReading], reads: Literal["nodes", "products"]
) -> Sequence[NodeReading]:
    """Return ``nodes`` without what was read of them for somebody else."""
    if reads == "products" or all(reading.data is None for reading in nodes):
        return nodes
    return [NodeReading(reading.node, None) for reading in nodes]


def _last_rows(block: LayerRows | RouteRows, rows: Rows, own: int, wanted: int) -> memoryview:
    """The last ``wanted`` own rows of the last layer.

    It has rows for outputs only, or (some architectures) for every row.
    """
    if not wanted:
        return memoryview(b"")
    asked = sum(rows.outputs)
    if block.rows == asked:
        end = sum(rows.outputs[:own])
        return _rows(block, end - wanted, end, asked)
    return _rows(block, own - wanted, own, len(rows.tokens))


def _rows(block: LayerRows | RouteRows, first: int, end: int, count: int) -> memoryview:
    if block.rows != count:
        raise RunFailedError(
            "a layer gave another number of rows than its batch has",
            expected=str(count),
            found=str(block.rows),
        )
    data = block.data.cast("B") if block.data.format != "B" else block.data
    size = len(data) // count
    return data[first * size : end * size]


def layer_blocks(records: Sequence[LayerRows], layers: int, outputs: int) -> list[LayerRows]:
    """Return the blocks of layers 0..layers-1, checking that each was seen once and in order.

    The last layer runs over the output rows only; of a batch with none its block is empty.
    """
    seen = [record.layer for record in records]
    if not outputs and seen == [*range(layers - 1)]:
        return [*records, LayerRows(layers - 1, 0, memoryview(b""))]
    if seen != [*range(layers)]:
        raise IncomparableError(
            "the engine's graph does not show one output for each layer of this architecture",
            expected=f"layers 0 to {layers - 1}, in order",
            found=f"{len(seen)} outputs",
            hint="the states of this model cannot be committed to",
        )
    return list(records)


def route_blocks(
    records: Sequence[RouteRows], layers: int, outputs: int, experts: ModelFigures | None
) -> list[RouteRows]:
    """Return the blocks of layers 0..layers-1, like :func:`layer_blocks`, of these ``experts``."""
    assert experts is not None
    seen = [(record.layer, record.experts, record.used) for record in records]
    expected = [(layer, experts.experts, experts.used) for layer in range(layers)]
    if not outputs and seen == expected[:-1]:
        last = RouteRows(layers - 1, 0, experts.used, experts.experts, memoryview(b""))
        return [*records, last]
    if seen != expected:
        raise IncomparableError(
            "the engine's graph does not show the chosen experts of each layer",
            expected=f"{experts.used} of {experts.experts} experts in layers 0 to {layers - 1}",
            found=f"{len(seen)} choices",
            hint="the expert routes of this model cannot be committed to",
        )
    return list(records)
