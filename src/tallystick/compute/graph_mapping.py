"""The table of graph operations as text, and its id (docs/spec/compute-units.md#graph-operations).

A manifest names by this id how an engine's graph was read. The text is written out, not derived
from the code: another reading of a node is another text, and a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tallystick.canonical.hashing import domain_hash

RULES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ADD": "elementwise_add(elements)",
        "ARGSORT": "expert_route(rows,o0,used)",
        "CLAMP": "elementwise(elements)",
        "CONCAT": "tensor_copy(bytes)",
        "CONT": "tensor_copy(bytes)",
        "CPY": "tensor_copy(bytes)",
        "DIV": "elementwise(elements)",
        "DUP": "tensor_copy(bytes)",
        "GATED_DELTA_NET": "gated_delta_net(v2*v3,v1,q0,v0)",
        "GET_ROWS": "embedding_lookup(elements)",
        "GLU": "silu(elements)+elementwise_multiply(elements)",
        "L2_NORM": "l2_norm(o0,rows)",
        "MUL": "elementwise_multiply(elements)",
        "MUL_MAT": "gemm(w1,x1,w0,x2*x3)",
        "MUL_MAT_ID": "expert_gemm(w1,i1,w0,w2,i0)",
        "PERMUTE": "none",
        "RESHAPE": "none",
        "RMS_NORM": "rms_norm(o0,rows)",
        "ROPE": "rotary(o2*o3,o1,o0)",
        "SCALE": "elementwise(elements)",
        "SET_ROWS": "kv_cache_write(bytes)",
        "SOFT_MAX": "softmax(elements)",
        "SSM_CONV": "ssm_conv(rows,k1,k0)",
        "SUM_ROWS": "reduction(s0,rows)",
        "TOP_K": "expert_route(rows,s0,used)",
        "TRANSPOSE": "none",
        "UNARY": "elementwise(elements)",
        "VIEW": "none",
    }
)


def mapping_text() -> str:
    """Return the whole table as one line."""
    return ";".join([*(f"{op}={rule}" for op, rule in RULES.items()), "other=refused"])


def adapter_mapping_id() -> bytes:
    """Return the 32-byte ``H("palw.adapter-mapping", 1, [text of the table])``."""
    return domain_hash("palw.adapter-mapping", 1, [mapping_text().encode("ascii")])
