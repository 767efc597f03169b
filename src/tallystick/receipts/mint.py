"""What a compute receipt is worth to a network: nothing yet, and why (docs/spec/public-receipt.md).

One machine can show that its receipt agrees with itself. Whatever needs somebody else (a network
that anchored it, a bond, a second worker, attested hardware) is said to be missing, and what cannot
be judged here is called external, never met.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tallystick.compute.rules import RULES_V3
from tallystick.contracts.commitments import local_network_id
from tallystick.contracts.compute_receipt import (
    ComputeReceipt,
    EvidenceLevel,
    JobClass,
    TraceEvidence,
)
from tallystick.contracts.public_receipt import MINT_CLASS, Gate, Mint

_MET: Final = "met"
_UNMET: Final = "unmet"
_EXTERNAL: Final = "external"


@dataclass(frozen=True, slots=True)
class MintFacts:
    """What an assessment looks at: the signed body, and two facts about its evidence.

    ``experts`` is whether the model routes tokens to experts, ``routes`` whether the chosen ones
    were committed to.
    """

    body: ComputeReceipt
    experts: bool
    routes: bool


def assess(facts: MintFacts) -> Mint:
    """Return the whole assessment. It depends on authenticated values only."""
    gates = assess_mainnet(facts)
    return Mint(
        mint_class=MINT_CLASS,
        eligible=False,
        weight=0,
        ineligible_reasons=assess_mint(facts.body),
        mainnet_ready=all(gate.status == _MET for gate in gates),
        mainnet_gates=gates,
    )


def assess_mint(body: ComputeReceipt) -> tuple[str, ...]:
    """Return every reason why no reward can follow from a receipt; there is always one."""
    reasons = []
    if body.trace_evidence is TraceEvidence.ABSENT:
        reasons.append("no trace of matrix products was made")
    else:
        reasons.append(
            "graph-fallback sketches of a prefix of each product, not bound to any kernel"
        )
    if body.evidence_level in (EvidenceLevel.NONE, EvidenceLevel.GRAPH):
        reasons.append("no value that was computed is committed to")
    if body.network_id == local_network_id():
        reasons.append("local network id: no network knows this receipt")
    reasons.append("not anchored: no network authority has accepted or dated it")
    reasons.append("not bonded: nobody loses anything if it is false")
    if body.job_class is JobClass.SELF_LOCAL:
        reasons.append("self-ordered: the worker scheduled the job itself")
    else:
        reasons.append("scheduler unknown: its key comes out of the bundle itself")
    if body.job_class.slots == 1:
        reasons.append("no replica: no second worker executed the job")
    else:
        reasons.append("replica not matched here: one receipt alone cannot show it")
    return tuple(reasons)


def assess_mainnet(facts: MintFacts) -> tuple[Gate, ...]:
    """Return every gate of a mainnet, in order, with its status and reason."""
    return (
        *_compute_gates(facts),
        *(Gate(name, _EXTERNAL, reason) for name, reason in _EXTERNAL_GATES),
    )


def _compute_gates(facts: MintFacts) -> tuple[Gate, ...]:
    body = facts.body
    semantic = body.cu_ruleset_id == RULES_V3.ruleset_id
    states = body.evidence_level is EvidenceLevel.STATE_COMMITTED
    return (
        _gate(
            "compute.semantic_units",
            semantic,
            "priced from the model and its token counts (ruleset v3)",
            "priced operation by operation, by an older ruleset",
        ),
        _gate(
            "compute.canonical_operations",
            semantic,
            "no generic operation: ruleset v3 refuses them",
            "the ruleset takes generic operations",
        ),
        Gate(
            "compute.semantic_schedule",
            _MET,
            "the schedule is regenerated from the pinned architecture by every verifier",
        ),
        _route_gate(facts),
        _gate(
            "compute.states",
            states,
            "residual states are committed to, and replay recomputes them bit for bit",
            "states were not committed to",
        ),
        Gate(
            "compute.kernel_trace",
            _UNMET,
            "no trace is bound to the kernels that ran",
        ),
    )


def _route_gate(facts: MintFacts) -> Gate:
    name = "compute.expert_routes"
    if not facts.experts:
        return Gate(name, _MET, "the model has no experts")
    return _gate(
        name,
        facts.routes,
        "the chosen experts are committed to, and replay chooses them again",
        "the chosen experts were not committed to",
    )


def _gate(name: str, met: bool, because: str, lacking: str) -> Gate:
    return Gate(name, _MET if met else _UNMET, because if met else lacking)


_EXTERNAL_GATES: Final = (
    ("network.authority", "needs a deployed authority that registers workers and schedulers"),
    ("network.global_nullifier", "needs a ledger in which a nullifier can be used once"),
    ("network.epoch_beacon", "needs epochs that a beacon gives, not the worker's own clock"),
    ("network.bond", "needs a bond that a false receipt forfeits"),
    ("network.second_replica", "needs the receipt of another worker for the same job"),
    ("hardware.attestation", "needs hardware that attests what ran on it"),
    ("hardware.generations", "needs equal results on several generations of machines"),
    ("model.genesis", "needs a network that has registered this model at its start"),
)
