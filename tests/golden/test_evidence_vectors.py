"""docs/spec/vectors/evidence.json: program and second implementation both give it."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from tallystick.compute.profiles import profile_architecture
from tallystick.compute.rules import RULES_V1, RULES_V3
from tallystick.errors import EvidenceError
from tallystick.evidence.adapter.transcript import adapt_transcript
from tallystick.evidence.gemm_trace import decode_trace, encode_trace, gemm_root, make_trace
from tallystick.evidence.observed import ObservedEvidence
from tallystick.evidence.portable import decode_portable, derive, encode_portable
from tallystick.evidence.routes import decode_routes, encode_routes
from tallystick.evidence.schedule import encode_schedule
from tallystick.evidence.schedule_checks import price
from tests.golden import reference_observer as observer
from tests.golden.write_evidence_vectors import text
from tests.support.decoding import decode_schedule
from tests.support.evidence import SEALING_GATE, SMALL_GATE, small_header
from tests.support.vectors import spec_vectors

TEXT: Final = (spec_vectors() / "evidence.json").read_text(encoding="utf-8")
VECTORS: Final = json.loads(TEXT)
BLIND: Final = bytes.fromhex(VECTORS["blind"])
SEALING_TRANSCRIPT: Final = (spec_vectors() / "observer-sealing.jsonl").read_bytes()


def test_the_second_implementation_writes_this_file() -> None:
    assert text() == TEXT


@pytest.mark.parametrize("name", ["live", "sealed", "pass"])
def test_schedules_and_traces(name: str) -> None:
    vector = VECTORS[name]
    schedule = decode_schedule(bytes.fromhex(vector["schedule"]))
    trace = decode_trace(bytes.fromhex(vector["trace"]))

    assert encode_schedule(schedule).hex() == vector["schedule"]
    assert schedule.commitment(bytes.fromhex(VECTORS["ruleset_id"])).hex() == vector["commitment"]
    assert schedule.events == vector["operations"]
    assert price(schedule, RULES_V1) == vector["units_v1"]
    assert trace == make_trace(schedule, [*map(bytes.fromhex, vector["sketches"])])
    assert encode_trace(trace).hex() == vector["trace"]
    assert trace.scheme.hex() == vector["trace_scheme_id"]
    assert gemm_root(BLIND, trace).hex() == vector["gemm_root"]
    assert ObservedEvidence(schedule, trace).trace_events == len(vector["sketches"])


def test_routes() -> None:
    vector = VECTORS["routes"]
    routes = decode_routes(bytes.fromhex(vector["encoding"]))
    assert encode_routes(routes).hex() == vector["encoding"]
    assert routes.rows == len(vector["rows"])
    assert routes.root(BLIND).hex() == vector["expert_route_root"]


def test_the_golden_transcript_gives_this_evidence() -> None:
    lines = [small_header("sketch"), *map(observer.line, observer.records("sketch")[1:])]
    found = adapt_transcript(lines, SMALL_GATE, BLIND)
    assert found.evidence.trace is not None
    assert found.routes is not None
    assert encode_schedule(found.evidence.schedule).hex() == VECTORS["live"]["schedule"]
    assert encode_trace(found.evidence.trace).hex() == VECTORS["live"]["trace"]
    assert encode_routes(found.routes).hex() == VECTORS["routes"]["encoding"]


def test_the_golden_transcript_of_a_pass_gives_this_evidence() -> None:
    wanted = VECTORS["pass"]
    found = adapt_transcript([SEALING_TRANSCRIPT], SEALING_GATE, BLIND)
    assert found.evidence.trace is not None
    assert found.routes is not None
    assert encode_schedule(found.evidence.schedule).hex() == wanted["schedule"]
    assert encode_trace(found.evidence.trace).hex() == wanted["trace"]
    assert (found.gemm_root or b"").hex() == wanted["gemm_root"]
    assert encode_routes(found.routes).hex() == wanted["routes"]["encoding"]
    assert (found.expert_route_root or b"").hex() == wanted["routes"]["expert_route_root"]


@pytest.mark.parametrize("vector", VECTORS["portable"], ids=lambda vector: vector["name"])
def test_portable_evidence(vector: dict[str, Any]) -> None:
    evidence = decode_portable(bytes.fromhex(vector["encoding"]))
    assert encode_portable(evidence).hex() == vector["encoding"]
    assert evidence.claimed_ruleset_id == RULES_V3.ruleset_id
    assert evidence.gemm_trace_root.hex() == vector["gemm_trace_root"]
    architecture = profile_architecture("qwen3.6-35b-a3b")
    if evidence.schedule is not None:
        # The vectors' schedules are short ones, which cannot be of so many layers.
        commitment = evidence.schedule.commitment(evidence.claimed_ruleset_id)
        assert commitment.hex() == vector["schedule_commitment"]
        with pytest.raises(EvidenceError, match="lacks"):
            derive(evidence, architecture)
        return
    derived = derive(evidence, architecture)
    assert derived.schedule_commitment.hex() == vector["schedule_commitment"]
    assert derived.compute_units == vector["compute_units"]
