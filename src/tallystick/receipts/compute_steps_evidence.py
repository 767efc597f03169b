"""Steps 9 and 10 about the compute receipt: the schedule and its price, traces and roots."""

from __future__ import annotations

from typing import NamedTuple

from tallystick.canonical.hashing import parse_digest
from tallystick.contracts.bundle import BundlePrivate, BundlePublic
from tallystick.contracts.commitments import (
    empty_gemm_root,
    empty_route_root,
    empty_state_root,
    state_evidence_root,
)
from tallystick.contracts.compute_receipt import ComputeReceipt, EvidenceLevel, TraceEvidence
from tallystick.contracts.receipt import Evidence
from tallystick.errors import EvidenceError
from tallystick.evidence.gemm_trace import decode_trace
from tallystick.evidence.portable import PortableEvidence, ScheduleKind
from tallystick.evidence.portable_parts import open_routes, open_trace
from tallystick.evidence.routes import decode_routes, last_layer_from
from tallystick.evidence.schedule_checks import check_steps
from tallystick.receipts.compute_case import (
    BUNDLE_WITHHELD,
    PRIVATE_LOCKED,
    ComputeCase,
    NotChecked,
    StepOutcome,
)
from tallystick.receipts.papers import require_same


class Roots(NamedTuple):
    """Raw roots of the three kinds of evidence; an absent part has the root of none."""

    state_root: bytes
    expert_route_root: bytes
    gemm_root: bytes


def check_schedule_and_units(case: ComputeCase) -> StepOutcome:
    """9 schedule integrity and commitment, counts, compute units derived again."""
    public = case.documents.public
    if public is None:
        return NotChecked(BUNDLE_WITHHELD)
    body, evidence = case.body, case.evidence(public)
    _check_claims(body, evidence)
    derived = case.derived(public)
    if evidence.schedule is not None:
        check_steps(evidence.schedule, case.documents.core.runtime_class)
    for name, expected in (
        ("operation_schedule_commitment", derived.schedule_commitment),
        ("schedule_event_count", derived.schedule_events),
        ("canonical_compute_units", derived.compute_units),
    ):
        require_same(f"compute receipt: {name}", expected, getattr(body, name))
    return (
        f"{derived.schedule_events} operations of the {evidence.kind.name.lower()} schedule, "
        f"{derived.compute_units} compute units by ruleset v{evidence.ruleset_version}"
    )


def _check_claims(body: ComputeReceipt, evidence: PortableEvidence) -> None:
    """The evidence is that of this job and shape, and claims what the receipt claims."""
    for name, expected, found in (
        ("level", body.evidence_level, evidence.level),
        ("prefill_tokens", body.prefill_tokens, evidence.prefill_tokens),
        ("decode_tokens", body.decode_tokens, evidence.decode_tokens),
        ("job_nullifier", body.job_nullifier, evidence.job_nullifier),
        ("shape_profile_id", body.shape_profile_id, evidence.shape_profile_id),
        ("claimed_ruleset_id", body.cu_ruleset_id, evidence.claimed_ruleset_id),
    ):
        require_same(f"evidence.{name}", expected, found)


def check_trace_and_roots(case: ComputeCase) -> StepOutcome:
    """10 GEMM trace and state roots: what was committed is what core and bundle hold."""
    body, core = case.body, case.documents.core
    refuse_kernel_trace(body.trace_evidence)
    roots = core_roots(core.evidence)
    require_same(
        "compute receipt: gemm_trace_root",
        committed_root(body.evidence_level, roots),
        body.gemm_trace_root,
    )
    public, private = case.documents.public, case.documents.private
    if public is None:
        return NotChecked(f"{BUNDLE_WITHHELD}: only the composition of the roots holds")
    _check_public_evidence(case, public, roots)
    if private is None:
        return _without_private(roots)
    return _check_private_evidence(case, public, private)


