"""A second implementation of docs/spec/compute-units.md, from its text and sharing no code.

Plain dictionaries and tuples; operations are (name, field, ...).
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from tests.golden.reference import framed

Op = tuple[Any, ...]

KINDS = {
    "gemm": "4444", "attention": "44444", "layer_norm": "44", "rms_norm": "44", "rotary": "444",
    "expert_route": "444", "kv_cache_read": "8", "kv_cache_write": "8", "silu": "8",
    "elementwise_multiply": "8", "softmax": "8", "elementwise_add": "8", "tensor_copy": "8",
    "embedding_lookup": "8", "generic": "48", "expert_gemm": "44444", "ssm_conv": "444",
    "gated_delta_net": "4444", "l2_norm": "44", "reduction": "44", "elementwise": "8",
}  # fmt: skip
TABLE = {
    "gemm": (4096 * 4096 * 4096, 120), "attention": (4096 * 4096 * 32 * 128, 80),
    "layer_norm": (4096, 8), "rms_norm": (4096, 8), "rotary": (4096, 4), "expert_route": (4096, 16),
    "kv_cache_read": (1 << 20, 1), "kv_cache_write": (1 << 20, 1), "silu": (4096, 2),
    "elementwise_multiply": (4096, 2), "softmax": (4096, 4), "elementwise_add": (4096, 2),
    "tensor_copy": (1 << 20, 1), "embedding_lookup": (4096, 1), "generic": (4096, 2),
}  # fmt: skip
FULL = {"heads": 16, "heads_kv": 2, "key": 256, "value": 256, "window": 0, "gated": 1, "norms": 1}
LINEAR = {"key_heads": 16, "value_heads": 32, "key": 128, "value": 128, "kernel": 4}
EXPERTS = {"experts": 256, "used": 8, "width": 512, "shared": 512, "gate": 1}
QWEN: dict[str, Any] = {
    "name": "qwen35moe",
    "hidden": 2048,
    "vocabulary": 248320,
    "layers": [(FULL if i % 4 == 3 else LINEAR, EXPERTS) for i in range(40)],
}


def u32(value: int) -> bytes:
    return value.to_bytes(4, "little")


def hashed(domain: str, version: int, *parts: bytes) -> str:
    return sha256(framed(domain, version, parts)).hexdigest()


def encoded(op: Op) -> bytes:
    """The section on operations."""
    name, *values = op
    kind = list(KINDS).index(name)
    widths = map(int, KINDS[name])
    fields = (v.to_bytes(w, "little") for v, w in zip(values, widths, strict=True))
    return bytes([kind]) + b"".join(fields)


def cost(op: Op) -> int:
    """The section on rulesets v1 and v2, without its limits."""
    name, *values = op
    factors = values[1:] if name == "generic" else values
    reference, units = TABLE[name]
    work = units
    for factor in factors:
        work *= factor
    quotient, rest = divmod(work, reference)
    return max(1, quotient + (rest > 0))


def payload(generic: bool) -> bytes:
    names = [name for name in TABLE if generic or name != "generic"]
    terms = [f"{name}={TABLE[name][1]}/{TABLE[name][0]}" for name in names]
    return ";".join([*terms, "ceil", "min1"]).encode()


def multiply_accumulates(model: Any, n: int) -> int:
    """The section on ruleset v3, one token after the other."""
    hidden, total = model["hidden"], 0
    for _ in range(n):
        total += hidden * model["vocabulary"]
        for mixer, experts in model["layers"]:
            if "heads" in mixer:
                q = mixer["heads"] * mixer["key"] * (1 + mixer["gated"])
                kv = mixer["heads_kv"] * (mixer["key"] + mixer["value"])
                total += hidden * (q + kv + mixer["heads"] * mixer["value"])
            else:
                values = mixer["value_heads"] * mixer["value"]
                channels = 2 * mixer["key_heads"] * mixer["key"] + values
                total += hidden * (channels + values + 2 * mixer["value_heads"] + values)
                total += mixer["kernel"] * channels
                total += 2 * mixer["value_heads"] * mixer["key"] * mixer["value"]
            active = experts["used"] * experts["width"] + experts["shared"]
            total += hidden * experts["experts"] + 3 * hidden * active
    for position in range(1, n + 1):
        for mixer, _ in model["layers"]:
            if "heads" in mixer:
                total += position * mixer["heads"] * (mixer["key"] + mixer["value"])
    return total


def compute_units(model: Any, prefill: int, generated: int) -> int:
    quotient, rest = divmod(2 * multiply_accumulates(model, prefill + generated), 10**6)
    return quotient + (rest > 0)


def architecture_bytes(model: Any) -> bytes:
    """The section on architecture descriptions."""
    name = model["name"].encode()
    out: bytes = u32(len(name)) + name + u32(model["hidden"]) + u32(model["vocabulary"])
    out += u32(len(model["layers"]))
    for mixer, experts in model["layers"]:
        if "heads" in mixer:
            numbers = ("heads", "heads_kv", "key", "value", "window")
            out += b"\0" + b"".join(u32(mixer[x]) for x in numbers)
            out += bytes([mixer["gated"], mixer["norms"], 0])
        else:
            numbers = ("key_heads", "value_heads", "key", "value", "kernel")
            out += b"\1" + b"".join(u32(mixer[x]) for x in numbers)
        out += b"\1" + b"".join(u32(experts[x]) for x in ("experts", "used", "width", "shared"))
        out += bytes([experts["gate"], 0, 0])  # gate, SiLU, no post norms
    return out


def mixer_operations(mixer: Any, hidden: int, t: int, past: int) -> Iterator[Op]:
    if "heads" in mixer:
        heads, kv, key = mixer["heads"], mixer["heads_kv"], mixer["key"]
        out = heads * mixer["value"]
        yield from (
            ("gemm", 2 * heads * key, t, hidden, 1),
            ("gemm", kv * key, t, hidden, 1),
            ("gemm", kv * mixer["value"], t, hidden, 1),
            ("rms_norm", key, heads * t),
            ("rotary", t, heads, key),
            ("rms_norm", key, kv * t),
            ("rotary", t, kv, key),
            ("attention", t, past + t, heads, key, 1),
            ("elementwise", out * t),
            ("elementwise_multiply", out * t),
            ("gemm", hidden, t, out, 1),
        )
        return
    heads, key = mixer["value_heads"], mixer["key"]
    values = heads * mixer["value"]
    channels = 2 * mixer["key_heads"] * key + values
    yield from (("gemm", width, t, hidden, 1) for width in (channels, values, heads, heads))
    yield from (
        ("elementwise", heads * t),
        ("elementwise", heads * t),
        ("ssm_conv", t, channels, mixer["kernel"]),
        ("silu", channels * t),
        ("l2_norm", key, mixer["key_heads"] * t),
        ("l2_norm", key, mixer["key_heads"] * t),
        ("gated_delta_net", t, heads, key, mixer["value"]),
        ("rms_norm", mixer["value"], heads * t),
        ("silu", values * t),
        ("elementwise_multiply", values * t),
        ("gemm", hidden, t, values, 1),
    )


def expert_operations(experts: Any, hidden: int, t: int) -> Iterator[Op]:
    count, used, width, shared = (experts[x] for x in ("experts", "used", "width", "shared"))
    yield from (
        ("gemm", count, t, hidden, 1),
        ("softmax", count * t),
        ("expert_route", t, count, used),
        ("expert_gemm", width, t, hidden, count, used),
        ("expert_gemm", width, t, hidden, count, used),
        ("silu", width * used * t),
        ("elementwise_multiply", width * used * t),
        ("expert_gemm", hidden, t, width, count, used),
        ("elementwise_multiply", hidden * used * t),
        ("reduction", used, hidden * t),
        ("gemm", shared, t, hidden, 1),
        ("gemm", shared, t, hidden, 1),
        ("silu", shared * t),
        ("elementwise_multiply", shared * t),
        ("gemm", hidden, t, shared, 1),
        ("elementwise_multiply", hidden * t),
        ("reduction", hidden, t),
        ("elementwise", t),
        ("elementwise_multiply", hidden * t),
        ("elementwise_add", hidden * t),
    )


def phase(model: Any, t: int, past: int) -> list[tuple[int, Op]]:
    """The section on the semantic schedule, for models like QWEN."""
    hidden = model["hidden"]
    if t == 0:
        return []
    out: list[tuple[int, Op]] = [(0, ("embedding_lookup", hidden * t))]
    for i, (mixer, experts) in enumerate(model["layers"]):
        stage = i + 1
        out.append((stage, ("rms_norm", hidden, t)))
        out += [(stage, op) for op in mixer_operations(mixer, hidden, t, past)]
        out.append((stage, ("elementwise_add", hidden * t)))
        out.append((stage, ("rms_norm", hidden, t)))
        out += [(stage, op) for op in expert_operations(experts, hidden, t)]
        out.append((stage, ("elementwise_add", hidden * t)))
    stage = len(model["layers"]) + 1
    out.append((stage, ("rms_norm", hidden, t)))
    out.append((stage, ("gemm", model["vocabulary"], t, hidden, 1)))
    return out


def schedule_commitment(model: Any, prefill: int, generated: int) -> str:
    phases = [phase(model, prefill, 0), phase(model, generated, prefill)]
    blobs = [u32(len(p)) + b"".join(u32(s) + encoded(op) for s, op in p) for p in phases]
    identity = sha256(framed("palw.architecture", 1, [architecture_bytes(model)])).digest()
    return hashed("palw.semantic-schedule", 1, identity, u32(prefill), u32(generated), *blobs)
