"""Operations, rulesets, architecture descriptions and semantic schedules.

Written from docs/spec/compute-units.md. Operations are tuples: (kind name, fields ...); layers are
dictionaries with the names of the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.golden.independent.basics import Reader, RefusedError, h, require, u32

Op = tuple[Any, ...]
Model = dict[str, Any]

# Kinds in the order of their numbers; each field's width in bytes.
KINDS = {
    "gemm": "4444", "attention": "44444", "layer_norm": "44", "rms_norm": "44", "rotary": "444",
    "expert_route": "444", "kv_cache_read": "8", "kv_cache_write": "8", "silu": "8",
    "elementwise_multiply": "8", "softmax": "8", "elementwise_add": "8", "tensor_copy": "8",
    "embedding_lookup": "8", "generic": "48", "expert_gemm": "44444", "ssm_conv": "444",
    "gated_delta_net": "4444", "l2_norm": "44", "reduction": "44", "elementwise": "8",
}  # fmt: skip
NAMES = tuple(KINDS)
PRICES = {
    "gemm": (4096**3, 120), "attention": (4096 * 4096 * 32 * 128, 80), "layer_norm": (4096, 8),
    "rms_norm": (4096, 8), "rotary": (4096, 4), "expert_route": (4096, 16),
    "kv_cache_read": (1 << 20, 1), "kv_cache_write": (1 << 20, 1), "silu": (4096, 2),
    "elementwise_multiply": (4096, 2), "softmax": (4096, 4), "elementwise_add": (4096, 2),
    "tensor_copy": (1 << 20, 1), "embedding_lookup": (4096, 1), "generic": (4096, 2),
}  # fmt: skip
ATTENTION = ("heads", "heads_kv", "key_width", "value_width")
DELTA_NET = ("key_heads", "value_heads", "key_width", "value_width", "kernel")
V3 = (
    b"semantic;n=prefill+generated;matrix=n*in*out;experts=n*used*matrices+n*shared*matrices;"
    b"shared_gate=0;conv=n*kernel*channels;state=n*2*heads*key*value;"
    b"attention=pairs*heads*(key+value);pairs=sum(i=1..n,min(i,window));"
    b"head=n*hidden*vocabulary;cu=ceil(2*mac/1000000)"
)


def payload(version: int) -> bytes:
    if version == 3:
        return V3
    terms = [f"{name}={units}/{work}" for name, (work, units) in PRICES.items()]
    return ";".join([*terms[: 14 if version == 1 else 15], "ceil", "min1"]).encode()


def ruleset_id(version: int) -> bytes:
    domain = f"palw.cu-ruleset-v{version}"
    return h(domain, payload(version), version=version)


RULESETS = {ruleset_id(version): version for version in (1, 2, 3)}


def price(operation: Op, version: int) -> int:
    """Rulesets v1 and v2: the cost of one operation."""
    name, *fields = operation
    require(NAMES.index(name) < (14 if version == 1 else 15), "an operation without a price")
    work, (reference, units) = 1, PRICES[name]
    for factor in [*(fields[1:] if name == "generic" else fields), units]:
        work *= factor
        require(work < 2**128, "a price that overflows")
    cost = max(1, -(-work // reference))
    require(cost < 2**64, "a price that overflows")
    return cost


def encode_operation(operation: Op) -> bytes:
    name, *fields = operation
    widths = map(int, KINDS[name])
    values = (value.to_bytes(width, "little") for value, width in zip(fields, widths, strict=True))
    return bytes([NAMES.index(name)]) + b"".join(values)


def read_operation(reader: Reader) -> Op:
    name = NAMES[reader.u8(len(NAMES))]
    return (name, *(reader.number(int(width)) for width in KINDS[name]))


def read_architecture(data: bytes) -> Model:
    """Architecture descriptions."""
    reader = Reader(data, "architecture")
    try:
        name = reader.sized(64).decode("ascii")
    except UnicodeDecodeError:
        raise RefusedError("architecture: its name") from None
    model: Model = {"name": name, "hidden": reader.u32(), "vocabulary": reader.u32()}
    count = reader.count(1024)
    model["layers"] = [_read_layer(reader) for _ in range(count)]
    reader.end()
    model["id"] = h("palw.architecture", data)
    require(count >= 1 and min(model["hidden"], model["vocabulary"]) >= 1, "architecture: 0")
    return model


def _read_layer(reader: Reader) -> Model:
    layer: Model = {"mixer": reader.u8(2)}
    names = DELTA_NET if layer["mixer"] else ATTENTION
    layer |= {name: reader.u32() for name in names}
    positive = list(names)
    if layer["mixer"]:
        whole = layer["value_heads"], layer["key_heads"]
    else:
        layer["window"] = reader.u32()
        layer |= {name: reader.u8(2) for name in ("gated", "head_norms", "biased")}
        whole = layer["heads"], layer["heads_kv"]
    layer["experts"] = layer["used"] = layer["shared_width"] = layer["shared_gate"] = 0
    if reader.u8(2):
        layer |= {name: reader.u32() for name in ("experts", "used", "width", "shared_width")}
        layer["shared_gate"] = reader.u8(2)
        positive += ["experts", "used"]
    else:
        layer["width"] = reader.u32()
    layer |= {"gelu": reader.u8(2), "post_norms": reader.u8(2)}
    require(all(layer[name] >= 1 for name in [*positive, "width"]), "architecture: 0")
    require(whole[0] % whole[1] == 0, "architecture: its heads")
    require(layer["used"] <= layer["experts"], "architecture: its experts")
    return layer


def pairs(n: int, window: int) -> int:
    full = min(n, window) if window else n
    return full * (full + 1) // 2 + (n - full) * window


def multiply_accumulates(model: Model, n: int) -> int:
    """Ruleset v3."""
    hidden = model["hidden"]
    total: int = n * hidden * model["vocabulary"]
    for layer in model["layers"]:
        if layer["mixer"]:
            values = layer["value_heads"] * layer["value_width"]
            channels = 2 * layer["key_heads"] * layer["key_width"] + values
            total += n * hidden * (channels + values + 2 * layer["value_heads"] + values)
            total += n * layer["kernel"] * channels
            total += n * 2 * layer["value_heads"] * layer["key_width"] * layer["value_width"]
        else:
            key, value, heads = layer["key_width"], layer["value_width"], layer["heads"]
            queries = heads * key * (2 if layer["gated"] else 1)
            total += n * hidden * (queries + layer["heads_kv"] * (key + value) + heads * value)
            total += pairs(n, layer["window"]) * heads * (key + value)
        active = layer["width"]
        if layer["experts"]:
            total += n * hidden * layer["experts"]
            active = layer["used"] * layer["width"] + layer["shared_width"]
        total += n * 3 * hidden * active
    return total


def semantic_units(model: Model, prefill: int, generated: int) -> int:
    units = -(-2 * multiply_accumulates(model, prefill + generated) // 10**6)
    require(prefill >= 1 and units < 2**64, "compute units")
    return units


def semantic_phase(model: Model, tokens: int, past: int) -> list[tuple[int, Op]]:
    """Semantic schedule: stages and operations of one phase."""
    if tokens == 0:
        return []
    hidden = model["hidden"]
    found: list[tuple[int, Op]] = [(0, ("embedding_lookup", hidden * tokens))]
    for stage, layer in enumerate(model["layers"], 1):
        end: list[Op] = [("rms_norm", hidden, tokens)] if layer["post_norms"] else []
        end.append(("elementwise_add", hidden * tokens))
        mixer = _delta_net if layer["mixer"] else _attention
        forward = _experts if layer["experts"] else _dense
        operations: list[Op] = [
            ("rms_norm", hidden, tokens),
            *mixer(layer, hidden, tokens, past),
            *end,
            ("rms_norm", hidden, tokens),
            *forward(layer, hidden, tokens),
            *end,
        ]
        found += [(stage, operation) for operation in operations]
    stage = len(model["layers"]) + 1
    found.append((stage, ("rms_norm", hidden, tokens)))
    found.append((stage, ("gemm", model["vocabulary"], tokens, hidden, 1)))
    return found


def _attention(layer: Model, hidden: int, t: int, past: int) -> Iterator[Op]:
    key, heads, kv = layer["key_width"], layer["heads"], layer["heads_kv"]
    out = heads * layer["value_width"]
    for width in (heads * key * (1 + layer["gated"]), kv * key, kv * layer["value_width"]):
        yield ("gemm", width, t, hidden, 1)
        if layer["biased"]:
            yield ("elementwise_add", width * t)
    for number in (heads, kv):
        if layer["head_norms"]:
            yield ("rms_norm", key, number * t)
        yield ("rotary", t, number, key)
    window = layer["window"]
    reach = min(past + t, window - 1 + t) if window else past + t
    yield ("attention", t, reach, heads, key, 1)
    if layer["gated"]:
        yield ("elementwise", out * t)
        yield ("elementwise_multiply", out * t)
    yield ("gemm", hidden, t, out, 1)


def _delta_net(layer: Model, hidden: int, t: int, _: int) -> Iterator[Op]:
    heads, key = layer["value_heads"], layer["key_width"]
    values = heads * layer["value_width"]
    channels = 2 * layer["key_heads"] * key + values
    for width in (channels, values, heads, heads):
        yield ("gemm", width, t, hidden, 1)
    yield from [("elementwise", heads * t)] * 2
    yield ("ssm_conv", t, channels, layer["kernel"])
    yield ("silu", channels * t)
    yield from [("l2_norm", key, layer["key_heads"] * t)] * 2
    yield ("gated_delta_net", t, heads, key, layer["value_width"])
    yield ("rms_norm", layer["value_width"], heads * t)
    yield ("silu", values * t)
    yield ("elementwise_multiply", values * t)
    yield ("gemm", hidden, t, values, 1)


def _activation(layer: Model, elements: int) -> Iterator[Op]:
    yield ("elementwise" if layer["gelu"] else "silu", elements)
    yield ("elementwise_multiply", elements)


def _dense(layer: Model, hidden: int, t: int, width: int = 0) -> Iterator[Op]:
    width = width or layer["width"]
    yield from [("gemm", width, t, hidden, 1)] * 2
    yield from _activation(layer, width * t)
    yield ("gemm", hidden, t, width, 1)


def _experts(layer: Model, hidden: int, t: int) -> Iterator[Op]:
    experts, used, width = layer["experts"], layer["used"], layer["width"]
    yield ("gemm", experts, t, hidden, 1)
    yield ("softmax", experts * t)
    yield ("expert_route", t, experts, used)
    yield from [("expert_gemm", width, t, hidden, experts, used)] * 2
    yield from _activation(layer, width * used * t)
    yield ("expert_gemm", hidden, t, width, experts, used)
    yield ("elementwise_multiply", hidden * used * t)
    yield ("reduction", used, hidden * t)
    if layer["shared_width"]:
        yield from _dense(layer, hidden, t, layer["shared_width"])
        if layer["shared_gate"]:
            yield ("elementwise_multiply", hidden * t)
            yield ("reduction", hidden, t)
            yield ("elementwise", t)
            yield ("elementwise_multiply", hidden * t)
        yield ("elementwise_add", hidden * t)


def semantic_schedule(model: Model, prefill: int, generated: int) -> tuple[bytes, list[Op]]:
    """Return the commitment and all operations."""
    phases = [semantic_phase(model, prefill, 0), semantic_phase(model, generated, prefill)]
    encoded = [
        u32(len(phase)) + b"".join(u32(stage) + encode_operation(op) for stage, op in phase)
        for phase in phases
    ]
    commitment = h("palw.semantic-schedule", model["id"], u32(prefill), u32(generated), *encoded)
    return commitment, [operation for phase in phases for _, operation in phase]
