"""What follows from a node's description: its layer, its categories, the size of its product."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from tallystick.errors import EvidenceError
from tallystick.evidence.observer.records import PRODUCT, Gemm, SourceRecord, TensorRecord

ROUTES: Final = re.compile(r"ffn_moe_topk-(0|[1-9][0-9]{0,3})")
_LAYER: Final = re.compile(
    r"(?:[A-Za-z0-9_.]+-|cache_[a-z]+_l|blk\.)(?P<layer>0|[1-9][0-9]{0,3})(?:\.[A-Za-z0-9_.]+)?"
)
_OPERATIONS: Final = {
    "gemm": (PRODUCT,),
    "expert_gemm": ("MUL_MAT_ID",),
    "routing": ("ARGSORT", "TOP_K"),
    "recurrent": ("SSM_CONV", "SSM_SCAN", "GATED_DELTA_NET"),
    "norm": ("NORM", "RMS_NORM", "L2_NORM", "GROUP_NORM"),
    "position": ("ROPE",),
    "softmax": ("SOFT_MAX",),
    "lookup": ("GET_ROWS",),
    "cache_write": ("SET_ROWS",),
    "copy": ("CONT", "CPY", "DUP", "CONCAT"),
    "layout": ("VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE"),
    "reduction": ("SUM_ROWS", "SUM", "MEAN"),
    "elementwise": ("ADD", "SUB", "MUL", "DIV", "SCALE", "CLAMP", "UNARY", "GLU", "SQR", "SQRT"),
}
CATEGORY_OF: Final[Mapping[str, str]] = MappingProxyType(
    {op: category for category, ops in _OPERATIONS.items() for op in ops}
)


def layer_of(name: str) -> int | None:
    """Return the layer that a tensor's name tells, None when it tells none."""
    found = _LAYER.fullmatch(name.partition(" (")[0])
    return None if found is None else int(found["layer"])


def route_layer(name: str) -> int | None:
    """Return the layer whose chosen experts the tensor ``name`` holds, None for other tensors."""
    found = ROUTES.fullmatch(name)
    return None if found is None else int(found[1])


def categories_of(tensor: TensorRecord) -> tuple[str, ...]:
    """Return the categories of the operation that makes ``tensor``: of its kind, of its role."""
    kind = CATEGORY_OF.get(tensor.op, "other")
    roles = []
    if route_layer(tensor.name) is not None:
        roles.append("expert_ids")
    elif re.fullmatch(r"l_out-[0-9]+", tensor.name):
        roles.append("layer_output")
    elif tensor.name == "result_output":
        roles.append("logits")
    return (kind, *roles)


def gemm_of(tensor: TensorRecord, sources: Sequence[SourceRecord]) -> Gemm:
    """Return the size of the product ``tensor`` of the two ``sources`` (weights, then inputs).

    Raises EvidenceError when the shapes do not fit together.
    """
    if len(sources) != 2:
        raise _misfit(f"{len(sources)} sources")
    left, right, made = sources[0].shape, sources[1].shape, tensor.shape
    if not len(left) == len(right) == len(made) == 4 or 0 in (*left, *right):
        raise _misfit("a shape that is not four extents")
    if left[0] != right[0]:
        raise _misfit("inner sizes differ")
    if made != (left[1], right[1], right[2], right[3]):
        raise _misfit("another output shape")
    if right[2] % left[2] or right[3] % left[3]:
        raise _misfit("batches do not divide")
    return Gemm("ggml_graph_op_v1", left[1], right[1], left[0], made[2:])


def _misfit(found: str) -> EvidenceError:
    return EvidenceError(
        "the shapes of a matrix product do not fit together",
        expected="weights k x m, inputs k x n, output m x n, batches that divide",
        found=found,
    )
