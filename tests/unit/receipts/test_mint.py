"""The assessment: never eligible here, with every reason, and no external gate called met."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tallystick.canonical.hashing import sha256
from tallystick.compute.rules import RULES_V2
from tallystick.contracts.compute_receipt import ComputeReceipt, JobClass
from tallystick.contracts.public_receipt import MINT_CLASS
from tallystick.receipts.mint import MintFacts, assess, assess_mainnet, assess_mint
from tests.support.compute_sets import KINDS, make_receipt

LIVE = make_receipt("gemm", sequential=True).signed.body
STATES = make_receipt("states").signed.body
GRAPH = make_receipt("graph").signed.body


def facts(body: ComputeReceipt, *, experts: bool = False, routes: bool = False) -> MintFacts:
    return MintFacts(body, experts=experts, routes=routes)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_eligible(kind: str) -> None:
    mint = assess(facts(KINDS[kind]().signed.body, experts=True, routes=True))

    assert mint.mint_class == MINT_CLASS == "local_self_consistent_v0_1"
    assert (mint.eligible, mint.weight, mint.mainnet_ready) == (False, 0, False)
    assert len(mint.ineligible_reasons) >= 4


def said(body: ComputeReceipt, words: str) -> bool:
    return any(words in reason for reason in assess_mint(body))


def test_reasons_are_those_of_the_receipt() -> None:
    assert said(LIVE, "graph-fallback")
    assert not said(LIVE, "no trace")
    assert said(STATES, "no trace")
    assert not said(STATES, "graph-fallback")
    assert said(GRAPH, "no value that was computed")
    assert not said(STATES, "no value that was computed")
    for body in (LIVE, STATES, GRAPH):
        assert said(body, "not anchored")
        assert said(body, "not bonded")
        assert said(body, "local network")
        assert said(body, "self-ordered")
        assert said(body, "no replica")


def test_other_networks_and_job_classes_lose_only_their_reasons() -> None:
    replica = replace(LIVE, network_id=sha256(b"elsewhere"), job_class=JobClass.REPLICA_EXTERNAL)

    assert not said(replica, "local network")
    assert not said(replica, "self-ordered")
    assert said(replica, "scheduler unknown")
    assert not said(LIVE, "scheduler unknown")
    assert said(replica, "replica not matched")
    assert said(replica, "not anchored")
    assert said(replica, "not bonded")


def test_every_gate_is_listed_once_and_none_that_is_external_is_met() -> None:
    gates = assess_mainnet(facts(STATES, experts=True, routes=True))
    names = [gate.name for gate in gates]

    assert len({*names}) == len(names)
    assert {name.partition(".")[0] for name in names} == {"compute", "network", "hardware", "model"}
    for gate in gates:
        if not gate.name.startswith("compute."):
            assert gate.status == "external"
        assert gate.reason


def status(made: MintFacts, name: str) -> str:
    return next(gate.status for gate in assess_mainnet(made) if gate.name == name)


def test_compute_gates_follow_the_evidence() -> None:
    assert status(facts(STATES), "compute.states") == "met"
    assert status(facts(LIVE), "compute.states") == "unmet"
    assert status(facts(LIVE), "compute.kernel_trace") == "unmet"
    assert status(facts(LIVE), "compute.semantic_units") == "met"
    older = replace(LIVE, cu_ruleset_id=RULES_V2.ruleset_id)
    assert status(facts(older), "compute.semantic_units") == "unmet"
    assert status(facts(older), "compute.canonical_operations") == "unmet"
    route = "compute.expert_routes"
    assert status(facts(LIVE), route) == "met"
    assert status(facts(LIVE, experts=True), route) == "unmet"
    assert status(facts(LIVE, experts=True, routes=True), route) == "met"
