"""The documents of one set, made of what a run left behind. Pure; nothing is decided here."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import UTC, datetime

from tallystick.attest.egress import egress_statement, egress_summary
from tallystick.bundles.match import Materialised, ThreeDigests
from tallystick.canonical.hashing import format_digest, parse_digest, sha256
from tallystick.contracts import digests
from tallystick.contracts.compute_receipt import epoch_of
from tallystick.contracts.egress import EgressReport
from tallystick.contracts.exec_envelope import (
    RECEIPT_SCHEMA_DIGEST,
    ExecEnvelope,
    ExecSandbox,
    ProvenanceChain,
    ReceiptValidator,
    exec_envelope,
)
from tallystick.contracts.generation import Generation
from tallystick.contracts.opening import OPENING_SCHEMA, Opening
from tallystick.contracts.receipt import (
    RECEIPT_SCHEMA,
    Core,
    Disclosed,
    Durations,
    EgressAudit,
    Evidence,
    FingerprintPart,
    Host,
    Memory,
    Observed,
    Sandbox,
)
from tallystick.contracts.request import PRODUCER, InferenceRun
from tallystick.contracts.runtime import EngineBuild, RuntimeClass
from tallystick.contracts.sandbox_profile import NO_SANDBOX, at_least
from tallystick.errors import RunFailedError, SandboxError
from tallystick.evidence.gemm_trace import gemm_root
from tallystick.evidence.observed import decode_observed
from tallystick.evidence.portable import PortableEvidence
from tallystick.evidence.portable_parts import GatheredEvidence
from tallystick.evidence.routes import decode_routes
from tallystick.receipts.papers import JobPapers
from tallystick.receipts.steps_structure import timestamp_ns
from tallystick.telemetry.log import parse_log


@dataclass(frozen=True, slots=True)
class SupervisorFacts:
    """What only the supervisor saw of a run.

    ``start_ns`` is the wall clock at the start (nanoseconds since the Unix epoch), ``total_ns`` the
    monotonic duration of the whole run; the end time is their sum, so that a clock that is set
    meanwhile makes no contradiction. Memory is in bytes: the child's peak, and by how much the
    supervisor's own resident memory had grown once the child was gone (never below 0).
    """

    start_ns: int
    total_ns: int
    rss_peak: int
    rss_after: int
    dropped_environment: tuple[str, ...]
    fingerprint_parts: tuple[FingerprintPart, ...]

    @property
    def end_ns(self) -> int:
        """The wall clock at the end."""
        return self.start_ns + self.total_ns


@dataclass(frozen=True, slots=True)
class Enforced:
    """What held a run's child: the level reached, and the audit's statement; none for no sandbox.

    ``statement`` is the canonical in-toto statement, ``summary`` what the receipt says of it.
    """

    sandbox: Sandbox
    level: str
    summary: EgressAudit
    statement: bytes | None


def enforced_by(run: InferenceRun, audit: EgressReport | None) -> Enforced:
    """Return what held the child of ``run``, by the audit that the supervisor made of it.

    Raises SandboxError when the run declares a sandbox and none was audited, or too weak a one;
    EvidenceError for an audit that contradicts itself.
    """
    if audit is None:
        if run.sandbox_profile != NO_SANDBOX or run.enforcement != "none":
            raise SandboxError(
                "the run declares a sandbox, and none was enforced",
                expected=f"profile {run.sandbox_profile}, level {run.enforcement}",
                found="no audit of a sandbox",
            )
        profile = Sandbox(NO_SANDBOX, digests.sandbox_profile_digest(NO_SANDBOX, "none"))
        return Enforced(profile, "none", EgressAudit("not_run", None), None)
    if audit.profile.name != run.sandbox_profile or not at_least(audit.level, run.enforcement):
        raise SandboxError(
            "the sandbox is not the one that the run declares",
            expected=f"profile {run.sandbox_profile}, level {run.enforcement} or stronger",
            found=f"profile {audit.profile.name}, level {audit.level}",
        )
    if audit.result != "passed":
        raise SandboxError(
            "the audit of the sandbox failed, so there is no receipt",
            expected=f"every channel closed that level {audit.level} promises closed",
            hint="tallystick sandbox probe shows the channels",
        )
    statement = egress_statement(
        audit, run_id=run.run_id, request_digest=digests.request_digest(run)
    )
    return Enforced(
        Sandbox(audit.profile.name, audit.profile_digest),
        audit.level,
        egress_summary(statement),
        statement,
    )


def require_open_windows(run: InferenceRun, papers: JobPapers, facts: SupervisorFacts) -> None:
    """Raise RunFailedError when the run's time, or a window of its papers, passed while it lasted.

    No receipt could be issued any more: that is nobody's defect, but a run that took too long.
    """
    if run.expires_at is not None and timestamp_ns(timestamp(facts.end_ns)) > timestamp_ns(
        run.expires_at
    ):
        raise _too_late("the run", f"an end by {run.expires_at}", timestamp(facts.end_ns))
    epoch = epoch_of(facts.end_ns // 1_000_000)
    for what, expires in (
        ("the request", papers.request.body.expires_epoch),
        ("the assignment", papers.assignment.body.expires_epoch),
        ("the worker's credential", papers.credential.expires_epoch),
    ):
        if epoch >= expires:
            raise _too_late(what, f"an end before epoch {expires}", f"epoch {epoch}")


def _too_late(what: str, expected: str, found: str) -> RunFailedError:
    return RunFailedError(
        f"{what} expired while the run lasted, so there is no receipt",
        expected=expected,
        found=found,
        hint="ask for it anew, with more time or fewer tokens",
    )


def gathered_of(generation: Generation) -> GatheredEvidence:
    """Return the evidence that a child reports. Raises EvidenceError for what no child encodes."""
    observed, routes = generation.observed_evidence, generation.routes
    root = generation.state_root
    return GatheredEvidence(
        observed=decode_observed(base64.b64decode(observed)) if observed else None,
        routes=decode_routes(base64.b64decode(routes)) if routes else None,
        state_root=None if root is None else parse_digest(root),
    )


def core_of(
    run: InferenceRun,
    generation: Generation,
    runtime_class: RuntimeClass,
    engine: EngineBuild,
    gathered: GatheredEvidence,
    evidence: PortableEvidence,
    sandbox: Sandbox,
    executed: ThreeDigests,
) -> Core:
    """Return the part that two honest runs have in common; ``evidence`` is that of the run.

    ``executed`` names what was really read: it comes from the disk, not from the declaration.
    """
    blind = bytes.fromhex(run.blind)
    output = base64.b64decode(generation.output)
    return Core(
        schema=RECEIPT_SCHEMA,
        producer=PRODUCER,
        request_digest=digests.request_digest(run),
        bundle_digest=executed.bundle,
        task_digest=executed.task,
        model_digest=executed.model,
        engine=engine,
        runtime_class=runtime_class,
        runtime_class_id=digests.runtime_class_id(runtime_class),
        sandbox=sandbox,
        chat_template_digest=generation.chat_template_digest,
        context_tokens=generation.context_tokens,
        prompt_tokens=len(generation.prompt_ids),
        sampled_tokens=len(generation.sampled_ids),
        prompt_commitment=digests.prompt_commitment(
            blind,
            generation.chat_template_digest,
            generation.rendered_prompt,
            generation.prompt_ids,
        ),
        output_commitment=digests.output_commitment(blind, generation.sampled_ids, output),
        disclosure=run.disclosure,
        disclosed=_disclosed(run, output),
        evidence=_evidence(generation, gathered, blind),
        canonical_compute_units=evidence.claimed_units,
        stop_reason=generation.stop_reason,
        status="complete",
    )


def _disclosed(run: InferenceRun, output: bytes) -> Disclosed | None:
    if run.disclosure != "public":
        return None
    return Disclosed(
        prompt_digest=format_digest(sha256(run.prompt.encode("utf-8"))),
        output_digest=format_digest(sha256(output)),
    )


def _evidence(generation: Generation, gathered: GatheredEvidence, blind: bytes) -> Evidence:
    trace = None if gathered.observed is None else gathered.observed.trace
    routes = gathered.routes
    return Evidence(
        level=gathered.level.name.lower(),
        state_root=generation.state_root,
        state_leaves=generation.state_leaves,
        layers=generation.layers,
        expert_route_root=None if routes is None else format_digest(routes.root(blind)),
        gemm_trace_root=None if trace is None else format_digest(gemm_root(blind, trace)),
    )


def observed_of(
    run: InferenceRun,
    generation: Generation,
    facts: SupervisorFacts,
    telemetry: bytes,
    worker_id: str,
    compute_receipt_digest: str,
    exec_envelope_digest: str,
    enforced: Enforced,
) -> Observed:
    """Return the part that differs from run to run."""
    timings, layers = generation.timings, generation.residency
    return Observed(
        run_digest=digests.run_digest(run),
        run_id=run.run_id,
        start_time=timestamp(facts.start_ns),
        end_time=timestamp(facts.end_ns),
        durations_ns=Durations(
            load=timings.load,
            prefill=timings.prefill,
            decode=timings.decode,
            seal=timings.seal,
            total=facts.total_ns,
        ),
        enforcement_level=enforced.level,
        egress_audit=enforced.summary,
        rss=Memory(before=generation.rss_before, peak=facts.rss_peak, after=facts.rss_after),
        gpu_memory=None,
        ring_depth=layers.ring_depth,
        evictions=layers.evictions,
        prefetch_hits=layers.prefetch_hits,
        prefetch_misses=layers.prefetch_misses,
        residency=layers.residency,
        dropped_events=parse_log(telemetry).dropped,
        telemetry_digest=format_digest(sha256(telemetry)),
        self_check=generation.self_check,
        compute_receipt_digest=compute_receipt_digest,
        exec_envelope_digest=exec_envelope_digest,
        worker_state_root=generation.worker_state_root,
        worker_id=worker_id,
        host=_host(generation, facts),
    )


def exec_envelope_of(
    run: InferenceRun, generation: Generation, core: Core, materialised: Materialised
) -> ExecEnvelope:
    """Return the envelope of the execution: what it goes back to, and what judges its receipt."""
    source = materialised.source
    return exec_envelope(
        core.model_digest,
        ExecSandbox(core.sandbox.profile, core.sandbox.profile_digest),
        ProvenanceChain(
            digests.run_digest(run),
            materialised.manifest_digest,
            None if source is None else format_digest(sha256(source.envelope)),
        ),
        ReceiptValidator(PRODUCER, generation.platform.program.version, RECEIPT_SCHEMA_DIGEST),
    )


def _host(generation: Generation, facts: SupervisorFacts) -> Host:
    host = generation.host
    return Host(
        cpu=host.cpu,
        cpu_features=host.cpu_features,
        libc=host.libc,
        kernel=host.kernel,
        python=host.python,
        threads=host.threads,
        observer=host.observer,
        renderer=host.renderer,
        dropped_environment=facts.dropped_environment,
        fingerprint_parts=facts.fingerprint_parts,
    )


def opening_of(run: InferenceRun, generation: Generation, digest: str) -> Opening:
    """Return what a replay of the receipt with ``digest`` needs. Private."""
    return Opening(
        schema=OPENING_SCHEMA,
        producer=PRODUCER,
        receipt_digest=digest,
        request=run,
        rendered_prompt=generation.rendered_prompt,
        prompt_ids=generation.prompt_ids,
        sampled_ids=generation.sampled_ids,
        output=generation.output,
        leaf_checks=generation.leaf_checks,
    )


def timestamp(nanoseconds: int) -> str:
    """Return a wall time (nanoseconds since the Unix epoch) as a document timestamp, cut to ms."""
    milliseconds = nanoseconds // 1_000_000
    moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S") + f".{milliseconds % 1000:03d}Z"
