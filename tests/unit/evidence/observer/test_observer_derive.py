"""What follows from names and shapes."""

from __future__ import annotations

import pytest

from tallystick.errors import EvidenceError
from tallystick.evidence.observer.derive import gemm_of, layer_of, route_layer
from tallystick.evidence.observer.records import SourceRecord, TensorRecord


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("l_out-0", 0),
        ("Kcur-39", 39),
        ("Qcur-3 (view) (permuted)", 3),
        ("cache_k_l12 (view)", 12),
        ("cache_r_l0 (reshaped) (view) (view)", 0),
        ("cache_s_l7 (view) (copy of node_25 (view))", 7),
        ("conv_state_update-5 (copy of conv_state_last-5)", 5),
        ("blk.30.ffn_down.weight", 30),
        ("node_15", None),
        ("result_output", None),
        (" (view)", None),
        ("", None),
        ("a-01", None),
        ("a-12345", None),
        ("a-1-2", None),
        ("a-x", None),
        ("node_3 (copy of l_out-3)", None),
    ],
)
def test_layer(name: str, layer: int | None) -> None:
    assert layer_of(name) == layer


@pytest.mark.parametrize(
    ("name", "layer"),
    [("ffn_moe_topk-7", 7), ("ffn_moe_topk-7 (view)", None), ("xffn_moe_topk-7", None)],
)
def test_route_layer(name: str, layer: int | None) -> None:
    assert route_layer(name) == layer


def product(
    left: tuple[int, ...], right: tuple[int, ...], made: tuple[int, ...]
) -> tuple[TensorRecord, list[SourceRecord]]:
    return (
        TensorRecord("kq-0", "MUL_MAT", "f32", made, 4),
        [SourceRecord("w", "f16", left), SourceRecord("x", "f32", right)],
    )


def test_the_size_of_a_product_over_shared_heads() -> None:
    gemm = gemm_of(*product((64, 256, 2, 1), (64, 3, 4, 1), (256, 3, 4, 1)))
    assert (gemm.m, gemm.n, gemm.k, gemm.batch_shape) == (256, 3, 64, (4, 1))


@pytest.mark.parametrize(
    ("left", "right", "made"),
    [
        ((8, 4, 1, 1), (9, 3, 1, 1), (4, 3, 1, 1)),
        ((8, 4, 1, 1), (8, 3, 1, 1), (3, 4, 1, 1)),
        ((8, 4, 1, 1), (8, 3, 2, 1), (4, 3, 1, 1)),
        ((8, 4, 3, 1), (8, 3, 4, 1), (4, 3, 4, 1)),
        ((8, 4, 1), (8, 3, 1, 1), (4, 3, 1, 1)),
        ((8, 4, 0, 1), (8, 3, 1, 1), (4, 3, 1, 1)),
    ],
)
def test_shapes_that_do_not_fit(
    left: tuple[int, ...], right: tuple[int, ...], made: tuple[int, ...]
) -> None:
    with pytest.raises(EvidenceError, match="do not fit"):
        gemm_of(*product(left, right, made))


def test_a_product_has_two_sources() -> None:
    tensor, sources = product((8, 4, 1, 1), (8, 3, 1, 1), (4, 3, 1, 1))
    with pytest.raises(EvidenceError, match="do not fit"):
        gemm_of(tensor, sources[:1])