def committed_root(level: EvidenceLevel, roots: Roots) -> bytes:
    """Return the gemm_trace_root that a receipt has at a level."""
    return state_evidence_root(*roots) if level is EvidenceLevel.STATE_COMMITTED else roots[2]


def core_roots(evidence: Evidence) -> Roots:
    """Return the roots that a core holds."""
    given = (evidence.state_root, evidence.expert_route_root, evidence.gemm_trace_root)
    empty = (empty_state_root(), empty_route_root(), empty_gemm_root())
    return Roots(
        *(
            absent if root is None else parse_digest(root)
            for root, absent in zip(given, empty, strict=True)
        )
    )


def refuse_kernel_trace(kind: TraceEvidence) -> None:
    """Refuse a trace that claims to be bound to kernels: nothing here binds one.

    Raises EvidenceError. The manifest, where there is one, names no other capability (step 5).
    """
    if kind not in (TraceEvidence.ABSENT, TraceEvidence.GRAPH_FALLBACK):
        raise EvidenceError(
            "compute receipt: trace_evidence is beyond what any runtime here can show",
            expected="absent or graph_fallback",
            found=kind.name.lower(),
        )


def _check_public_evidence(case: ComputeCase, public: BundlePublic, roots: Roots) -> None:
    """The evidence in the bundle has the core's roots, and one trace group per product."""
    body, core = case.body, case.documents.core
    evidence, architecture = case.evidence(public), case.architecture(public)
    for name, expected in roots._asdict().items():
        require_same(f"evidence.{name}", expected, getattr(evidence, name))
    for name, found in (
        ("trace_evidence", body.trace_evidence),
        ("trace_scheme_id", body.trace_scheme_id),
    ):
        require_same(f"compute receipt: {name}", getattr(evidence, name), found)
    require_same(
        "compute receipt: trace_event_count", evidence.trace_events, body.trace_event_count
    )
    routed = architecture.has_experts and body.evidence_level >= EvidenceLevel.GEMM_TRACED
    if (core.evidence.expert_route_root is not None) is not routed:
        raise EvidenceError(
            "core.evidence.expert_route_root does not fit model and evidence level",
            expected="a root" if routed else "null",
            found=core.evidence.expert_route_root or "null",
        )
    require_same("core.evidence.layers", len(architecture.layers), core.evidence.layers)


def _without_private(roots: Roots) -> StepOutcome:
    if (roots.expert_route_root, roots.gemm_root) == (empty_route_root(), empty_gemm_root()):
        return "the roots are those of the core; states are recomputed by replay"
    return NotChecked(f"{PRIVATE_LOCKED}: the roots of trace and routes were not recomputed")


def _check_private_evidence(
    case: ComputeCase, public: BundlePublic, private: BundlePrivate
) -> StepOutcome:
    """Recompute the roots of trace and routes, and hold both against schedule and model."""
    body, evidence = case.body, case.evidence(public)
    trace = None if private.gemm_trace is None else decode_trace(private.gemm_trace)
    routes = None if private.expert_routes is None else decode_routes(private.expert_routes)
    run = case.opening(private).request
    asked = bool({"graph", "gemm"} & {*run.evidence})
    if (evidence.kind is ScheduleKind.OBSERVED) is not asked:
        raise EvidenceError(
            "evidence.schedule is not of the kind that was asked for",
            expected="observed" if asked else "semantic",
            found=evidence.kind.name.lower(),
        )
    blind = bytes.fromhex(run.blind)
    open_trace(evidence, trace, blind)
    open_routes(
        evidence,
        routes,
        case.architecture(public),
        blind,
        last_from=last_layer_from(case.documents.core.runtime_class.policy, body.prefill_tokens),
    )
    words = [] if trace is None else [f"{trace.events} sketches, each of its operation"]
    words += [] if routes is None else [f"{routes.rows} expert routes"]
    if body.evidence_level is EvidenceLevel.STATE_COMMITTED:
        words.append("the state root of the core, which replay recomputes")
    return "; ".join(words) or "no trace, no routes and no states were asked for"
