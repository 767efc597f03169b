"""Operation schedules, GEMM traces, expert routes and portable evidence.

Written from docs/spec/evidence.md.
"""

from __future__ import annotations

import struct
from typing import Any

from tests.golden.independent.basics import Reader, h, require, same, u32, u64
from tests.golden.independent.compute import (
    RULESETS,
    Model,
    Op,
    encode_operation,
    price,
    read_operation,
    semantic_schedule,
    semantic_units,
)

Fields = dict[str, Any]

MAX_EVENTS = 250_000
PREFILL, DECODE, SEALING = range(3)
NONE, GRAPH, GEMM_TRACED, STATE_COMMITTED = range(4)
SKETCH = b"sign_bucket_256_v1;prefix=64;lanes=4*i64be;"
LIVE = h("palw.trace-scheme", SKETCH + b"steps=live,one token each")
SEALED = h("palw.trace-scheme", SKETCH + b"steps=sealing pass,chunks")
NO_SCHEME = h("palw.no-trace-scheme")
NO_GEMM = h("palw.no-gemm-trace")
NO_ROUTES = h("palw.no-expert-routes")
NO_STATES = h("tallystick.no-state-root")


def encode_schedule(operations: list[tuple[int, Op]], steps: list[Fields]) -> bytes:
    out = u32(len(operations))
    for stage, operation in operations:
        out += u32(stage) + encode_operation(operation)
    out += u32(len(steps))
    for step in steps:
        numbers = (step[name] for name in ("number", "first_position", "tokens"))
        out += bytes([step["phase"]]) + b"".join(map(u32, numbers))
        out += u32(len(step["entries"])) + b"".join(map(u32, step["entries"]))
    return out


def read_schedule(reader: Reader) -> Fields:
    """Schedule: the table, the steps, and the rules between them."""
    start = reader.at
    table = [(reader.u32(), read_operation(reader)) for _ in range(reader.count(65536))]
    steps, events = [], 0
    for _ in range(reader.count(65536)):
        step: Fields = {"phase": reader.u8(3), "number": reader.u32()}
        step |= {"first_position": reader.u32(), "tokens": reader.u32()}
        count = reader.count(MAX_EVENTS - events)
        step["entries"] = struct.unpack(f"<{count}I", reader.fixed(4 * count))
        events += count
        steps.append(step)
    found: Fields = {"table": table, "steps": steps, "events": events}
    found["encoding"] = reader.data[start : reader.at]
    _check_steps(found)
    return found


def _check_steps(schedule: Fields) -> None:
    table, steps = schedule["table"], schedule["steps"]
    require(len(steps) > 0, "schedule: no steps")
    require(len(set(table)) == len(table), "schedule: an operation twice")
    position, used, due = 0, 0, [0, 0, 0]
    for step in steps:
        phase = step["phase"]
        same("schedule: a step's number", due[phase], step["number"])
        same("schedule: a step's position", position, step["first_position"])
        require(step["tokens"] >= 1 and len(step["entries"]) >= 1, "schedule: an empty step")
        due[phase] += 1
        require(due[SEALING] == 0 or due[:SEALING] == [0, 0], "schedule: phases mixed")
        require(phase != PREFILL or due[DECODE] == 0, "schedule: prefill after decode")
        require(phase != DECODE or due[PREFILL] > 0, "schedule: decode without prefill")
        position += step["tokens"]
        for entry in step["entries"]:
            require(entry <= used, "schedule: not in the order of first use")
            used = max(used, entry + 1)
    same("schedule: operations that are not used", len(table), used)
    require(position < 2**32, "schedule: positions")
    schedule |= {"positions": position, "sealing": due[SEALING] > 0, "prefill": due[PREFILL]}


def occurrences(schedule: Fields) -> list[Op]:
    """All operations in the order of evaluation."""
    table = schedule["table"]
    return [table[entry][1] for step in schedule["steps"] for entry in step["entries"]]


