"""Making portable evidence of what was gathered, and opening its roots with the private parts."""

from __future__ import annotations

from dataclasses import dataclass, field

from tallystick.compute.architecture import Architecture, ExpertFeedForward
from tallystick.compute.rules import RULES_V3
from tallystick.compute.semantic import semantic_units
from tallystick.contracts.commitments import empty_gemm_root, empty_route_root, empty_state_root
from tallystick.contracts.compute_receipt import EvidenceLevel
from tallystick.errors import EvidenceError
from tallystick.evidence.gemm_trace import GemmTrace, check_trace, gemm_root
from tallystick.evidence.observed import ObservedEvidence
from tallystick.evidence.portable import PORTABLE_VERSION, PortableEvidence
from tallystick.evidence.routes import ExpertRoutes, check_routes


@dataclass(frozen=True, slots=True)
class GatheredEvidence:
    """The parts of a run's evidence; None for those that were not asked for.

    ``state_root`` is the 32-byte root of the state tree. All of it but the schedule is private.
    """

    observed: ObservedEvidence | None
    routes: ExpertRoutes | None = field(repr=False)
    state_root: bytes | None = field(repr=False)

    @property
    def level(self) -> EvidenceLevel:
        """The highest level whose part is there."""
        if self.state_root is not None:
            return EvidenceLevel.STATE_COMMITTED
        if self.observed is None:
            return EvidenceLevel.NONE
        traced = self.observed.trace is not None
        return EvidenceLevel.GEMM_TRACED if traced else EvidenceLevel.GRAPH


@dataclass(frozen=True, slots=True)
class RunNumbers:
    """Which run it is: its job, the shape profile, and its tokens, prompt's and generated."""

    job_nullifier: bytes
    shape_profile_id: bytes
    prefill_tokens: int
    decode_tokens: int


def make_portable(
    gathered: GatheredEvidence, numbers: RunNumbers, architecture: Architecture, blind: bytes
) -> PortableEvidence:
    """Return the portable evidence of a run, priced by ruleset v3.

    Raises EvidenceError when the parts contradict each other, InputError for counts that have no
    price.
    """
    units = semantic_units(architecture, numbers.prefill_tokens, numbers.decode_tokens)
    observed, routes, states = gathered.observed, gathered.routes, gathered.state_root
    trace = None if observed is None else observed.trace
    return PortableEvidence(
        version=PORTABLE_VERSION,
        level=gathered.level,
        prefill_tokens=numbers.prefill_tokens,
        decode_tokens=numbers.decode_tokens,
        ruleset_version=RULES_V3.version,
        job_nullifier=numbers.job_nullifier,
        shape_profile_id=numbers.shape_profile_id,
        schedule=None if observed is None else observed.schedule,
        trace_events=0 if observed is None else observed.trace_events,
        state_root=empty_state_root() if states is None else states,
        expert_route_root=empty_route_root() if routes is None else routes.root(blind),
        gemm_root=empty_gemm_root() if trace is None else gemm_root(blind, trace),
        claimed_units=units.compute_units,
        claimed_ruleset_id=RULES_V3.ruleset_id,
    )


def open_trace(evidence: PortableEvidence, trace: GemmTrace | None, blind: bytes) -> None:
    """Require that ``trace`` is what ``gemm_root`` commits to, product by product.

    None stands for a run without a trace. Raises EvidenceError.
    """
    if trace is None or evidence.schedule is None or not evidence.traced:
        if trace is not None or evidence.traced:
            raise _unmatched("trace", evidence.traced)
        return
    check_trace(trace, evidence.schedule)
    if gemm_root(blind, trace) != evidence.gemm_root:
        raise _mismatch("trace of matrix products", evidence.gemm_root)


def open_routes(
    evidence: PortableEvidence,
    routes: ExpertRoutes | None,
    architecture: Architecture,
    blind: bytes,
    *,
    last_from: int,
) -> None:
    """Require that ``routes`` are what ``expert_route_root`` commits to, and complete.

    ``last_from`` is :func:`tallystick.evidence.routes.last_layer_from`. None stands for a run
    without routes. Raises EvidenceError.
    """
    gathered = evidence.expert_route_root != empty_route_root()
    if routes is None or not gathered:
        if routes is not None or gathered:
            raise _unmatched("expert routes", gathered)
        return
    experts = [x.feed_forward for x in architecture.layers]
    numbers = {(x.experts, x.used) for x in experts if isinstance(x, ExpertFeedForward)}
    if numbers != {(routes.experts, routes.used)}:
        raise EvidenceError(
            "the expert routes are not those of the model's experts",
            expected=" or ".join(f"{used} of {of}" for of, used in sorted(numbers)) or "none",
            found=f"{routes.used} of {routes.experts}",
        )
    check_routes(
        routes,
        len(experts),
        evidence.prefill_tokens,
        evidence.decode_tokens,
        last_from=last_from,
    )
    if routes.root(blind) != evidence.expert_route_root:
        raise _mismatch("expert routes", evidence.expert_route_root)


def _unmatched(what: str, committed: bool) -> EvidenceError:
    texts = (f"no {what}", f"{what}")
    return EvidenceError(
        f"the evidence and its private part do not agree on the {what}",
        expected=texts[committed],
        found=texts[not committed],
    )


def _mismatch(what: str, root: bytes) -> EvidenceError:
    return EvidenceError(f"{what}: not what was committed to", expected=root.hex())
