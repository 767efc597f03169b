"""Write docs/spec/vectors/compute_units.json anew, by the second implementation only.

``python -m tests.golden.write_compute_vectors``, and only before a ruleset is released: afterwards
vectors are added and never changed.
"""

from __future__ import annotations

import json
from typing import Any

from tests.golden import reference_compute as ref
from tests.support.vectors import spec_vectors

V3_PAYLOAD = (
    b"semantic;n=prefill+generated;matrix=n*in*out;experts=n*used*matrices+n*shared*matrices;"
    b"shared_gate=0;conv=n*kernel*channels;state=n*2*heads*key*value;"
    b"attention=pairs*heads*(key+value);pairs=sum(i=1..n,min(i,window));head=n*hidden*vocabulary;"
    b"cu=ceil(2*mac/1000000)"
)
OPERATIONS: tuple[ref.Op, ...] = (
    ("gemm", 2048, 5, 512, 1),
    ("gemm", 4096, 4096, 4096, 3),
    ("gemm", 1, 1, 1, 1),
    ("attention", 5, 7, 16, 256, 1),
    ("attention", 4096, 4096, 32, 128, 2),
    ("layer_norm", 4097, 1),
    ("rms_norm", 2048, 5),
    ("rotary", 5, 16, 256),
    ("expert_route", 5, 256, 8),
    ("kv_cache_read", 1048576),
    ("kv_cache_write", 1048577),
    ("silu", 4096),
    ("silu", 0),
    ("elementwise_multiply", 2049),
    ("softmax", 1025),
    ("elementwise_add", 18446744073709551615),
    ("tensor_copy", 18446744073709551615),
    ("embedding_lookup", 10240),
    ("generic", 11, 4097),
    ("expert_gemm", 512, 5, 2048, 256, 8),
    ("ssm_conv", 5, 8192, 4),
    ("gated_delta_net", 5, 32, 128, 128),
    ("l2_norm", 128, 80),
    ("reduction", 8, 10240),
    ("elementwise", 160),
)
COUNTS = ((5, 2), (1, 1), (512, 128), (7, 0), (1, 6), (1, 0), (4000, 96))
REFUSED = ("", "00", "0001000000", "15", "ff00000000", "080100000000000000" + "00", "08010000")


def operation(op: ref.Op) -> dict[str, Any]:
    return {
        "name": op[0],
        "fields": [str(value) for value in op[1:]],
        "encoding": ref.encoded(op).hex(),
        "v1": str(ref.cost(op)) if op[0] in ref.TABLE and op[0] != "generic" else None,
        "v2": str(ref.cost(op)) if op[0] in ref.TABLE else None,
    }


def ruleset(version: int, payload: bytes) -> dict[str, Any]:
    identity = ref.hashed(f"palw.cu-ruleset-v{version}", version, payload)
    return {"version": version, "payload": payload.decode(), "ruleset_id": identity}


def semantic(prefill: int, generated: int) -> dict[str, Any]:
    return {
        "profile": "qwen3.6-35b-a3b",
        "prefill": prefill,
        "generated": generated,
        "mac": str(ref.multiply_accumulates(ref.QWEN, prefill + generated)),
        "compute_units": str(ref.compute_units(ref.QWEN, prefill, generated)),
    }


def schedule(prefill: int, generated: int) -> dict[str, Any]:
    phases = [ref.phase(ref.QWEN, prefill, 0), ref.phase(ref.QWEN, generated, prefill)]
    operations = [op for phase in phases for _, op in phase]
    return {
        "profile": "qwen3.6-35b-a3b",
        "prefill": prefill,
        "generated": generated,
        "operations": len(operations),
        "expert_routes": sum(op[0] == "expert_route" for op in operations),
        "commitment": ref.schedule_commitment(ref.QWEN, prefill, generated),
    }


def vector() -> dict[str, Any]:
    """Return the content of the file."""
    encoding = ref.architecture_bytes(ref.QWEN)
    return {
        "description": "docs/spec/compute-units.md. Integers of 64 bits and more are decimal "
        "text; encodings, ids and commitments are hexadecimal. A price of null: refused.",
        "rulesets": [
            ruleset(1, ref.payload(generic=False)),
            ruleset(2, ref.payload(generic=True)),
            ruleset(3, V3_PAYLOAD),
        ],
        "operations": [operation(op) for op in OPERATIONS],
        "refused_encodings": list(REFUSED),
        "architectures": [
            {
                "profile": "qwen3.6-35b-a3b",
                "encoding": encoding.hex(),
                "architecture_id": ref.hashed("palw.architecture", 1, encoding),
            }
        ],
        "semantic_units": [semantic(*counts) for counts in COUNTS],
        "semantic_schedules": [schedule(*counts) for counts in COUNTS],
    }


if __name__ == "__main__":
    text = json.dumps(vector(), indent=2) + "\n"
    (spec_vectors() / "compute_units.json").write_text(text, encoding="utf-8")
