"""Graph nodes as canonical operations: the table, the shapes that must agree, and no way around."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.compute.graph_ops import (
    CONVERSIONS,
    LAYOUT_OPS,
    GraphNode,
    Shape,
    canonical_operations,
)
from tallystick.compute.operations import (
    Elementwise,
    ElementwiseAdd,
    ElementwiseMultiply,
    EmbeddingLookup,
    ExpertGemm,
    ExpertRoute,
    GatedDeltaNet,
    Gemm,
    Generic,
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
from tallystick.errors import EvidenceError
from tests.support.vectors import spec_vectors

BYTES = 1440
OUT: Shape = (6, 5, 4, 3)


def node(op: str, shape: Shape = OUT, *sources: Shape) -> GraphNode:
    return GraphNode(op, shape, BYTES, sources)


def mapped(op: str, shape: Shape = OUT, *sources: Shape) -> tuple[Operation, ...]:
    return canonical_operations(node(op, shape, *sources), experts_used=8)


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("RMS_NORM", (RmsNorm(6, 60),)),
        ("L2_NORM", (L2Norm(6, 60),)),
        ("ROPE", (Rotary(12, 5, 6),)),
        ("SOFT_MAX", (Softmax(360),)),
        ("GLU", (Silu(360), ElementwiseMultiply(360))),
        ("MUL", (ElementwiseMultiply(360),)),
        ("ADD", (ElementwiseAdd(360),)),
        ("GET_ROWS", (EmbeddingLookup(360),)),
        ("SET_ROWS", (KvCacheWrite(BYTES),)),
        *((op, (TensorCopy(BYTES),)) for op in ("CONT", "CPY", "DUP", "CONCAT")),
        *((op, (Elementwise(360),)) for op in ("UNARY", "SCALE", "DIV", "CLAMP")),
        *((op, ()) for op in ("VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE")),
    ],
)
def test_nodes_that_their_output_describes(op: str, expected: tuple[Operation, ...]) -> None:
    assert mapped(op) == expected


def test_products() -> None:
    assert mapped("MUL_MAT", (8, 5, 1, 1), (64, 8, 1, 1), (64, 5, 1, 1)) == (Gemm(8, 5, 64, 1),)
    grouped = mapped("MUL_MAT", (8, 5, 4, 2), (64, 8, 2, 1), (64, 5, 4, 2))
    assert grouped == (Gemm(8, 5, 64, 8),)
    weights, ids = (64, 32, 256, 1), (8, 5, 1, 1)
    for inputs in ((64, 1, 5, 1), (64, 8, 5, 1)):
        expected = (ExpertGemm(32, 5, 64, 256, 8),)
        assert mapped("MUL_MAT_ID", (32, 8, 5, 1), weights, inputs, ids) == expected


def test_routes_recurrences_and_sums() -> None:
    assert mapped("ARGSORT", (256, 5, 1, 1), (256, 5, 1, 1)) == (ExpertRoute(5, 256, 8),)
    assert mapped("TOP_K", (8, 5, 1, 1), (256, 5, 1, 1)) == (ExpertRoute(5, 256, 8),)
    convolved = mapped("SSM_CONV", (512, 5, 2, 1), (8, 512, 2, 1), (4, 512, 1, 1))
    assert convolved == (SsmConv(10, 512, 4),)
    keys, values = (32, 8, 5, 2), (48, 8, 5, 2)
    recurred = mapped("GATED_DELTA_NET", (384, 106, 1, 1), keys, keys, values)
    assert recurred == (GatedDeltaNet(10, 8, 32, 48),)
    assert mapped("SUM_ROWS", (1, 5, 4, 3), (8, 5, 4, 3)) == (Reduction(8, 60),)


@pytest.mark.parametrize(
    ("op", "shape", "sources"),
    [
        ("MUL_MAT", (8, 5, 1, 1), ()),
        ("MUL_MAT", (8, 5, 1, 1), ((64, 8, 1, 1),)),
        ("MUL_MAT", (8, 5, 1, 1), ((64, 8, 1, 1), (63, 5, 1, 1))),
        ("MUL_MAT", (9, 5, 1, 1), ((64, 8, 1, 1), (64, 5, 1, 1))),
        ("MUL_MAT", (8, 6, 1, 1), ((64, 8, 1, 1), (64, 5, 1, 1))),
        ("MUL_MAT", (8, 5, 2, 1), ((64, 8, 1, 1), (64, 5, 1, 1))),
        ("MUL_MAT", (8, 5, 3, 1), ((64, 8, 2, 1), (64, 5, 3, 1))),
        ("MUL_MAT", (8, 5, 3, 1), ((64, 8, 0, 1), (64, 5, 3, 1))),
        ("MUL_MAT_ID", (32, 8, 5, 1), ((64, 32, 256, 1), (64, 1, 5, 1))),
        ("MUL_MAT_ID", (32, 7, 5, 1), ((64, 32, 256, 1), (64, 1, 5, 1), (8, 5, 1, 1))),
        ("MUL_MAT_ID", (32, 8, 5, 1), ((64, 32, 256, 1), (64, 2, 5, 1), (8, 5, 1, 1))),
        ("MUL_MAT_ID", (32, 8, 5, 1), ((63, 32, 256, 1), (64, 1, 5, 1), (8, 5, 1, 1))),
        ("MUL_MAT_ID", (32, 8, 5, 1), ((64, 32, 7, 1), (64, 1, 5, 1), (8, 5, 1, 1))),
        ("ARGSORT", (7, 5, 1, 1), ()),
        ("TOP_K", (7, 5, 1, 1), ((256, 5, 1, 1),)),
        ("TOP_K", (8, 5, 1, 1), ()),
        ("SSM_CONV", (512, 5, 1, 1), ((8, 512, 1, 1), (4, 511, 1, 1))),
        ("SSM_CONV", (512, 5, 1, 1), ()),
        ("GATED_DELTA_NET", (1, 1, 1, 1), ((32, 8, 5, 1), (32, 8, 5, 1))),
        ("GATED_DELTA_NET", (1, 1, 1, 1), ((32, 8, 4, 1), (32, 8, 5, 1), (32, 8, 5, 1))),
        ("SUM_ROWS", (2, 5, 1, 1), ((8, 5, 1, 1),)),
        ("SUM_ROWS", (1, 4, 1, 1), ((8, 5, 1, 1),)),
        ("RMS_NORM", (2**32, 1, 1, 1), ()),
        ("RMS_NORM", (-1, 1, 1, 1), ()),
        ("ADD", (2**32, 2**32, 1, 1), ()),
    ],
)
def test_contradicting_shapes_are_refused(
    op: str, shape: Shape, sources: tuple[Shape, ...]
) -> None:
    with pytest.raises(EvidenceError, match=f"a {op} node do not fit"):
        mapped(op, shape, *sources)


@pytest.mark.parametrize("op", ["FLASH_ATTN_EXT", "SSM_SCAN", "NORM", "mul_mat", "", "GENERIC"])
def test_whatever_is_not_in_the_table_is_refused(op: str) -> None:
    with pytest.raises(EvidenceError, match="without a canonical one"):
        mapped(op)


extents = st.tuples(*(st.integers(0, 2**33) for _ in range(4)))


@given(
    st.sampled_from(sorted(CONVERSIONS)),
    extents,
    st.lists(extents, max_size=4).map(tuple),
    st.integers(0, 2**65),
)
def test_any_node_gives_operations_or_our_error(
    op: str, shape: Shape, sources: tuple[Shape, ...], n_bytes: int
) -> None:
    try:
        found = canonical_operations(GraphNode(op, shape, n_bytes, sources), experts_used=8)
    except EvidenceError:
        return
    assert found
    assert not any(isinstance(operation, Generic) for operation in found)


def test_the_table_of_the_specification_is_the_table() -> None:
    text = (spec_vectors().parent / "compute-units.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| ([A-Z][A-Z0-9_, ]+)(?: \([^|]*\))? \|", text)
    assert {op for row in rows for op in row.split(", ")} == set(CONVERSIONS) | LAYOUT_OPS