def commitment(schedule: Fields, ruleset: bytes) -> bytes:
    return h("palw.operation-schedule", ruleset, schedule["encoding"])


def check_schedule(schedule: Fields, model: Model, prefill: int, generated: int) -> None:
    """Schedule: can it be one of this model and these counts?"""
    experts = any(layer["experts"] for layer in model["layers"])
    for stage, (name, *_) in schedule["table"]:
        require(stage <= len(model["layers"]), "schedule: a stage beyond the layers")
        require(name != "generic", "schedule: a generic operation")
        require(experts or not name.startswith("expert_"), "schedule: experts of a dense model")
    check_presence(schedule, model, prefill)
    same("schedule: its positions", prefill + generated - 1, schedule["positions"])
    if not schedule["sealing"]:
        require(all(step["tokens"] == 1 for step in schedule["steps"]), "schedule: a step's tokens")
        same("schedule: its prefill steps", prefill, schedule["prefill"])


def check_presence(schedule: Fields, model: Model, prefill: int) -> None:
    """Schedule: what no layer can do without, in every step."""
    first = 0
    for step in schedule["steps"]:
        layers = list(enumerate(model["layers"], 1))
        first += step["tokens"]
        if schedule["sealing"] and first < prefill:
            layers.pop()  # no position with an output
        shown = [(stage, op[0]) for stage, op in (schedule["table"][x] for x in step["entries"])]
        there = set(shown)
        for stage, layer in layers:
            names = ["gemm", *(["expert_route", "expert_gemm"] if layer["experts"] else [])]
            for name in names:
                require((stage, name) in there, f"schedule: no {name} at stage {stage}")
        nets = sum(layer["mixer"] == 1 for _, layer in layers)
        found = sum(name == "gated_delta_net" for _, name in shown)
        require(found >= nets, "schedule: a delta net without its recurrence")


def chunks(n: int, floor: int, most: int) -> list[int]:
    """execution.md#chunks."""
    if n < floor or most < 2 * floor:
        return [1] * n
    found = []
    while n > most:
        found.append(min(most, n - floor))
        n -= found[-1]
    return [*found, n]


def check_policy(schedule: Fields, runtime: Any) -> None:
    """Schedule: the steps are those of the policy."""
    sealing = runtime["policy"] == "row-class"
    same("9: the schedule's phases", sealing, schedule["sealing"])
    if sealing:
        rows = runtime["prompt_class"]
        expected = chunks(schedule["positions"], rows["floor"], rows["max_rows"])
        same("9: the schedule's chunks", expected, [x["tokens"] for x in schedule["steps"]])


def read_trace(data: bytes, schedule: Fields) -> Fields:
    """GEMM trace, held against its schedule."""
    reader = Reader(data, "trace")
    scheme, count = reader.digest(), reader.count(MAX_EVENTS)
    groups = reader.fixed(36 * count)
    reader.end()
    same("trace: scheme", SEALED if schedule["sealing"] else LIVE, scheme)
    products = [(i, op) for i, op in enumerate(occurrences(schedule)) if op[0] == "gemm"]
    same("trace: its number of groups", len(products), count)
    for at, (place, (_, m, n, _, batch)) in enumerate(products):
        group = groups[36 * at : 36 * at + 36]
        same("trace: the place of a group", u32(place), group[:4])
        require(not group[4:].hex()[m * n * batch :].strip("0"), "trace: digits of no element")
    return {"scheme": scheme, "groups": groups, "events": count}


def gemm_root(blind: bytes, trace: Fields) -> bytes:
    return h("palw.gemm-trace", blind, trace["scheme"], trace["groups"])


def read_routes(data: bytes) -> Fields:
    """Expert routes."""
    reader = Reader(data, "routes")
    found: Fields = {name: reader.u32() for name in ("layers", "experts", "used")}
    rows, used, experts = reader.u64(), found["used"], found["experts"]
    require(1 <= found["layers"] <= 1024 and 1 <= used <= experts <= 65536, "routes: numbers")
    require(rows >= 1 and rows * used * 4 <= 48 << 20, "routes: rows")
    ids = reader.fixed(rows * used * 4)
    reader.end()
    values = struct.unpack(f"<{rows * used}I", ids)
    require(max(values) < experts, "routes: an expert that does not exist")
    for at in range(0, rows * used, used):
        require(len(set(values[at : at + used])) == used, "routes: an expert twice")
    return {**found, "rows": rows, "ids": ids}


