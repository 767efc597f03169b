"""Runtime manifests: decoded, and every digest computed again. From docs/spec/manifest.md."""

from __future__ import annotations

from typing import Any

from tests.golden.independent.basics import ZERO, Reader, h, raw, require, same
from tests.golden.independent.compute import RULESETS, Model, read_architecture
from tests.golden.independent.documents import canonical, conform, jcs

Fields = dict[str, Any]

PROFILE_NUMBERS = (
    "layers", "hidden", "heads", "heads_kv", "head_width", "feed_forward", "experts",
    "experts_used", "vocabulary", "native_context_tokens",
)  # fmt: skip
PROFILE_DIGESTS = (
    "tokenizer_digest", "special_tokens_digest", "chat_template_digest", "base_metadata_digest",
)  # fmt: skip
DIGESTS = (
    "kernel_graph_id", "kernel_algorithm_digest", "loaded_libraries_digest", "build_flags_digest",
    "wheel_digest", "environment_allowlist_digest", "runtime_device_digest",
    "runtime_program_digest", "build_provenance_digest",
)  # fmt: skip
SPECIAL_TOKENS = (
    b"add_special=true;parse_special=chat|sequential;begin_token=once;"
    b"end_of_generation=counts,adds_no_bytes"
)
GRAPHS = b"batch=one_graph;order=prefill,decode;output_rows=named"
MAPPING = (
    b"ADD=elementwise_add(elements);ARGSORT=expert_route(rows,o0,used);CLAMP=elementwise(elements);"
    b"CONCAT=tensor_copy(bytes);CONT=tensor_copy(bytes);CPY=tensor_copy(bytes);"
    b"DIV=elementwise(elements);DUP=tensor_copy(bytes);"
    b"GATED_DELTA_NET=gated_delta_net(v2*v3,v1,q0,v0);GET_ROWS=embedding_lookup(elements);"
    b"GLU=silu(elements)+elementwise_multiply(elements);L2_NORM=l2_norm(o0,rows);"
    b"MUL=elementwise_multiply(elements);MUL_MAT=gemm(w1,x1,w0,x2*x3);"
    b"MUL_MAT_ID=expert_gemm(w1,i1,w0,w2,i0);PERMUTE=none;RESHAPE=none;RMS_NORM=rms_norm(o0,rows);"
    b"ROPE=rotary(o2*o3,o1,o0);SCALE=elementwise(elements);SET_ROWS=kv_cache_write(bytes);"
    b"SOFT_MAX=softmax(elements);SSM_CONV=ssm_conv(rows,k1,k0);SUM_ROWS=reduction(s0,rows);"
    b"TOP_K=expert_route(rows,s0,used);TRANSPOSE=none;UNARY=elementwise(elements);VIEW=none;"
    b"other=refused"
)


def read_profile(data: bytes) -> Fields:
    """Model profile."""
    reader = Reader(data, "model profile")
    found: Fields = {"version": reader.u16(), "name": reader.text(800), "rope": reader.text(800)}
    found["topology"] = reader.u8(2)
    found |= {name: reader.u32() for name in PROFILE_NUMBERS}
    found["parameters"] = reader.u64()
    found["model_digest"] = reader.digest()
    found["model_bytes"] = reader.u64()
    found |= {name: reader.digest() for name in PROFILE_DIGESTS}
    found["architecture"] = read_architecture(reader.sized(65536))
    reader.end()
    found["id"] = h("palw.model-profile", data)
    _check_profile(found)
    return found


def _check_profile(found: Fields) -> None:
    same("model profile: version", 1, found["version"])
    require(bool(found["name"] and found["rope"]), "model profile: a name without characters")
    numbers = [*PROFILE_NUMBERS, "parameters", "model_bytes"]
    for name in numbers:
        require(found[name] >= 1 or name.startswith("experts"), f"model profile: {name}")
    for name in ("model_digest", *PROFILE_DIGESTS):
        require(found[name] != ZERO, f"model profile: {name}")
    require(found["hidden"] % found["heads"] == 0, "model profile: hidden")
    require(found["heads"] % found["heads_kv"] == 0, "model profile: heads")
    if found["topology"]:
        require(1 <= found["experts_used"] <= found["experts"], "model profile: experts")
    else:
        same("model profile: experts", (0, 0), (found["experts"], found["experts_used"]))
    for name, value in _numbers(found["architecture"]).items():
        same(f"model profile: {name}", value, found[name])


