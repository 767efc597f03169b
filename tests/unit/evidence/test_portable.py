"""Portable evidence: what it claims is derived again, what it lacks is seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.compute.operations import Silu
from tallystick.compute.rules import RULES_V2, RULES_V3
from tallystick.compute.schedule import semantic_schedule
from tallystick.compute.semantic import semantic_units
from tallystick.contracts.commitments import (
    empty_gemm_root,
    empty_route_root,
    empty_state_root,
    no_trace_scheme,
    state_evidence_root,
)
from tallystick.contracts.compute_receipt import EvidenceLevel, TraceEvidence
from tallystick.errors import EvidenceError, InputError
from tallystick.evidence.gemm_trace import (
    TRACE_SCHEME_LIVE,
    TRACE_SCHEME_SEALING,
    gemm_root,
    make_trace,
)
from tallystick.evidence.observed import ObservedEvidence
from tallystick.evidence.portable import (
    PortableEvidence,
    ScheduleKind,
    decode_portable,
    derive,
    encode_portable,
)
from tallystick.evidence.portable_parts import (
    GatheredEvidence,
    RunNumbers,
    make_portable,
    open_routes,
    open_trace,
)
from tallystick.evidence.schedule_checks import price
from tests.support.evidence import (
    BLIND,
    DENSE,
    HYBRID,
    SEALING,
    at,
    completed,
    live,
    routes_of,
    schedule_of,
    sealed,
    trace_of,
)

NUMBERS = RunNumbers(b"j" * 32, b"s" * 32, 5, 2)
ONE_CHUNK = completed(sealed(6), HYBRID)
SEALED = completed(sealed(4, 2), HYBRID)
LIVE = completed(live(5, 2), HYBRID)
TRACED = ObservedEvidence(LIVE, trace_of(LIVE))
ROUTES = routes_of(HYBRID, 6)
STATES = b"r" * 32
GATHERED: Mapping[str, GatheredEvidence] = {
    "none": GatheredEvidence(None, None, None),
    "graph": GatheredEvidence(ObservedEvidence(LIVE, None), None, None),
    "gemm": GatheredEvidence(TRACED, None, None),
    "gemm-routes": GatheredEvidence(TRACED, ROUTES, None),
    "states": GatheredEvidence(None, None, STATES),
    "states-routes": GatheredEvidence(None, ROUTES, STATES),
    "states-graph": GatheredEvidence(
        ObservedEvidence(completed(sealed(6), HYBRID), None), ROUTES, STATES
    ),
    "all": GatheredEvidence(ObservedEvidence(SEALED, trace_of(SEALED)), ROUTES, STATES),
}


def portable(name: str) -> PortableEvidence:
    return make_portable(GATHERED[name], NUMBERS, HYBRID, BLIND)


@pytest.mark.parametrize("name", GATHERED)
def test_round_trip(name: str) -> None:
    evidence = portable(name)
    data = encode_portable(evidence)
    assert decode_portable(data) == evidence
    assert encode_portable(decode_portable(data)) == data


@pytest.mark.parametrize(
    ("name", "level", "kind", "scheme", "events"),
    [
        ("none", 0, ScheduleKind.SEMANTIC, no_trace_scheme(), 0),
        ("graph", 1, ScheduleKind.OBSERVED, no_trace_scheme(), 0),
        ("gemm", 2, ScheduleKind.OBSERVED, TRACE_SCHEME_LIVE, 252),
        ("gemm-routes", 2, ScheduleKind.OBSERVED, TRACE_SCHEME_LIVE, 252),
        ("states", 3, ScheduleKind.SEMANTIC, no_trace_scheme(), 0),
        ("states-routes", 3, ScheduleKind.SEMANTIC, no_trace_scheme(), 0),
        ("states-graph", 3, ScheduleKind.OBSERVED, no_trace_scheme(), 0),
        ("all", 3, ScheduleKind.OBSERVED, TRACE_SCHEME_SEALING, 82),
    ],
)
def test_what_follows_from_the_parts(
    name: str, level: int, kind: ScheduleKind, scheme: bytes, events: int
) -> None:
    evidence = portable(name)
    assert (evidence.level, evidence.kind) == (level, kind)
    assert (evidence.trace_scheme_id, evidence.trace_events) == (scheme, events)
    expected = TraceEvidence.GRAPH_FALLBACK if events else TraceEvidence.ABSENT
    assert evidence.trace_evidence is expected


def test_the_root_of_the_receipt() -> None:
    assert TRACED.trace is not None
    traced = gemm_root(BLIND, TRACED.trace)
    routes = ROUTES.root(BLIND)
    assert portable("none").gemm_trace_root == empty_gemm_root()
    assert portable("graph").gemm_trace_root == empty_gemm_root()
    assert portable("gemm-routes").gemm_trace_root == traced
    assert portable("states").gemm_trace_root == state_evidence_root(STATES, None, None)
    assert portable("states-routes").gemm_trace_root == state_evidence_root(STATES, routes, None)
    sealing = gemm_root(BLIND, trace_of(SEALED))
    assert portable("all").gemm_trace_root == state_evidence_root(STATES, routes, sealing)


@pytest.mark.parametrize("name", GATHERED)
def test_what_is_derived_for_the_model(name: str) -> None:
    evidence = portable(name)
    derived = derive(evidence, HYBRID)
    semantic = semantic_schedule(HYBRID, 5, 2)
    assert derived.compute_units == 41692
    assert derived.semantic.commitment == semantic.commitment
    assert derived.semantic.expert_routes == 80
    if evidence.schedule is None:
        assert derived.schedule_commitment == semantic.commitment
        assert derived.schedule_events == semantic.operations == 3046
    else:
        commitment = evidence.schedule.commitment(RULES_V3.ruleset_id)
        assert derived.schedule_commitment == commitment
        assert derived.schedule_events == evidence.schedule.events


def test_an_older_ruleset_is_priced_from_the_schedule() -> None:
    schedule = live(5, 2)  # these rules price no experts
    traced = ObservedEvidence(schedule, trace_of(schedule))
    units = price(schedule, RULES_V2)
    evidence = replace(
        make_portable(GatheredEvidence(traced, None, None), NUMBERS, DENSE, BLIND),
        ruleset_version=2,
        claimed_ruleset_id=RULES_V2.ruleset_id,
        claimed_units=units,
    )
    again = decode_portable(encode_portable(evidence))
    derived = derive(again, DENSE)
    assert derived.compute_units == units != semantic_units(DENSE, 5, 2).compute_units
    assert derived.schedule_commitment == schedule.commitment(RULES_V2.ruleset_id)
    with pytest.raises(EvidenceError, match="compute units"):
        replace(evidence, claimed_units=units + 1)
    with pytest.raises(EvidenceError, match="schedule"):
        replace(portable("states"), ruleset_version=2, claimed_ruleset_id=RULES_V2.ruleset_id)


CHANGES: list[tuple[str, dict[str, Any], str]] = [
    ("gemm", {"version": 2}, "version"),
    ("gemm", {"prefill_tokens": 0}, "token counts"),
    ("gemm", {"decode_tokens": 0}, "token counts"),
    ("gemm", {"ruleset_version": 4}, "ruleset"),
    ("gemm", {"ruleset_version": 1}, "ruleset id"),
    ("gemm", {"claimed_ruleset_id": bytes(32)}, "ruleset id"),
    ("gemm", {"trace_events": 11}, "trace_events"),
    ("gemm", {"schedule": None}, "schedule"),
    ("gemm", {"gemm_root": empty_gemm_root()}, "gemm_root"),
    ("gemm", {"state_root": STATES}, "state_root"),
    ("gemm", {"level": EvidenceLevel.GRAPH}, "gemm_root"),
    ("gemm", {"level": EvidenceLevel.NONE}, "gemm_root"),
    ("gemm", {"level": EvidenceLevel.STATE_COMMITTED}, "state_root"),
    ("graph", {"schedule": None}, "schedule"),
    ("graph", {"level": EvidenceLevel.NONE}, "schedule"),
    ("graph", {"trace_events": 12}, "trace_events"),
    ("graph", {"expert_route_root": STATES}, "expert_route_root"),
    ("none", {"expert_route_root": STATES}, "expert_route_root"),
    ("none", {"level": EvidenceLevel.GRAPH}, "schedule"),
    ("states", {"state_root": empty_state_root()}, "state_root"),
    ("states", {"gemm_root": STATES}, "schedule"),
    ("states-graph", {"gemm_root": STATES}, "trace_events"),
]


@pytest.mark.parametrize(("name", "change", "message"), CHANGES)
def test_parts_that_contradict_each_other(name: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(EvidenceError, match=message):
        replace(portable(name), **change)


def test_a_trace_of_a_schedule_without_products() -> None:
    schedule = schedule_of((SEALING, 6, at(1, Silu(1))))
    graph = GatheredEvidence(ObservedEvidence(schedule, None), None, STATES)
    evidence = make_portable(graph, NUMBERS, HYBRID, BLIND)
    with pytest.raises(EvidenceError, match="trace_events"):
        replace(evidence, gemm_root=STATES)


@pytest.mark.parametrize("claimed", [0, 41691, 41693, 2**64 - 1])
def test_a_claimed_price_is_never_believed(claimed: int) -> None:
    evidence = decode_portable(encode_portable(replace(portable("gemm"), claimed_units=claimed)))
    with pytest.raises(EvidenceError, match="compute units"):
        derive(evidence, HYBRID)


def test_the_schedule_is_held_against_the_model() -> None:
    with pytest.raises(EvidenceError, match="positions"):
        derive(replace(portable("gemm"), prefill_tokens=6), HYBRID)
    deep = ObservedEvidence(live(5, 2, stage=3), None)
    evidence = make_portable(GatheredEvidence(deep, None, None), NUMBERS, DENSE, BLIND)
    with pytest.raises(EvidenceError, match="layer"):
        derive(evidence, DENSE)


def test_counts_without_a_price() -> None:
    with pytest.raises(EvidenceError):
        derive(replace(portable("states"), prefill_tokens=2**32 - 1), HYBRID)
    with pytest.raises(InputError):
        make_portable(GATHERED["none"], replace(NUMBERS, prefill_tokens=0), HYBRID, BLIND)


@given(st.sampled_from([*GATHERED]), st.data())
def test_a_changed_byte_or_a_cut_is_refused_or_is_other_evidence(
    name: str, draw: st.DataObject
) -> None:
    evidence = portable(name)
    data = bytearray(encode_portable(evidence))
    with pytest.raises(EvidenceError):
        decode_portable(bytes(data[: draw.draw(st.integers(0, len(data) - 1))]))
    with pytest.raises(EvidenceError):
        decode_portable(bytes(data) + b"\0")
    data[draw.draw(st.integers(0, len(data) - 1))] ^= draw.draw(st.integers(1, 255))
    try:
        other = decode_portable(bytes(data))
    except EvidenceError:
        return
    assert other != evidence


def test_a_kind_that_is_not_listed() -> None:
    data = bytearray(encode_portable(portable("none")))
    for place, value in ((2, 4), (2 + 1 + 4 + 4 + 2 + 64, 2)):
        edited = bytearray(data)
        edited[place] = value
        with pytest.raises(EvidenceError, match="not a listed kind"):
            decode_portable(bytes(edited))


def test_the_private_parts_open_the_roots() -> None:
    open_trace(portable("gemm"), TRACED.trace, BLIND)
    open_trace(portable("states"), None, BLIND)
    open_routes(portable("gemm-routes"), ROUTES, HYBRID, BLIND, last_from=0)
    open_routes(portable("gemm"), None, HYBRID, BLIND, last_from=0)
    late = GatheredEvidence(None, routes_of(HYBRID, 6, last_from=4), STATES)
    evidence = make_portable(late, NUMBERS, HYBRID, BLIND)
    open_routes(evidence, late.routes, HYBRID, BLIND, last_from=4)
    with pytest.raises(EvidenceError, match="not those of all layers"):
        open_routes(evidence, late.routes, HYBRID, BLIND, last_from=0)


def test_traces_that_do_not_open_the_root() -> None:
    other = make_trace(LIVE, [bytes(32)] * LIVE.gemms)
    for trace, blind in ((other, BLIND), (TRACED.trace, BLIND[::-1])):
        with pytest.raises(EvidenceError, match="not what was committed"):
            open_trace(portable("gemm"), trace, blind)
    with pytest.raises(EvidenceError, match="another number"):
        open_trace(portable("gemm"), trace_of(live(1, 1)), BLIND)
    for name, one in (("gemm", None), ("graph", TRACED.trace), ("states", TRACED.trace)):
        with pytest.raises(EvidenceError, match="do not agree"):
            open_trace(portable(name), one, BLIND)


def test_routes_that_do_not_open_the_root() -> None:
    swapped = replace(ROUTES, ids=ROUTES.ids[32:64] + ROUTES.ids[:32] + ROUTES.ids[64:])
    evidence = portable("gemm-routes")
    for routes, blind in ((swapped, BLIND), (ROUTES, BLIND[::-1])):
        with pytest.raises(EvidenceError, match="not what was committed"):
            open_routes(evidence, routes, HYBRID, blind, last_from=0)
    with pytest.raises(EvidenceError, match="experts"):
        open_routes(evidence, ROUTES, DENSE, BLIND, last_from=0)
    with pytest.raises(EvidenceError, match="experts"):
        open_routes(evidence, replace(ROUTES, experts=255), HYBRID, BLIND, last_from=0)
    for name, given_routes in (("gemm-routes", None), ("gemm", ROUTES)):
        with pytest.raises(EvidenceError, match="do not agree"):
            open_routes(portable(name), given_routes, HYBRID, BLIND, last_from=0)


def test_the_empty_roots_stand_for_absent_parts() -> None:
    evidence = portable("none")
    assert evidence.state_root == empty_state_root()
    assert evidence.expert_route_root == empty_route_root()
    assert evidence.gemm_root == empty_gemm_root()


def test_nothing_private_is_shown() -> None:
    shown = repr(GATHERED["all"]) + repr(portable("all"))
    assert "routes" not in shown
    assert "root=" not in shown
