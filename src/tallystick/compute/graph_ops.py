"""Which canonical operations a node of an engine's graph is.

The table is docs/spec/compute-units.md#graph-operations. It is closed: a node that is not in it is
refused, and none becomes ``generic``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from tallystick.compute.operations import (
    Elementwise,
    ElementwiseAdd,
    ElementwiseMultiply,
    EmbeddingLookup,
    ExpertGemm,
    ExpertRoute,
    GatedDeltaNet,
    Gemm,
    KvCacheWrite,
    L2Norm,
    Operation,
    Reduction,
    RmsNorm,
    Rotary,
    Silu,
    Softmax,
    SsmConv,
    TensorCopy,
)
from tallystick.errors import EvidenceError, InputError

Shape: TypeAlias = tuple[int, int, int, int]
_VALUES: Final = 2  # place of the values among a delta net's sources: queries, keys, values


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A node as an observer sees it: shapes have the fastest extent first, 1 where unused."""

    op: str
    shape: Shape
    n_bytes: int
    sources: tuple[Shape, ...]


Conversion: TypeAlias = Callable[[GraphNode, int], tuple[Operation, ...]]


def canonical_operations(node: GraphNode, *, experts_used: int) -> tuple[Operation, ...]:
    """Return the operations that ``node`` stands for, none for a mere change of layout.

    ``experts_used`` is the model's number of experts per token, which a sorting node does not
    tell. Raises EvidenceError for a node that is not in the table, whose shapes contradict each
    other, or whose sizes no operation can hold.
    """
    if node.op in LAYOUT_OPS:
        return ()
    convert = CONVERSIONS.get(node.op)
    if convert is None:
        raise EvidenceError(
            "a graph operation without a canonical one",
            expected=f"one of {', '.join((*CONVERSIONS, *sorted(LAYOUT_OPS)))}",
            found=ascii(node.op[:40]),
        )
    try:
        return convert(node, experts_used)
    except InputError as error:  # the numbers come from evidence
        raise _misfit(node, error.expected or "sizes that fit", error.message) from None


def _misfit(node: GraphNode, expected: str, found: str) -> EvidenceError:
    return EvidenceError(
        f"the shapes of a {node.op} node do not fit together", expected=expected, found=found
    )


def _elements(shape: Shape) -> int:
    return shape[0] * _rows(shape)


def _rows(shape: Shape) -> int:
    return shape[1] * shape[2] * shape[3]


def _require_sources(node: GraphNode, number: int) -> None:
    if len(node.sources) < number:
        raise _misfit(node, f"at least {number} sources", f"{len(node.sources)}")


def _gemm(node: GraphNode, _: int) -> tuple[Operation, ...]:
    _require_sources(node, 2)
    weights, inputs = node.sources[:2]
    expected = (weights[1], inputs[1], inputs[2], inputs[3])
    if weights[0] != inputs[0] or node.shape != expected:
        raise _misfit(node, "weights k x m, inputs k x n, output m x n", str(node.shape))
    if 0 in weights or inputs[2] % weights[2] or inputs[3] % weights[3]:
        raise _misfit(node, "batches that divide", f"{inputs[2:]} and {weights[2:]}")
    return (Gemm(weights[1], inputs[1], weights[0], inputs[2] * inputs[3]),)


def _expert_gemm(node: GraphNode, _: int) -> tuple[Operation, ...]:
    _require_sources(node, 3)
    weights, inputs, ids = node.sources[:3]
    used, tokens = ids[0], ids[1]
    if weights[0] != inputs[0] or node.shape != (weights[1], used, tokens, 1):
        raise _misfit(node, "weights k x m x experts, output m x used x tokens", str(node.shape))
    if inputs[1] not in (1, used) or inputs[2:] != (tokens, 1) or used > weights[2]:
        raise _misfit(node, "inputs k x 1 or used x tokens, used within experts", str(inputs))
    return (ExpertGemm(weights[1], tokens, weights[0], weights[2], used),)


def _route(node: GraphNode, experts_used: int) -> tuple[Operation, ...]:
    experts = node.shape[0]
    if node.op == "TOP_K":
        _require_sources(node, 1)
        experts = node.sources[0][0]
        if node.shape[0] != experts_used:
            raise _misfit(node, f"{experts_used} ids a token", str(node.shape[0]))
    if experts_used > experts:
        raise _misfit(node, f"at least {experts_used} experts", str(experts))
    return (ExpertRoute(_rows(node.shape), experts, experts_used),)


def _convolution(node: GraphNode, _: int) -> tuple[Operation, ...]:
    _require_sources(node, 2)
    kernel, channels = node.sources[1][:2]
    if node.shape[0] != channels:
        raise _misfit(node, f"{channels} channels", str(node.shape[0]))
    return (SsmConv(_rows(node.shape), channels, kernel),)


def _delta_net(node: GraphNode, _: int) -> tuple[Operation, ...]:
    _require_sources(node, _VALUES + 1)
    queries, values = node.sources[0], node.sources[_VALUES]
    if queries[2:] != values[2:]:
        raise _misfit(node, "queries and values of the same tokens", f"{queries} and {values}")
    return (GatedDeltaNet(values[2] * values[3], values[1], queries[0], values[0]),)


def _reduction(node: GraphNode, _: int) -> tuple[Operation, ...]:
    _require_sources(node, 1)
    if node.shape[0] != 1 or node.shape[1:] != node.sources[0][1:]:
        raise _misfit(node, "one sum for each row", str(node.shape))
    return (Reduction(node.sources[0][0], _rows(node.shape)),)


def _glu(node: GraphNode, _: int) -> tuple[Operation, ...]:
    elements = _elements(node.shape)
    return (Silu(elements), ElementwiseMultiply(elements))


def _rotary(node: GraphNode, _: int) -> tuple[Operation, ...]:
    return (Rotary(node.shape[2] * node.shape[3], node.shape[1], node.shape[0]),)


def _per_row(kind: Callable[[int, int], Operation]) -> Conversion:
    return lambda node, _: (kind(node.shape[0], _rows(node.shape)),)


def _per_element(kind: Callable[[int], Operation]) -> Conversion:
    return lambda node, _: (kind(_elements(node.shape)),)


def _per_byte(kind: Callable[[int], Operation]) -> Conversion:
    return lambda node, _: (kind(node.n_bytes),)


LAYOUT_OPS: Final = frozenset({"VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE"})
CONVERSIONS: Final[Mapping[str, Conversion]] = MappingProxyType(
    {
        "MUL_MAT": _gemm,
        "MUL_MAT_ID": _expert_gemm,
        "ARGSORT": _route,
        "TOP_K": _route,
        "SSM_CONV": _convolution,
        "GATED_DELTA_NET": _delta_net,
        "SUM_ROWS": _reduction,
        "RMS_NORM": _per_row(RmsNorm),
        "L2_NORM": _per_row(L2Norm),
        "ROPE": _rotary,
        "SOFT_MAX": _per_element(Softmax),
        "GLU": _glu,
        "MUL": _per_element(ElementwiseMultiply),
        "ADD": _per_element(ElementwiseAdd),
        "GET_ROWS": _per_element(EmbeddingLookup),
        "SET_ROWS": _per_byte(KvCacheWrite),
        "CONT": _per_byte(TensorCopy),
        "CPY": _per_byte(TensorCopy),
        "DUP": _per_byte(TensorCopy),
        "CONCAT": _per_byte(TensorCopy),
        "UNARY": _per_element(Elementwise),
        "SCALE": _per_element(Elementwise),
        "DIV": _per_element(Elementwise),
        "CLAMP": _per_element(Elementwise),
    }
)
