"""What a node of a graph means for the evidence; decided once for each distinct node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

from tallystick.compute.graph_ops import GraphNode, Shape, canonical_operations
from tallystick.compute.schedule import ScheduledOperation
from tallystick.errors import EvidenceError
from tallystick.evidence.observer.derive import layer_of, route_layer
from tallystick.evidence.observer.records import PRODUCT
from tallystick.evidence.observer.sketch import SKETCH_ELEMENTS
from tallystick.evidence.schedule import ScheduleBuilder, pack_indexes

_FLOAT_BYTES = 4


class SourceLike(Protocol):
    """A tensor that a node reads; ``shape`` has four extents, innermost first."""

    @property
    def shape(self) -> Sequence[int]:
        """Extents."""


class TensorLike(SourceLike, Protocol):
    """The tensor that a node makes."""

    @property
    def name(self) -> str:
        """Name, from which the layer follows."""

    @property
    def op(self) -> str:
        """Operation, by ggml's name."""

    @property
    def n_bytes(self) -> int:
        """Bytes that the tensor spans."""


class NodeLike(Protocol):
    """A node: the engine's, or an event of a transcript."""

    @property
    def tensor(self) -> TensorLike:
        """What it makes."""

    @property
    def sources(self) -> Sequence[SourceLike]:
        """What it reads."""


class ReadingLike(Protocol):
    """An evaluated node and what was read of it."""

    @property
    def node(self) -> NodeLike:
        """The node; the same object for the same node."""

    @property
    def data(self) -> bytes | None:
        """First floats of a product, or all ids of chosen experts; else None."""


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """What the adapter has to know of a model; ``experts`` and ``used`` are 0 for a dense one."""

    layers: int
    experts: int
    used: int


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What to do with a node whenever it comes up.

    ``entries`` are the places of its operations in the schedule's table, u32 little-endian.
    ``probe`` is the number of bytes that are read of a product, 0 for other nodes. ``route`` is the
    layer whose chosen experts it holds.
    """

    entries: bytes
    probe: int
    route: int | None


def plan_node(node: NodeLike, figures: ModelFigures, builder: ScheduleBuilder) -> NodePlan:
    """Return the plan of ``node``; its operations are put into the schedule's table.

    Raises EvidenceError for a node that has no canonical operation, whose shapes contradict each
    other, or that belongs to no layer of the model.
    """
    tensor = node.tensor
    shape = _shape(tensor.shape)
    sources = tuple(_shape(source.shape) for source in node.sources)
    layer = layer_of(tensor.name)
    if layer is not None and layer >= figures.layers:
        raise EvidenceError(
            "a graph node belongs to a layer that the model does not have",
            expected=f"layers 0..{figures.layers - 1}",
            found=f"layer {layer}",
        )
    stage = 0 if layer is None else layer + 1
    graph_node = GraphNode(tensor.op, shape, tensor.n_bytes, sources)
    operations = canonical_operations(graph_node, experts_used=figures.used)
    places = [builder.place(ScheduledOperation(stage, x)) for x in operations]
    probe = 0
    if tensor.op == PRODUCT:
        probe = _FLOAT_BYTES * min(SKETCH_ELEMENTS, prod(shape))
    route = route_layer(tensor.name)
    if route is not None:
        _check_route(shape, sources, figures)
    return NodePlan(pack_indexes(places), probe, route)


def _shape(extents: Sequence[int]) -> Shape:
    if len(extents) != 4:
        raise EvidenceError(
            "a shape does not have four extents", expected="4", found=str(len(extents))
        )
    a, b, c, d = extents
    return a, b, c, d


def _check_route(shape: Shape, sources: tuple[Shape, ...], figures: ModelFigures) -> None:
    found = (shape[0], sources[0][0] if sources else 0)
    if found != (figures.used, figures.experts):
        raise EvidenceError(
            "a graph chooses other experts than the model has",
            expected=f"{figures.used} of {figures.experts}",
            found="{} of {}".format(*found),
        )
