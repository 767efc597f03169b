"""From a transcript to evidence. Written from docs/spec/{observer,evidence,compute-units}.md.

The reader here takes transcripts of mode ``sketch`` and checks what decides about the evidence:
order of steps, shapes, sketches and routes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from typing import Any

from tests.golden.independent.basics import h, require, same, u32, u64
from tests.golden.independent.compute import Op
from tests.golden.independent.documents import canonical
from tests.golden.independent.evidence import LIVE, SEALED, encode_schedule

Fields = dict[str, Any]

WORDS = r"[A-Za-z0-9_.]+"
LAYER = r"(0|[1-9]\d{0,3})"
NAMES = [
    re.compile(pattern)
    for pattern in (rf"{WORDS}-{LAYER}", rf"cache_[A-Za-z]+_l{LAYER}", rf"blk\.{LAYER}\.{WORDS}")
]
LAYOUT = ("VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE")
PER_ROW = {"RMS_NORM": "rms_norm", "L2_NORM": "l2_norm"}
PER_ELEMENT = {
    "SOFT_MAX": "softmax", "MUL": "elementwise_multiply", "ADD": "elementwise_add",
    "GET_ROWS": "embedding_lookup", "UNARY": "elementwise", "SCALE": "elementwise",
    "DIV": "elementwise", "CLAMP": "elementwise",
}  # fmt: skip
PER_BYTE = {
    "SET_ROWS": "kv_cache_write", "CONT": "tensor_copy", "CPY": "tensor_copy",
    "DUP": "tensor_copy", "CONCAT": "tensor_copy",
}  # fmt: skip


def layer_of(name: str) -> int | None:
    """observer.md: the layer that a tensor's name tells."""
    bare = name.split(" (")[0]
    matches = [pattern.fullmatch(bare) for pattern in NAMES]
    return next((int(match.group(1)) for match in matches if match), None)


def operations(event: Fields, used: int) -> list[Op]:
    """compute-units.md: what a node is."""
    tensor = event["tensor"]
    op, o, sources = tensor["op"], tensor["shape"], [x["shape"] for x in event["sources"]]
    rows, elements = prod(o[1:]), prod(o)
    if op in LAYOUT:
        return []
    if op in PER_ROW:
        return [(PER_ROW[op], o[0], rows)]
    if op in PER_ELEMENT:
        return [(PER_ELEMENT[op], elements)]
    if op in PER_BYTE:
        return [(PER_BYTE[op], tensor["n_bytes"])]
    if op == "GLU":
        return [("silu", elements), ("elementwise_multiply", elements)]
    if op == "ROPE":
        return [("rotary", o[2] * o[3], o[1], o[0])]
    if op in ("ARGSORT", "TOP_K"):
        return [("expert_route", rows, o[0] if op == "ARGSORT" else sources[0][0], used)]
    if op == "SUM_ROWS":
        return [("reduction", sources[0][0], rows)]
    return [_product(op, o, sources, rows)]


def _product(op: str, o: list[int], sources: list[list[int]], rows: int) -> Op:
    if op == "SSM_CONV":
        return ("ssm_conv", rows, sources[1][1], sources[1][0])
    if op == "GATED_DELTA_NET":
        queries, values = sources[0], sources[2]
        return ("gated_delta_net", values[2] * values[3], values[1], queries[0], values[0])
    if op == "MUL_MAT_ID":
        weights, _, chosen = sources[:3]
        return ("expert_gemm", weights[1], chosen[1], weights[0], weights[2], chosen[0])
    same("transcript: a node without an operation", "MUL_MAT", op)
    weights, inputs = sources
    same("transcript: shapes of a product", [weights[1], *inputs[1:]], o)
    same("transcript: shapes of a product", weights[0], inputs[0])
    return ("gemm", weights[1], inputs[1], weights[0], inputs[2] * inputs[3])


def steps_of(records: list[Fields]) -> Iterator[tuple[int, int, list[Fields]]]:
    """Phase, number and records of each step; the steps follow each other."""
    key, phases = ("", -1), ("prefill", "decode", "sealing")
    group: list[Fields] = []
    for record in records:
        found = (record["phase"], record["phase_step"])
        if group and found != key:
            yield phases.index(key[0]), key[1], group
            group = []
        key = found
        group.append(record)
    yield phases.index(key[0]), key[1], group