def route_rows(layers: int, positions: int, last_from: int) -> int:
    return (layers - 1) * positions + positions - last_from


def route_root(blind: bytes, routes: Fields) -> bytes:
    numbers = [u32(routes[name]) for name in ("layers", "experts", "used")]
    return h("palw.expert-routes", blind, *numbers, u64(routes["rows"]), routes["ids"])


def read_portable(data: bytes) -> Fields:
    """Portable evidence, with what can be derived without the model."""
    reader = Reader(data, "evidence")
    found: Fields = {"version": reader.u16(), "level": reader.u8(4)}
    found |= {"prefill": reader.u32(), "decode": reader.u32(), "ruleset": reader.u16()}
    found |= {"job_nullifier": reader.digest(), "shape_profile_id": reader.digest()}
    found["schedule"] = read_schedule(reader) if reader.u8(2) else None
    found["trace_events"] = reader.u64()
    found |= {name: reader.digest() for name in ("state_root", "route_root", "gemm_root")}
    found |= {"units": reader.u64(), "ruleset_id": reader.digest()}
    reader.end()
    same("evidence: version", 1, found["version"])
    require(found["prefill"] >= 1 and found["decode"] >= 1, "evidence: token counts")
    same("evidence: ruleset", RULESETS.get(found["ruleset_id"]), found["ruleset"])
    _check_parts(found)
    return found


def _check_parts(found: Fields) -> None:
    level, schedule = found["level"], found["schedule"]
    states, traced = found["state_root"] != NO_STATES, found["gemm_root"] != NO_GEMM
    same("evidence: state_root", level == STATE_COMMITTED, states)
    require(states or traced == (level == GEMM_TRACED), "evidence: gemm_root")
    require(found["route_root"] == NO_ROUTES or states or traced, "evidence: route_root")
    require(schedule is not None or not (traced or level == GRAPH), "evidence: no schedule")
    require(schedule is None or level != NONE, "evidence: a schedule at level none")
    products = sum(op[0] == "gemm" for op in occurrences(schedule)) if schedule else 0
    same("evidence: trace_events", products if traced else 0, found["trace_events"])
    require(not traced or products > 0, "evidence: a trace without products")
    found["traced"] = traced
    found["scheme"] = NO_SCHEME
    if traced:
        found["scheme"] = SEALED if schedule["sealing"] else LIVE


def composed_root(level: int, state_root: bytes, route_root: bytes, root: bytes) -> bytes:
    """The gemm_trace_root of a compute receipt."""
    if level == STATE_COMMITTED:
        return h("tallystick.state-evidence", state_root, route_root, root)
    return root


def derive(found: Fields, model: Model) -> Fields:
    """What follows from evidence and model."""
    prefill, decode, schedule = found["prefill"], found["decode"], found["schedule"]
    semantic, operations = semantic_schedule(model, prefill, decode)
    units, events, committed = semantic_units(model, prefill, decode), len(operations), semantic
    if schedule is not None:
        check_schedule(schedule, model, prefill, decode)
        events, committed = schedule["events"], commitment(schedule, found["ruleset_id"])
    if found["ruleset"] != 3:
        require(schedule is not None, "evidence: nothing to price")
        units = sum(price(op, found["ruleset"]) for op in occurrences(schedule))
    same("evidence: compute units", units, found["units"])
    return {
        "units": units,
        "events": events,
        "commitment": committed,
        "semantic": semantic,
        "semantic_operations": len(operations),
        "semantic_routes": sum(op[0] == "expert_route" for op in operations),
        "semantic_units": semantic_units(model, prefill, decode),
    }
