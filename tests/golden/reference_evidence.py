"""A second implementation of docs/spec/evidence.md, from its text and sharing no code.

It makes evidence of the records of a transcript whose nodes are those of `reference_observer`.
"""

from __future__ import annotations

from typing import Any

from tests.golden import reference_compute as compute
from tests.golden.reference_compute import Op, hashed, u32

Record = dict[str, Any]
Step = tuple[int, int, int, int, list[tuple[int, Op]]]  # phase, number, first, tokens, operations

LIVE = "sign_bucket_256_v1;prefix=64;lanes=4*i64be;steps=live,one token each"
SEALING = "sign_bucket_256_v1;prefix=64;lanes=4*i64be;steps=sealing pass,chunks"


def operations(event: Record) -> list[tuple[int, Op]]:
    """Return stage and operation of a node, for the few kinds of node that are needed."""
    shape, sources = event["tensor"]["shape"], [s["shape"] for s in event["sources"]]
    elements = shape[0] * shape[1] * shape[2] * shape[3]
    stage = 0 if event["layer"] is None else event["layer"] + 1
    kind = event["tensor"]["op"]
    if kind == "VIEW":
        return []
    if kind == "MUL_MAT":
        (k, m), n = sources[0][:2], sources[1][1]
        return [(stage, ("gemm", m, n, k, shape[2] * shape[3]))]
    if kind == "SET_ROWS":
        return [(stage, ("kv_cache_write", event["tensor"]["n_bytes"]))]
    names = {"GET_ROWS": "embedding_lookup", "ADD": "elementwise_add"}
    return [(stage, (names[kind], elements))]


def steps(records: list[Record], chunks: list[int] | None = None) -> list[Step]:
    """Return the steps of a transcript; of a pass they evaluate ``chunks`` tokens each."""
    found: list[Step] = []
    names = ["prefill", "decode", "sealing"]
    for record in records:
        if record["record"] != "event":
            continue
        at = (names.index(record["phase"]), record["phase_step"])
        if not found or found[-1][:2] != at:
            before = sum(step[3] for step in found)
            found.append((*at, before, chunks[at[1]] if chunks else 1, []))
        found[-1][4].extend(operations(record))
    return found


def table(of: list[Step]) -> list[tuple[int, Op]]:
    """Return the distinct operations in the order of first use."""
    return list(dict.fromkeys(operation for step in of for operation in step[4]))


def schedule(of: list[Step]) -> bytes:
    """The section on schedules: the encoding."""
    distinct = table(of)
    out = u32(len(distinct))
    for stage, op in distinct:
        out += u32(stage) + compute.encoded(op)
    out += u32(len(of))
    for phase, number, first, tokens, ops in of:
        out += bytes([phase]) + u32(number) + u32(first) + u32(tokens) + u32(len(ops))
        for operation in ops:
            out += u32(distinct.index(operation))
    return out


def price(of: list[Step]) -> int:
    """The units under rulesets v1 and v2."""
    return sum(compute.cost(op) for step in of for _, op in step[4])


def groups(of: list[Step], sketches: list[str]) -> bytes:
    """The section on traces: the groups."""
    flat = [op for step in of for _, op in step[4]]
    places = [place for place, op in enumerate(flat) if op[0] == "gemm"]
    pairs = zip(places, sketches, strict=True)
    return b"".join(u32(place) + bytes.fromhex(digits) for place, digits in pairs)


def trace_scheme(text: str) -> str:
    return hashed("palw.trace-scheme", 1, text.encode())


def route_parts(layers: int, experts: int, used: int, rows: list[list[int]]) -> list[bytes]:
    """The section on expert routes: the parts behind the blind, which are the encoding too."""
    ids = b"".join(u32(i) for row in rows for i in row)
    return [u32(layers), u32(experts), u32(used), len(rows).to_bytes(8, "little"), ids]


def portable(fields: dict[str, Any]) -> bytes:
    """The section on portable evidence; digests are hex, ``schedule`` is its encoding or None."""
    raw = bytes.fromhex
    out = b"\1\0" + bytes([fields["level"]])
    out += u32(fields["prefill"]) + u32(fields["generated"]) + (3).to_bytes(2, "little")
    out += raw(fields["job_nullifier"]) + raw(fields["shape_profile_id"])
    out += b"\0" if fields["schedule"] is None else b"\1" + fields["schedule"]
    out += fields["trace_events"].to_bytes(8, "little")
    out += raw(fields["state_root"]) + raw(fields["expert_route_root"]) + raw(fields["gemm_root"])
    out += fields["units"].to_bytes(8, "little")
    return bytes(out + raw(fields["ruleset_id"]))


def state_evidence(*roots: str) -> str:
    return hashed("tallystick.state-evidence", 1, *map(bytes.fromhex, roots))


def empty(domain: str) -> str:
    """Return the root of an absent part."""
    return hashed(domain, 1)