def chunks_of(policy: Fields) -> list[int]:
    """observer.md: the tokens of each step of a sealing pass, none for a run."""
    if "policy" not in policy:
        return []
    same("transcript: policy", "row-class", policy["policy"])
    left = policy["prompt_tokens"] + policy["generated_tokens"] - 1
    floor, top = policy["row_floor"], policy["row_max"]
    if left < floor or top < 2 * floor:
        return [1] * left
    found = []
    while left > top:
        found.append(min(top, left - floor))
        left -= found[-1]
    return [*found, left]


def adapt(data: bytes, used: int) -> Fields:
    """Return schedule, trace and routes of a transcript; ``used`` experts of the model a token."""
    lines = data.split(b"\n")
    require(lines.pop() == b"", "transcript: its end")
    header, *records, result = [canonical(line, 4 << 20) for line in lines]
    same("transcript: frame", ("header", "result"), (header["record"], result["record"]))
    same("transcript: observer", "sketch", header["observer"])
    table: dict[tuple[int, Op], int] = {}
    found: Fields = {"steps": [], "groups": b"", "rows": [], "operations": 0}
    position, layers = 0, header["model"]["n_layer"]
    chunks = chunks_of(header["execution_policy"])
    prompt = len(result["prompt_token_ids"])
    for phase, number, group in steps_of(records):
        same("transcript: a pass or a run", chunks != [], phase == 2)
        tokens = chunks[number] if chunks else 1
        here = list(range(position, position + tokens))
        due = {layer: list(here) for layer in range(layers)}
        if chunks:  # the last layer's count where a token is sampled
            due[layers - 1] = [at for at in here if at >= prompt - 1]
        entries: list[int] = []
        for record in group:
            if record["record"] == "route":
                same("transcript: a route", due[record["layer"]].pop(0), record["position"])
                found["rows"].append((record["position"], record["layer"], record["expert_ids"]))
                continue
            layer = layer_of(record["tensor"]["name"])
            same("transcript: a layer", layer, record["layer"])
            for operation in operations(record, used):
                if operation[0] == "gemm":
                    place = u32(found["operations"] + len(entries))
                    found["groups"] += place + bytes.fromhex(record["sketch"]["hex"])
                stage = 0 if layer is None else layer + 1
                entries.append(table.setdefault((stage, operation), len(table)))
        require(not used or not any(due.values()), "transcript: routes are missing")
        step = {"phase": phase, "number": number, "first_position": position, "tokens": tokens}
        found["steps"].append({**step, "entries": entries})
        found["operations"] += len(entries)
        position += tokens
    generated = len(result["generated_token_ids"])
    same("transcript: positions", prompt + generated - 1, position)
    same("transcript: chunks", len(chunks), _steps(found, 2))
    if not chunks:
        same("transcript: prefill", prompt, _steps(found, 0))
    found["scheme"] = SEALED if chunks else LIVE
    found["last_from"] = prompt - 1 if chunks else 0
    found["schedule"] = encode_schedule(list(table), found["steps"])
    found["trace"] = found["scheme"] + u32(len(found["groups"]) // 36) + found["groups"]
    return found


def _steps(found: Fields, phase: int) -> int:
    return sum(step["phase"] == phase for step in found["steps"])


def roots(found: Fields, blind: bytes, figures: tuple[int, int, int]) -> dict[str, bytes]:
    """Roots and encodings of trace and routes; ``figures`` are layers, experts, used."""
    layers, experts, used = figures
    rows = sorted(found["rows"], key=lambda row: row[:2])
    places = [
        (position, layer)
        for position in range(sum(step["tokens"] for step in found["steps"]))
        for layer in range(layers)
        if layer < layers - 1 or position >= found["last_from"]
    ]
    same("transcript: rows", places, [row[:2] for row in rows])
    ids = b"".join(u32(value) for _, _, row in rows for value in row)
    numbers = [u32(layers), u32(experts), u32(used), u64(len(rows))]
    return {
        "routes": b"".join(numbers) + ids,
        "expert_route_root": h("palw.expert-routes", blind, *numbers, ids),
        "gemm_root": h("palw.gemm-trace", blind, found["scheme"], found["groups"]),
    }
