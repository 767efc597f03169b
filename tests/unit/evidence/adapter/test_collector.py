"""The collector as the engine's child uses it: readings by identity, batches with padding."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tallystick.engine.port import GraphNode, GraphTensor, NodeReading
from tallystick.errors import EvidenceError, RunFailedError, TallystickError
from tallystick.evidence import schedule
from tallystick.evidence.adapter.collector import Collector, StepInfo
from tallystick.evidence.adapter.nodes import ModelFigures
from tallystick.evidence.observer.sketch import sketch
from tallystick.evidence.routes import RouteBuilder
from tallystick.evidence.schedule import pack_indexes as ids
from tests.support.evidence import DECODE, PREFILL, SEALING

FIGURES = ModelFigures(layers=2, experts=4, used=2)
Shape = tuple[int, int, int, int]


def tensor(name: str, op: str, shape: Shape, kind: str = "f32") -> GraphTensor:
    return GraphTensor(name, op, kind, shape, 4 * shape[0] * shape[1] * shape[2] * shape[3])


def product(name: str, rows: int) -> GraphNode:
    sources = (tensor("w", "NONE", (8, 4, 1, 1), "q8_0"), tensor("x", "NONE", (8, rows, 1, 1)))
    return GraphNode(tensor(name, "MUL_MAT", (4, rows, 1, 1)), sources)


def choice(layer: int, rows: int) -> GraphNode:
    source = tensor(f"ffn_moe_argsort-{layer}", "ARGSORT", (4, rows, 1, 1), "i32")
    return GraphNode(tensor(f"ffn_moe_topk-{layer}", "VIEW", (2, rows, 1, 1), "i32"), (source,))


def layout() -> GraphNode:
    return GraphNode(tensor("q (reshaped)", "RESHAPE", (4, 1, 1, 1)), ())


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def graph(rows: int, last: int) -> list[NodeReading]:
    """Return what is read of a batch of ``rows`` rows, ``last`` of them in the last layer.

    Layer 0 chooses the experts (row, row + 1), layer 1 those two numbers the other way round.
    """
    chosen = [[row % 4, (row + 1) % 4] for row in range(rows)]
    late = [[b, a] for a, b in chosen[rows - last :]]
    return [
        NodeReading(product("Qcur-0", rows), floats(*range(1, 4 * rows + 1))[:256]),
        NodeReading(layout(), None),
        NodeReading(choice(0, rows), ids([i for row in chosen for i in row])),
        *([NodeReading(choice(1, last), ids([i for row in late for i in row]))] if last else []),
    ]


def routes(last_from: int = 0) -> RouteBuilder:
    return RouteBuilder(2, 4, 2, last_from=last_from)


def test_a_generation() -> None:
    readings = graph(1, 1)
    collector = Collector(FIGURES, "products", routes())
    collector.step(StepInfo(PREFILL, 0, 0, 1), readings)
    collector.step(StepInfo(DECODE, 0, 1, 1), readings)
    collected = collector.finish()

    made, trace = collected.evidence.schedule, collected.evidence.trace
    assert (collected.nodes, collector.nodes, collector.operations) == (8, 8, 2)
    assert (made.events, len(made.operations)) == (2, 1)
    assert made.operations[0].stage == 1
    assert trace is not None
    digits = bytes.fromhex(sketch(floats(1, 2, 3, 4)))
    assert trace.groups == b"\0\0\0\0" + digits + b"\1\0\0\0" + digits
    assert collected.routes is not None
    assert collected.routes.ids == ids([0, 1, 1, 0] * 2)


def test_nodes_are_known_by_identity_or_looked_at_again() -> None:
    same, anew = Collector(FIGURES, "products"), Collector(FIGURES, "products")
    readings = graph(1, 1)
    for number in range(3):
        same.step(StepInfo(PREFILL, number, number, 1), readings)
        anew.step(StepInfo(PREFILL, number, number, 1), graph(1, 1))
    assert same.finish() == anew.finish()


def test_a_graph_of_as_many_other_nodes_is_not_taken_for_the_one_before() -> None:
    add = GraphNode(tensor("l_out-0", "ADD", (4, 1, 1, 1)), ())
    norm = GraphNode(tensor("norm-1", "RMS_NORM", (4, 1, 1, 1)), ())
    collector = Collector(FIGURES, "nothing")
    for number, node in enumerate((add, norm, add)):
        collector.step(StepInfo(PREFILL, number, number, 1), [NodeReading(node, None)])
    made = collector.finish().evidence.schedule
    assert [step.indexes() for step in made.steps] == [(0,), (1,), (0,)]
    assert [x.stage for x in made.operations] == [1, 2]


def test_a_collector_without_routes_lets_ids_pass() -> None:
    collector = Collector(FIGURES, "products")
    collector.step(StepInfo(PREFILL, 0, 0, 1), graph(1, 1))
    assert collector.finish().routes is None


def test_a_graph_alone() -> None:
    readings = [replace(reading, data=None) for reading in graph(1, 1)]
    collector = Collector(FIGURES, "nothing")
    collector.step(StepInfo(PREFILL, 0, 0, 1), readings)
    collected = collector.finish()
    assert collected.evidence.trace is None
    assert collected.routes is None


@pytest.mark.parametrize("asked", [1, 2, 3])
def test_padding_and_rows_that_are_not_due_are_left_out(asked: int) -> None:
    """Three own rows, two of padding; the last position's row of the last layer is due."""
    collector = Collector(FIGURES, "products", routes(last_from=2))
    info = StepInfo(SEALING, 0, 0, 3, scratch=2)
    collector.step(info, graph(5, asked + 2))
    found = collector.finish()
    assert found.routes is not None
    assert found.routes.ids == ids([0, 1, 1, 2, 2, 3, 3, 2])