def _numbers(model: Model) -> Fields:
    """The numbers of a profile that are those of its architecture."""
    attention = {
        (layer["heads"], layer["heads_kv"], layer["key_width"])
        for layer in model["layers"]
        if not layer["mixer"]
    }
    names = ("experts", "used", "width", "shared_width", "shared_gate", "gelu")
    forward = {tuple(layer[name] for name in names) for layer in model["layers"]}
    require(len(attention) == len(forward) == 1, "model profile: layers of several sizes")
    ((heads, heads_kv, head_width),) = attention
    ((experts, used, width, *_),) = forward
    return {
        "topology": int(experts > 0),
        "layers": len(model["layers"]),
        "hidden": model["hidden"],
        "heads": heads,
        "heads_kv": heads_kv,
        "head_width": head_width,
        "feed_forward": width,
        "experts": experts,
        "experts_used": used,
        "vocabulary": model["vocabulary"],
    }


def read_runtime(data: bytes) -> Fields:
    """Runtime class."""
    reader = Reader(data, "runtime class")
    version, runtime = reader.u16(), reader.sized(4096)
    quantization = reader.text(4096)
    words = (reader.text(800), reader.text(800), reader.text(800))
    flags = (reader.u8(2), reader.u8(2), reader.u8(2), reader.u32())
    reader.end()
    value = canonical(runtime, 4096)
    conform("receipt", value, "RuntimeClass")
    fixed = (1, ("f16", "f16", "none"), (0, 1, 0, 0))
    same("runtime class: what has one value", fixed, (version, words, flags))
    return {
        "jcs": runtime,
        "class": value,
        "quantization": quantization,
        "id": h("palw.runtime-class", data),
    }


def shape_of(runtime: Any, context_tokens: int) -> bytes:
    """Shape profile: it follows from the receipt's runtime class and context."""
    prompt, decode = runtime["prompt_class"], runtime["decode_class"]
    prefill = context_tokens - decode["floor"]
    numbers = [prompt["floor"], prompt["max_rows"], decode["floor"], decode["max_rows"], prefill]
    out = b"\1\0" + bytes([int(runtime["policy"] == "sequential")])
    for number in [context_tokens, *numbers, min(prefill, 1024)]:
        out += number.to_bytes(4, "little")
    rule = b"tallystick.chunks/v1"
    return out + len(rule).to_bytes(4, "little") + rule


def read_shape(data: bytes, runtime: Any) -> Fields:
    """Shape profile."""
    reader = Reader(data, "shape profile")
    reader.u16()
    policy, context = reader.u8(2), reader.u32()
    floor = runtime["decode_class"]["floor"]
    require(context > floor, "shape profile: context")
    same("shape profile", shape_of(runtime, context), data)
    require(not policy or context == 4096, "shape profile: context under sequential")
    return {"context_tokens": context, "floor": floor, "id": h("palw.shape-profile", data)}


def require_fit(shape: Fields, prefill: int, generated: int) -> None:
    most = shape["context_tokens"] - shape["floor"]
    fits = 1 <= prefill <= most and 1 <= generated <= min(most, 1024)
    fits = fits and prefill + generated <= most + 1
    require(fits, "shape profile: the run does not fit")


