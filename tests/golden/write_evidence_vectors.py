"""Write docs/spec/vectors/evidence.json with the second implementation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.golden import reference_compute as compute
from tests.golden import reference_evidence as reference
from tests.golden import reference_observer as observer
from tests.golden import reference_sealing_pass as sealing
from tests.golden.reference_compute import hashed

FILE = Path(__file__).resolve().parents[2] / "docs" / "spec" / "vectors" / "evidence.json"
COMPUTE = json.loads(FILE.with_name("compute_units.json").read_text(encoding="utf-8"))
BLIND = bytes(range(32))
JOB, SHAPE, STATES = "6a" * 32, "73" * 32, "72" * 32
SEALED: list[reference.Step] = [
    (2, 0, 0, 2, [(1, ("gemm", 64, 2, 8, 1)), (0, ("gemm", 3, 2, 8, 1))]),
    (2, 1, 2, 1, [(1, ("gemm", 64, 1, 8, 1)), (0, ("gemm", 3, 1, 8, 1))]),
]
SEALED_SKETCHES = ["8" * 64, "123456" + "0" * 58, "7" * 64, "9ab" + "0" * 61]


def observed(
    steps: list[reference.Step], sketches: list[str], scheme: str, ruleset: bytes
) -> dict[str, Any]:
    encoding = reference.schedule(steps)
    scheme_id = reference.trace_scheme(scheme)
    groups = reference.groups(steps, sketches)
    return {
        "schedule": encoding.hex(),
        "commitment": hashed("palw.operation-schedule", 1, ruleset, encoding),
        "operations": sum(len(step[4]) for step in steps),
        "units_v1": reference.price(steps),
        "sketches": sketches,
        "trace_scheme_id": scheme_id,
        "trace": (bytes.fromhex(scheme_id) + compute.u32(len(sketches)) + groups).hex(),
        "gemm_root": hashed("palw.gemm-trace", 1, BLIND, bytes.fromhex(scheme_id), groups),
    }


def document() -> dict[str, Any]:
    ruleset = bytes.fromhex(RULESET)
    steps = reference.steps(observer.records("sketch"))
    events = observer.records("sketch")
    sketches = [event["sketch"]["hex"] for event in events if "sketch" in event]
    live = observed(steps, sketches, reference.LIVE, ruleset)
    sealed = observed(SEALED, SEALED_SKETCHES, reference.SEALING, ruleset)
    route_parts = reference.route_parts(1, 4, 2, observer.CHOSEN)
    routes = {
        "rows": observer.CHOSEN,
        "encoding": b"".join(route_parts).hex(),
        "expert_route_root": hashed("palw.expert-routes", 1, BLIND, *route_parts),
    }
    run = sealing.Pass()
    records = sealing.records(run)
    chunks = [len(chunk.positions) for chunk in sealing.chunks(run)]
    found = reference.steps(records, chunks)
    sketches = [event["sketch"]["hex"] for event in records if "sketch" in event]
    whole_pass = observed(found, sketches, reference.SEALING, ruleset)
    return {
        "blind": BLIND.hex(),
        "ruleset_id": RULESET,
        "live": live,
        "sealed": sealed,
        "routes": routes,
        "pass": {**whole_pass, "routes": routes_of(run)},
        "portable": [*portables(live, sealed, routes["expert_route_root"])],
    }


def routes_of(run: sealing.Pass) -> dict[str, Any]:
    """Return the routes of a pass: by position, in the last layer from the first sample on."""
    rows = [
        sealing.chosen(position, layer)
        for position in range(run.positions)
        for layer in range(sealing.LAYERS)
        if layer < sealing.LAYERS - 1 or position >= len(run.prompt) - 1
    ]
    parts = reference.route_parts(sealing.LAYERS, sealing.EXPERTS, sealing.USED, rows)
    return {
        "rows": rows,
        "encoding": b"".join(parts).hex(),
        "expert_route_root": hashed("palw.expert-routes", 1, BLIND, *parts),
    }


def portables(live: dict[str, Any], sealed: dict[str, Any], routes: Any) -> list[dict[str, Any]]:
    """Return one portable evidence of each level; all are of the profile qwen3.6-35b-a3b."""
    no_states = reference.empty("tallystick.no-state-root")
    no_routes = reference.empty("palw.no-expert-routes")
    no_trace = reference.empty("palw.no-gemm-trace")
    made = []
    for name, level, evidence, roots in (
        ("none", 0, None, (no_states, no_routes, no_trace)),
        ("graph", 1, live, (no_states, no_routes, no_trace)),
        ("gemm", 2, live, (no_states, routes, live["gemm_root"])),
        ("states", 3, None, (STATES, routes, no_trace)),
        ("all", 3, sealed, (STATES, routes, sealed["gemm_root"])),
    ):
        traced = roots[2] != no_trace
        fields: dict[str, Any] = {
            "level": level,
            "prefill": 2,
            "generated": 2,
            "job_nullifier": JOB,
            "shape_profile_id": SHAPE,
            "schedule": None if evidence is None else bytes.fromhex(evidence["schedule"]),
            "trace_events": len(evidence["sketches"]) if evidence and traced else 0,
            "state_root": roots[0],
            "expert_route_root": roots[1],
            "gemm_root": roots[2],
            "units": compute.compute_units(compute.QWEN, 2, 2),
            "ruleset_id": RULESET,
        }
        semantic = compute.schedule_commitment(compute.QWEN, 2, 2)
        made.append(
            {
                "name": name,
                "encoding": reference.portable(fields).hex(),
                "schedule_commitment": semantic if evidence is None else evidence["commitment"],
                "gemm_trace_root": reference.state_evidence(*roots) if level == 3 else roots[2],
                "compute_units": fields["units"],
            }
        )
    return made


RULESET: str = next(each["ruleset_id"] for each in COMPUTE["rulesets"] if each["version"] == 3)


def text() -> str:
    return json.dumps(document(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