def test_a_chunk_without_a_due_row() -> None:
    collector = Collector(FIGURES, "products", routes(last_from=2))
    collector.step(StepInfo(SEALING, 0, 0, 2), graph(2, 0))
    collector.step(StepInfo(SEALING, 1, 2, 1), graph(1, 1))
    found = collector.finish()
    assert found.routes is not None
    assert found.routes.ids == ids([0, 1, 1, 2, 0, 1, 1, 0])


def unread(readings: Sequence[NodeReading], place: int, data: bytes | None) -> list[NodeReading]:
    return [replace(x, data=data) if i == place else x for i, x in enumerate(readings)]


WHOLE = graph(1, 1)
STRANGE = GraphNode(tensor("odd", "ADD_ID", (4, 1, 1, 1)), ())
DEEP = GraphNode(tensor("l_out-2", "ADD", (4, 1, 1, 1)), ())
WIDE = GraphNode(
    tensor("ffn_moe_topk-0", "VIEW", (3, 1, 1, 1), "i32"), (tensor("x", "ARGSORT", (4, 1, 1, 1)),)
)


@pytest.mark.parametrize(
    ("readings", "error", "message"),
    [
        (unread(WHOLE, 0, None), RunFailedError, "not read"),
        (unread(WHOLE, 0, floats(1, 2, 3)), RunFailedError, "not read"),
        (unread(WHOLE, 0, floats(1, 2, 3, float("inf"))), RunFailedError, "not finite"),
        (unread(WHOLE, 1, b"data"), RunFailedError, "not read"),
        (unread(WHOLE, 2, None), EvidenceError, "layer 0"),
        (unread(WHOLE, 2, ids([0, 4])), EvidenceError, "does not exist"),
        (unread(WHOLE, 2, ids([1, 1])), EvidenceError, "twice"),
        (WHOLE[:3], EvidenceError, "layer 1"),
        ([*WHOLE, WHOLE[2]], EvidenceError, "twice in one evaluation"),
        ([*WHOLE, NodeReading(STRANGE, None)], EvidenceError, "without a canonical one"),
        ([*WHOLE, NodeReading(DEEP, None)], EvidenceError, "layer that the model"),
        ([*WHOLE, NodeReading(WIDE, None)], EvidenceError, "other experts"),
        ([], EvidenceError, "whole entries"),
    ],
)
def test_a_collector_takes_nothing_after_an_error(
    readings: list[NodeReading], error: type[TallystickError], message: str
) -> None:
    collector = Collector(FIGURES, "products", routes())
    with pytest.raises(error, match=message):
        collector.step(StepInfo(PREFILL, 0, 0, 1), readings)
    attempts: list[Callable[[], object]] = [
        lambda: collector.step(StepInfo(PREFILL, 0, 0, 1), WHOLE),
        lambda: collector.plan(product("Qcur-0", 1)),
        lambda: collector.step_of(StepInfo(PREFILL, 0, 0, 1), [], [], []),
        collector.finish,
    ]
    for attempt in attempts:
        with pytest.raises(EvidenceError, match="refused before"):
            attempt()


def test_a_graph_of_which_something_was_read() -> None:
    collector = Collector(FIGURES, "nothing")
    with pytest.raises(RunFailedError, match="not read"):
        collector.step(StepInfo(PREFILL, 0, 0, 1), graph(1, 1))


def test_the_bound_is_on_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes of layout are not bounded here: a transcript's reader counts every node."""
    monkeypatch.setattr(schedule, "MAX_EVENTS", 2)
    collector = Collector(FIGURES, "products")
    for number in range(2):
        collector.step(StepInfo(PREFILL, number, number, 1), WHOLE)
    assert collector.operations == 2 < collector.nodes
    with pytest.raises(EvidenceError, match="too many operations"):
        collector.step(StepInfo(PREFILL, 2, 2, 1), WHOLE)