def read_manifest(data: bytes) -> Fields:
    """Manifest: all of its parts, each digest computed from the facts."""
    reader = Reader(data, "manifest")
    found: Fields = {"version": reader.u16(), "profile": read_profile(reader.sized(73728))}
    found["runtime"] = read_runtime(reader.sized(16384))
    runtime = found["runtime"]["class"]
    found["shape"] = read_shape(reader.sized(2048), runtime)
    same("manifest: version and capability", (1, 1), (found["version"], reader.u8()))
    found |= {name: reader.digest() for name in ("cu_ruleset_id", "adapter_mapping_id", *DIGESTS)}
    facts = canonical(reader.sized(131072), 131072)
    reader.end()
    conform("manifest-facts", facts)
    require(found["cu_ruleset_id"] in RULESETS, "manifest: cu_ruleset_id")
    same("manifest: engine", runtime["engine_library"], facts["engine"]["library"])
    libraries = [item["digest"] for item in facts["platform"]["libraries"]]
    require(facts["engine"]["library"] in libraries, "manifest: the engine is not loaded")
    names = "+".join(sorted(kind["name"] for kind in facts["weight_types"]))
    same("manifest: quantization", names, found["runtime"]["quantization"])
    for name, digest in profile_digests(facts).items():
        same(f"manifest: {name}", digest, found["profile"][name])
    for name, digest in manifest_digests(facts, found).items():
        same(f"manifest: {name}", digest, found[name])
    return {**found, "facts": facts, "id": h("palw.runtime-manifest", data)}


def _named(items: Any, name: str) -> list[bytes]:
    return [part for item in items for part in (item[name].encode(), raw(item["digest"]))]


def profile_digests(facts: Any) -> dict[str, bytes]:
    """Digests of the model profile."""
    tokens = h("palw.tokenizer", facts["tokenizer_model"].encode(), raw(facts["tokenizer_digest"]))
    template, files = facts["chat_template_digest"], facts["base_metadata"]
    return {
        "tokenizer_digest": tokens,
        "special_tokens_digest": h("palw.special-tokens", tokens, SPECIAL_TOKENS),
        "chat_template_digest": h("palw.chat-template", raw(template))
        if template
        else h("palw.no-chat-template"),
        "base_metadata_digest": h("palw.base-metadata", *_named(files, "path"))
        if files
        else h("palw.no-base-metadata"),
    }


def _policy(runtime: Any, experts: bool) -> bytes:
    def rows(name: str) -> str:
        return "{floor}..{max_rows}".format(**runtime[name])

    knobs = ",".join(f"{knob['name']}={knob['value']}" for knob in runtime["knobs"])
    return (
        f"policy={runtime['policy']};prompt_rows={rows('prompt_class')};"
        f"decode_rows={rows('decode_class')};knobs={knobs or 'none'};"
        f"flash_attention=off;repacked_weights=off;experts={'yes' if experts else 'no'}"
    ).encode()


def manifest_digests(facts: Any, found: Fields) -> dict[str, bytes]:
    """Digests of the manifest itself."""
    platform, mapping = facts["platform"], h("palw.adapter-mapping", MAPPING)
    wheel = h("palw.engine-wheel", jcs(platform["wheel"]))
    policy = _policy(found["runtime"]["class"], found["profile"]["experts"] > 0)
    environment = [name.encode() for name in platform["environment"]]
    library = raw(facts["engine"]["library"])
    return {
        "adapter_mapping_id": mapping,
        "kernel_graph_id": h("palw.kernel-graph", library, mapping, GRAPHS),
        "kernel_algorithm_digest": h("palw.kernel-algorithm", policy, found["cu_ruleset_id"]),
        "loaded_libraries_digest": h(
            "palw.loaded-libraries", *_named(platform["libraries"], "name")
        ),
        "build_flags_digest": h("palw.build-flags", jcs(platform["build"])),
        "wheel_digest": wheel,
        "environment_allowlist_digest": h("palw.environment", *environment),
        "runtime_device_digest": h("palw.runtime-device", jcs(platform["device"])),
        "runtime_program_digest": h("palw.runtime-program", jcs(platform["program"])),
        "build_provenance_digest": h("palw.build-provenance", jcs(facts["engine"]), wheel),
    }
