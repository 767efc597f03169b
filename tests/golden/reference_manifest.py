"""A second implementation of docs/spec/manifest.md, from its text and sharing no code."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from tests.golden.reference import framed, plain_jcs, raw

Layout = tuple[tuple[str, str], ...]

PROFILE: Layout = (
    ("version", "u16"), ("name", "text"), ("rope", "text"), ("topology", "u8"), ("layers", "u32"),
    ("hidden", "u32"), ("heads", "u32"), ("heads_kv", "u32"), ("head_width", "u32"),
    ("feed_forward", "u32"), ("experts", "u32"), ("experts_used", "u32"), ("vocabulary", "u32"),
    ("native_context_tokens", "u32"), ("parameters", "u64"), ("model_digest", "digest"),
    ("model_bytes", "u64"), ("tokenizer_digest", "digest"), ("special_tokens_digest", "digest"),
    ("chat_template_digest", "digest"), ("base_metadata_digest", "digest"),
    ("architecture", "bytes"),
)  # fmt: skip
RUNTIME: Layout = (
    ("version", "u16"), ("runtime_class", "bytes"), ("quantization", "text"),
    ("cache_key_type", "text"), ("cache_value_type", "text"), ("split_mode", "text"),
    ("flash_attention", "u8"), ("mapped_weights", "u8"), ("repacked_weights", "u8"),
    ("offloaded_layers", "u32"),
)  # fmt: skip
SHAPE: Layout = (
    ("version", "u16"), ("policy", "u8"), ("context_tokens", "u32"), ("prompt_floor", "u32"),
    ("prompt_max_rows", "u32"), ("decode_floor", "u32"), ("decode_max_rows", "u32"),
    ("max_prefill_tokens", "u32"), ("max_generated_tokens", "u32"), ("chunk_rule", "text"),
)  # fmt: skip
DIGESTS = (
    "kernel_graph_id", "kernel_algorithm_digest", "loaded_libraries_digest", "build_flags_digest",
    "wheel_digest", "environment_allowlist_digest", "runtime_device_digest",
    "runtime_program_digest", "build_provenance_digest",
)  # fmt: skip
MANIFEST: Layout = (
    ("version", "u16"), ("model_profile", "bytes"), ("runtime_class", "bytes"),
    ("shape_profile", "bytes"), ("trace_capability", "u8"), ("cu_ruleset_id", "digest"),
    ("adapter_mapping_id", "digest"), *((name, "digest") for name in DIGESTS), ("facts", "bytes"),
)  # fmt: skip
WIDTHS = {"u8": 1, "u16": 2, "u32": 4, "u64": 8}
# docs/spec/compute-units.md#graph-operations, in the words of compute/graph_mapping.py.
MAPPING = (
    "ADD=elementwise_add(elements);ARGSORT=expert_route(rows,o0,used);CLAMP=elementwise(elements);"
    "CONCAT=tensor_copy(bytes);CONT=tensor_copy(bytes);CPY=tensor_copy(bytes);"
    "DIV=elementwise(elements);DUP=tensor_copy(bytes);"
    "GATED_DELTA_NET=gated_delta_net(v2*v3,v1,q0,v0);GET_ROWS=embedding_lookup(elements);"
    "GLU=silu(elements)+elementwise_multiply(elements);L2_NORM=l2_norm(o0,rows);"
    "MUL=elementwise_multiply(elements);MUL_MAT=gemm(w1,x1,w0,x2*x3);"
    "MUL_MAT_ID=expert_gemm(w1,i1,w0,w2,i0);PERMUTE=none;RESHAPE=none;RMS_NORM=rms_norm(o0,rows);"
    "ROPE=rotary(o2*o3,o1,o0);SCALE=elementwise(elements);SET_ROWS=kv_cache_write(bytes);"
    "SOFT_MAX=softmax(elements);SSM_CONV=ssm_conv(rows,k1,k0);SUM_ROWS=reduction(s0,rows);"
    "TOP_K=expert_route(rows,s0,used);TRANSPOSE=none;UNARY=elementwise(elements);VIEW=none;"
    "other=refused"
)
SPECIAL = (
    b"add_special=true;parse_special=chat|sequential;begin_token=once;"
    b"end_of_generation=counts,adds_no_bytes"
)


def h(domain: str, *parts: bytes) -> bytes:
    return sha256(framed(domain, 1, parts)).digest()


def encoded(layout: Layout, values: dict[str, Any]) -> bytes:
    """docs/spec/binary-codec.md: the fields in order."""
    assert values.keys() == {name for name, _ in layout}
    out = bytearray()
    for name, kind in layout:
        value = values[name]
        if kind in WIDTHS:
            out += value.to_bytes(WIDTHS[kind], "little")
        elif kind == "digest":
            assert len(value) == 32
            out += value
        else:
            data = value.encode() if kind == "text" else value
            out += len(data).to_bytes(4, "little") + data
    return bytes(out)


def pairs(items: Sequence[dict[str, Any]], name: str) -> list[bytes]:
    return [part for item in items for part in (item[name].encode(), raw(item["digest"]))]


def profile_digests(facts: dict[str, Any]) -> dict[str, bytes]:
    """The digests of a model profile."""
    tokenizer = h(
        "palw.tokenizer", facts["tokenizer_model"].encode(), raw(facts["tokenizer_digest"])
    )
    template, files = facts["chat_template_digest"], facts["base_metadata"]
    return {
        "tokenizer_digest": tokenizer,
        "special_tokens_digest": h("palw.special-tokens", tokenizer, SPECIAL),
        "chat_template_digest": h("palw.chat-template", raw(template))
        if template
        else h("palw.no-chat-template"),
        "base_metadata_digest": h("palw.base-metadata", *pairs(files, "path"))
        if files
        else h("palw.no-base-metadata"),
    }


def policy_text(runtime: dict[str, Any], experts: int) -> str:
    knobs = ",".join(f"{knob['name']}={knob['value']}" for knob in runtime["knobs"])
    prompt, decode = runtime["prompt_class"], runtime["decode_class"]
    return (
        f"policy={runtime['policy']};prompt_rows={prompt['floor']}..{prompt['max_rows']};"
        f"decode_rows={decode['floor']}..{decode['max_rows']};knobs={knobs or 'none'};"
        f"flash_attention=off;repacked_weights=off;experts={'yes' if experts else 'no'}"
    )


def manifest_digests(
    facts: dict[str, Any], runtime: dict[str, Any], ruleset: bytes, experts: int
) -> dict[str, bytes]:
    """The digests that a manifest carries itself."""
    platform = facts["platform"]
    mapping = h("palw.adapter-mapping", MAPPING.encode())
    wheel = h("palw.engine-wheel", plain_jcs(platform["wheel"]))
    order = b"batch=one_graph;order=prefill,decode;output_rows=named"
    policy = policy_text(runtime, experts).encode()
    return {
        "adapter_mapping_id": mapping,
        "kernel_graph_id": h("palw.kernel-graph", raw(facts["engine"]["library"]), mapping, order),
        "kernel_algorithm_digest": h("palw.kernel-algorithm", policy, ruleset),
        "loaded_libraries_digest": h(
            "palw.loaded-libraries", *pairs(platform["libraries"], "name")
        ),
        "build_flags_digest": h("palw.build-flags", plain_jcs(platform["build"])),
        "wheel_digest": wheel,
        "environment_allowlist_digest": h(
            "palw.environment", *(text.encode() for text in platform["environment"])
        ),
        "runtime_device_digest": h("palw.runtime-device", plain_jcs(platform["device"])),
        "runtime_program_digest": h("palw.runtime-program", plain_jcs(platform["program"])),
        "build_provenance_digest": h("palw.build-provenance", plain_jcs(facts["engine"]), wheel),
    }


def shape(runtime: dict[str, Any], context: int) -> dict[str, Any]:
    """The shape profile of a run."""
    prompt, decode = runtime["prompt_class"], runtime["decode_class"]
    most = context - decode["floor"]
    return {
        "version": 1,
        "policy": int(runtime["policy"] == "sequential"),
        "context_tokens": context,
        "prompt_floor": prompt["floor"],
        "prompt_max_rows": prompt["max_rows"],
        "decode_floor": decode["floor"],
        "decode_max_rows": decode["max_rows"],
        "max_prefill_tokens": most,
        "max_generated_tokens": min(1024, most),
        "chunk_rule": "tallystick.chunks/v1",
    }


def manifest(
    profile: dict[str, Any],
    runtime: dict[str, Any],
    context: int,
    facts: dict[str, Any],
    ruleset: bytes,
) -> dict[str, bytes]:
    """Return the encodings and ids of a manifest and its parts.

    ``profile`` holds the profile's own numbers and names, ``runtime`` is the receipt's class.
    """
    parts = {
        "model_profile": encoded(PROFILE, {**profile, **profile_digests(facts)}),
        "runtime_class": encoded(
            RUNTIME,
            {
                "version": 1,
                "runtime_class": plain_jcs(runtime),
                "quantization": "+".join(sorted(kind["name"] for kind in facts["weight_types"])),
                "cache_key_type": "f16",
                "cache_value_type": "f16",
                "split_mode": "none",
                "flash_attention": 0,
                "mapped_weights": 1,
                "repacked_weights": 0,
                "offloaded_layers": 0,
            },
        ),
        "shape_profile": encoded(SHAPE, shape(runtime, context)),
    }
    whole = encoded(
        MANIFEST,
        {
            "version": 1,
            **parts,
            "trace_capability": 1,
            "cu_ruleset_id": ruleset,
            **manifest_digests(facts, runtime, ruleset, profile["experts"]),
            "facts": plain_jcs(facts),
        },
    )
    return {
        **parts,
        "manifest": whole,
        "model_profile_id": h("palw.model-profile", parts["model_profile"]),
        "runtime_class_id": h("palw.runtime-class", parts["runtime_class"]),
        "shape_profile_id": h("palw.shape-profile", parts["shape_profile"]),
        "runtime_manifest_hash": h("palw.runtime-manifest", whole),
    }
