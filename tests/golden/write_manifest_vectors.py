"""Write docs/spec/vectors/manifest.json anew, by the second implementation only.

``python -m tests.golden.write_manifest_vectors``, and only before a version is released: afterwards
vectors are added and never changed.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from tests.golden import reference_compute as compute
from tests.golden import reference_manifest as reference
from tests.golden.reference import raw
from tests.golden.write_compute_vectors import V3_PAYLOAD
from tests.support.vectors import spec_vectors

RULESET = bytes.fromhex(compute.hashed("palw.cu-ruleset-v3", 3, V3_PAYLOAD))
SHAPE_KEYS = (
    "heads", "heads_kv", "key_length", "value_length", "feed_forward", "expert_feed_forward",
    "shared_feed_forward", "sliding_window", "sliding_window_period", "full_attention_interval",
    "draft_layers", "ssm_kernel", "ssm_inner", "ssm_state", "ssm_rank", "ssm_groups",
)  # fmt: skip

SHARED_KEYS = ("tokenizer_model", "tokenizer_digest", "chat_template_digest", "weight_types")


def digest(label: str) -> str:
    return "sha256:" + sha256(label.encode()).hexdigest()


ENGINE = {"name": "llama.cpp (xllamacpp)", "version": "2026.10.11549", "library": digest("engine")}
PLATFORM = {
    "libraries": [
        {"name": "libc.so.6", "digest": digest("libc")},
        {"name": "libgomp.so.1", "digest": digest("libgomp")},
        {"name": "xllamacpp.abi3.so", "digest": ENGINE["library"]},
    ],
    "build": {
        "system_info": "CPU : AVX2 = 1 | ",
        "ggml_version": "0.26.0",
        "ggml_commit": "unknown",
    },
    "wheel": {"name": "xllamacpp", "version": "2026.10.11549", "record": digest("record")},
    "device": {"kind": "cpu", "machine": "x86_64", "model": "Example\u00ae CPU"},
    "program": {"version": "0.1.0", "sources": digest("sources"), "python": "CPython 3.11.7"},
    "environment": ["LANG=C.UTF-8", "PYTHONPATH"],
}


def runtime(policy: str, floor: int, rows: int, knobs: list[dict[str, str]]) -> dict[str, Any]:
    row_class = {"floor": floor, "max_rows": rows}
    return {
        "engine_library": ENGINE["library"],
        "fingerprint": digest("fingerprint"),
        "policy": policy,
        "knobs": knobs,
        "prompt_class": row_class,
        "decode_class": row_class,
    }


def model_facts(numbers: dict[str, Any], shape: dict[str, int], **more: Any) -> dict[str, Any]:
    return {
        "schema": "tallystick.model-facts/v2",
        "gguf_version": 3,
        **numbers,
        "shape": dict.fromkeys(SHAPE_KEYS, 0) | shape,
        "tensors": 30,
        "tokenizer_model": "gpt2",
        "tokenizer_digest": digest("tokenizer"),
        "template_uses_clock": False,
        "needs_normalising": [],
        **more,
    }


DENSE = model_facts(
    {"architecture": "llama", "name": "", "layers": 2, "embedding": 64, "vocabulary": 1000,
     "context_train": 512, "experts": 0, "experts_used": 0, "parameters": "123456"},
    {"heads": 4, "heads_kv": 2, "feed_forward": 96},
    weight_types=[{"name": "F32", "tensors": 9, "bytes": "1024"}],
    chat_template_digest=None,
)  # fmt: skip
HYBRID = model_facts(
    {"architecture": "qwen35moe", "name": "Qwen3.6 35B A3B", "layers": 40, "embedding": 2048,
     "vocabulary": 248320, "context_train": 262144, "experts": 256, "experts_used": 8,
     "parameters": "35951822704"},
    {"heads": 16, "heads_kv": 2, "key_length": 256, "value_length": 256, "feed_forward": 512,
     "expert_feed_forward": 512, "shared_feed_forward": 512, "full_attention_interval": 4,
     "ssm_kernel": 4, "ssm_inner": 4096, "ssm_state": 128, "ssm_rank": 32, "ssm_groups": 16},
    weight_types=[{"name": "F32", "tensors": 301, "bytes": "1024"},
                  {"name": "Q4_K", "tensors": 400, "bytes": "21474836480"}],
    chat_template_digest=digest("template"),
)  # fmt: skip


def dense_architecture() -> bytes:
    u32 = compute.u32
    layer = b"\0" + b"".join(map(u32, (4, 2, 16, 16, 0))) + bytes(3) + b"\0" + u32(96) + bytes(2)
    return u32(5) + b"llama" + u32(64) + u32(1000) + u32(2) + 2 * layer


def profile(facts: dict[str, Any], name: str, size: int, **numbers: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "name": name,
        "rope": "model-file",
        "layers": facts["layers"],
        "hidden": facts["embedding"],
        "heads": facts["shape"]["heads"],
        "heads_kv": facts["shape"]["heads_kv"],
        "experts": facts["experts"],
        "experts_used": facts["experts_used"],
        "vocabulary": facts["vocabulary"],
        "native_context_tokens": facts["context_train"],
        "parameters": int(facts["parameters"]),
        "model_digest": raw(digest("model")),
        "model_bytes": size,
        **numbers,
    }


def vector(
    facts: dict[str, Any], runtime_class: dict[str, Any], context: int, own: dict[str, Any]
) -> dict[str, Any]:
    manifest_facts = {
        "schema": "tallystick.manifest-facts/v1",
        "producer": "tallystick",
        "engine": ENGINE,
        **{name: facts[name] for name in SHARED_KEYS},
        "base_metadata": [],
        "platform": PLATFORM,
    }
    made = reference.manifest(own, runtime_class, context, manifest_facts, RULESET)
    return {
        "model_facts": facts,
        "model_digest": digest("model"),
        "model_bytes": str(own["model_bytes"]),
        "engine": ENGINE,
        "platform": PLATFORM,
        "runtime_class": runtime_class,
        "context_tokens": context,
        "gives": {name: value.hex() for name, value in made.items()},
    }


def vectors() -> dict[str, Any]:
    """Return the content of the file."""
    hybrid = profile(
        HYBRID, "Qwen3.6 35B A3B", 23_938_321_728,
        topology=1, head_width=256, feed_forward=512,
        architecture=compute.architecture_bytes(compute.QWEN),
    )  # fmt: skip
    dense = profile(
        DENSE, "unnamed llama", 2**40,
        topology=0, head_width=16, feed_forward=96, architecture=dense_architecture(),
    )  # fmt: skip
    knobs = [{"name": "GGML_CPU_TILED_MM", "value": "0"}]
    return {
        "description": "docs/spec/manifest.md. What a manifest is made of, then encodings and ids "
        "in hexadecimal.",
        "manifests": [
            vector(HYBRID, runtime("sequential", 1, 1, []), 4096, hybrid),
            vector(DENSE, runtime("row-class", 2, 512, knobs), 768, dense),
        ],
    }


if __name__ == "__main__":
    text = json.dumps(vectors(), indent=2) + "\n"
    (spec_vectors() / "manifest.json").write_text(text, encoding="utf-8")
