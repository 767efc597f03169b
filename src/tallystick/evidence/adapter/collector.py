"""Collects evidence step by step while a run is evaluated.

The engine hands out the same object for the same node, so a node is looked at once and then known
by its identity: a step costs one dictionary lookup for each node and one sketch for each product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tallystick.errors import EvidenceError, RunFailedError
from tallystick.evidence.adapter.nodes import (
    ModelFigures,
    NodeLike,
    NodePlan,
    ReadingLike,
    plan_node,
)
from tallystick.evidence.gemm_trace import make_trace
from tallystick.evidence.observed import ObservedEvidence
from tallystick.evidence.observer.sketch import sketch_batch
from tallystick.evidence.routes import ExpertRoutes, RouteBuilder
from tallystick.evidence.schedule import ScheduleBuilder, SchedulePhase

_ID_BYTES = 4

#: What a collector is given of tensors: nothing, or products and chosen experts.
Readings: TypeAlias = Literal["nothing", "products"]


@dataclass(frozen=True, slots=True)
class StepInfo:
    """One evaluation. ``scratch`` is the number of padding rows at the end of its batch."""

    phase: SchedulePhase
    number: int
    first_position: int
    tokens: int
    scratch: int = 0


@dataclass(frozen=True, slots=True)
class Collected:
    """The evidence of a run; ``routes`` are None when the collector was not to gather them.

    ``nodes`` counts what was observed, layout changes included.
    """

    evidence: ObservedEvidence
    routes: ExpertRoutes | None = field(repr=False)
    nodes: int


class Collector:
    """Takes the evaluated nodes of each step in order. After one error it only raises.

    With a builder of ``routes`` the chosen experts that are read go there; else they are let pass.
    """

    def __init__(
        self, figures: ModelFigures, readings: Readings, routes: RouteBuilder | None = None
    ) -> None:
        self._figures = figures
        self._traced = readings == "products"
        self._builder = ScheduleBuilder()
        self._lanes: list[bytes] = []
        self._nodes = 0
        self._poisoned = False
        self._kept: dict[int, tuple[NodeLike, NodePlan]] = {}
        self._keys: list[int] = []
        self._graph = _graph([])
        self._routes = routes

    @property
    def nodes(self) -> int:
        """Number of nodes so far."""
        return self._nodes

    @property
    def operations(self) -> int:
        """Number of canonical operations so far."""
        return self._builder.events

    def plan(self, node: NodeLike) -> NodePlan:
        """Return the plan of ``node``. Raises EvidenceError as ``plan_node`` does."""
        with _Poisoning(self):
            return plan_node(node, self._figures, self._builder)

    def step(self, info: StepInfo, readings: Sequence[ReadingLike]) -> None:
        """Take one evaluation.

        Raises EvidenceError for a node without a meaning, for a step out of order, and for more
        than ``MAX_EVENTS`` operations; RunFailedError when something was read that should not be
        or the other way round, and for a product that is not finite.
        """
        with _Poisoning(self):
            nodes = [reading.node for reading in readings]
            keys = [*map(id, nodes)]
            if keys != self._keys:  # graphs hardly change from step to step
                self._graph = _graph(list(map(self._known, nodes)))
                self._keys = keys
            data = [reading.data for reading in readings]
            self._take(info, self._graph, *self._read(self._graph, data))

    def step_of(
        self,
        info: StepInfo,
        plans: Sequence[NodePlan],
        lanes: Sequence[bytes],
        routes: Sequence[tuple[int, bytes]],
    ) -> None:
        """Take one evaluation whose products are sketched already.

        ``lanes`` are 32 bytes for each product, ``routes`` layer and ids (32-bit little-endian) of
        each choice of experts, in order. Raises EvidenceError as :meth:`step` does.
        """
        with _Poisoning(self):
            self._take(info, _graph(plans), lanes, routes)

    def finish(self) -> Collected:
        """Return the evidence of all steps. Raises EvidenceError when there was none."""
        with _Poisoning(self):
            schedule = self._builder.finish()
            trace = make_trace(schedule, self._lanes) if self._traced else None
            routes = None if self._routes is None else self._routes.finish()
            return Collected(ObservedEvidence(schedule, trace), routes, self._nodes)

    def _known(self, node: NodeLike) -> NodePlan:
        kept = self._kept.get(id(node))
        if kept is None:  # the node is kept too, so that its identity stays its own
            kept = self._kept[id(node)] = (node, self.plan(node))
        return kept[1]

    def _read(
        self, graph: _Graph, data: Sequence[bytes | None]
    ) -> tuple[list[bytes], list[tuple[int, bytes]]]:
        """Return the sketches of the products and the chosen experts, and require no other data."""
        products = [part for place in graph.products if (part := data[place]) is not None]
        routes = [
            (layer, part) for place, layer in graph.routes if (part := data[place]) is not None
        ]
        if len(products) + len(routes) != len(data) - data.count(None):
            raise _unread("nothing but products and chosen experts")
        if products and [*map(len, products)] != graph.probes:
            raise _unread("the first elements of each product")
        return sketch_batch(products), routes

    def _take(
        self,
        info: StepInfo,
        graph: _Graph,
        lanes: Sequence[bytes],
        routes: Sequence[tuple[int, bytes]],
    ) -> None:
        products = len(graph.products) if self._traced else 0
        if len(lanes) != products:
            raise _unread(f"{products} products", str(len(lanes)))
        self._nodes += graph.nodes
        self._builder.add(info.phase, info.number, info.first_position, info.tokens, graph.entries)
        self._lanes += lanes
        if self._routes is not None:
            self._push_routes(self._routes, info, routes)

    def _push_routes(
        self, builder: RouteBuilder, info: StepInfo, routes: Sequence[tuple[int, bytes]]
    ) -> None:
        """Give the rows of the sequence to the builder, without padding and rows not due."""
        blocks = dict(routes)
        if len(blocks) != len(routes):
            raise EvidenceError("a layer chose its experts twice in one evaluation")
        last = self._figures.layers - 1
        width = self._figures.used * _ID_BYTES
        due = builder.rows_due(info.first_position, info.tokens)
        rows = []
        for layer in range(last + 1):
            block = blocks.pop(layer, b"")
            end = len(block) - info.scratch * width
            if layer < last:
                rows.append(block[: max(0, end)])
            else:  # it may have rows whose outputs nobody asked for, before those that are due
                rows.append(block[max(0, end - due * width) : max(0, end)])
        builder.push(info.first_position, info.tokens, rows)

    def poison(self) -> None:
        """Take nothing more, and drop what was collected."""
        self._poisoned = True
        self._lanes.clear()
        self._kept.clear()
        self._keys = []
        self._routes = None

    def require_sound(self) -> None:
        """Raise EvidenceError when there was an error before."""
        if self._poisoned:
            raise EvidenceError("the evidence was refused before: nothing more is taken into it")


@dataclass(frozen=True, slots=True)
class _Graph:
    """What the nodes of one evaluation mean together.

    ``products`` are their places among the nodes, ``probes`` how many bytes are read of each;
    ``routes`` are place and layer of chosen experts.
    """

    nodes: int
    entries: bytes
    products: list[int]
    probes: list[int]
    routes: list[tuple[int, int]]


def _graph(plans: Sequence[NodePlan]) -> _Graph:
    products = [place for place, plan in enumerate(plans) if plan.probe]
    return _Graph(
        nodes=len(plans),
        entries=b"".join([plan.entries for plan in plans]),
        products=products,
        probes=[plans[place].probe for place in products],
        routes=[(at, plan.route) for at, plan in enumerate(plans) if plan.route is not None],
    )


class _Poisoning:
    """Marks a collector as refused when the block raises."""

    __slots__ = ("_collector",)

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def __enter__(self) -> None:
        self._collector.require_sound()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._collector.poison()


def _unread(expected: str, found: str | None = None) -> RunFailedError:
    return RunFailedError(
        "an evaluation was not read as it should have been", expected=expected, found=found
    )
