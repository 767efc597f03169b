"""From what a run left behind to a signed set of files (docs/spec/receipt.md). Pure.

The builder decides nothing: it binds what it is given, and then runs the verifier over its own
output. What does not verify is never handed out.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tallystick.attest import dsse
from tallystick.attest.keys import SigningKey
from tallystick.attest.statements import execution_statement
from tallystick.attest.trust import TrustPolicy
from tallystick.canonical.hashing import format_digest, sha256
from tallystick.contracts import digests
from tallystick.contracts.codec import encode_bytes
from tallystick.contracts.generation import Generation
from tallystick.contracts.layout import ENVELOPES, MARKER, MEMBERS, OPENING, RECEIPT, TELEMETRY
from tallystick.contracts.opening import OPENING_SCHEMA, SET_SCHEMA, Opening, ReceiptSet, SetMember
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
    Receipt,
    Sandbox,
)
from tallystick.contracts.request import PRODUCER, InferenceRun
from tallystick.contracts.runtime import EngineBuild, RuntimeClass
from tallystick.errors import EvidenceError, InputError, RunFailedError, SandboxError
from tallystick.receipts.report import VerificationReport
from tallystick.receipts.steps_structure import NO_SANDBOX, STATE_COMMITTED
from tallystick.receipts.verify import verify_set
from tallystick.store.artifacts import Member
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


@dataclass(frozen=True, slots=True)
class BuiltSet:
    """A finished set: the receipt, its names, its files, and the report of its own verification."""

    receipt: Receipt
    receipt_id: str
    receipt_digest: str
    core_digest: str
    members: tuple[Member, ...] = field(repr=False)
    marker: Member = field(repr=False)
    report: VerificationReport

    def files(self) -> dict[str, bytes]:
        """Return every file by name, as the verifier takes them."""
        return {member.name: member.data for member in (*self.members, self.marker)}


def build_set(
    run: InferenceRun,
    generation: Generation,
    *,
    runtime_class: RuntimeClass,
    engine: EngineBuild,
    facts: SupervisorFacts,
    telemetry: bytes,
    signing_key: SigningKey,
) -> BuiltSet:
    """Build, sign and verify the set of one plain run (no bundle, no sandbox).

    ``telemetry`` is the whole telemetry file. Raises SandboxError when the run asks for isolation,
    InputError when it declares a bundle, EvidenceError when the telemetry is malformed, and
    RunFailedError when the result contradicts itself, so that its set would not verify.
    """
    _require_plain_run(run)
    receipt = Receipt(
        core=_core(run, generation, runtime_class, engine),
        observed=_observed(run, generation, facts, telemetry, signing_key),
    )
    digest = digests.receipt_digest(receipt)
    name = digests.receipt_id(digest)
    receipt_bytes = encode_bytes(receipt)
    envelope = dsse.sign(
        execution_statement(receipt, receipt_bytes), dsse.PAYLOAD_TYPE, [signing_key]
    )
    contents = {
        RECEIPT: receipt_bytes,
        TELEMETRY: telemetry,
        ENVELOPES: envelope + b"\n",
        OPENING: encode_bytes(_opening(run, generation, digest)),
    }
    members = tuple(Member(name + kind.suffix, contents[kind], kind.visibility) for kind in MEMBERS)
    marker = Member(name + MARKER.suffix, encode_bytes(marker_of(members, digest)), "public")
    return BuiltSet(
        receipt=receipt,
        receipt_id=name,
        receipt_digest=digest,
        core_digest=digests.core_digest(receipt.core),
        members=members,
        marker=marker,
        report=_verify_own(members, marker, receipt, signing_key),
    )


def marker_of(members: tuple[Member, ...], digest: str) -> ReceiptSet:
    """Return the completion marker over ``members`` of the receipt with ``digest``."""
    return ReceiptSet(
        schema=SET_SCHEMA,
        producer=PRODUCER,
        receipt_digest=digest,
        members=tuple(
            SetMember(member.name, format_digest(sha256(member.data)), member.visibility)
            for member in members
        ),
    )


def _require_plain_run(run: InferenceRun) -> None:
    if run.sandbox_profile != NO_SANDBOX or run.enforcement != "none":
        raise SandboxError(
            "no sandbox can be enforced yet, so no receipt can say that one was",
            expected="sandbox profile none at enforcement level none",
            found=f"profile {run.sandbox_profile}, level {run.enforcement}",
        )
    no_bundle = digests.no_bundle_digest()
    if (run.dataset.expectedDigest, run.task.expectedDigest) != (no_bundle, no_bundle):
        raise InputError(
            "the run declares a dataset bundle or a task",
            expected=f"the digest of no bundle, {no_bundle}",
            found=run.dataset.expectedDigest,
        )


def _core(
    run: InferenceRun, generation: Generation, runtime_class: RuntimeClass, engine: EngineBuild
) -> Core:
    blind = bytes.fromhex(run.blind)
    output = base64.b64decode(generation.output)
    return Core(
        schema=RECEIPT_SCHEMA,
        producer=PRODUCER,
        request_digest=digests.request_digest(run),
        bundle_digest=run.dataset.expectedDigest,
        task_digest=run.task.expectedDigest,
        model_digest=run.model_digest,
        engine=engine,
        runtime_class=runtime_class,
        runtime_class_id=digests.runtime_class_id(runtime_class),
        sandbox=Sandbox(NO_SANDBOX, digests.sandbox_profile_digest(NO_SANDBOX, "none")),
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
        evidence=_evidence(generation),
        canonical_compute_units=None,
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


def _evidence(generation: Generation) -> Evidence:
    return Evidence(
        level="none" if generation.state_root is None else STATE_COMMITTED,
        state_root=generation.state_root,
        state_leaves=generation.state_leaves,
        layers=generation.layers,
        expert_route_root=None,
        gemm_trace_root=None,
    )


def _observed(
    run: InferenceRun,
    generation: Generation,
    facts: SupervisorFacts,
    telemetry: bytes,
    signing_key: SigningKey,
) -> Observed:
    timings = generation.timings
    return Observed(
        run_digest=digests.run_digest(run),
        run_id=run.run_id,
        start_time=timestamp(facts.start_ns),
        end_time=timestamp(facts.start_ns + facts.total_ns),
        durations_ns=Durations(
            load=timings.load,
            prefill=timings.prefill,
            decode=timings.decode,
            seal=timings.seal,
            total=facts.total_ns,
        ),
        enforcement_level="none",
        egress_audit=EgressAudit(result="not_run", statement_digest=None),
        rss=Memory(before=generation.rss_before, peak=facts.rss_peak, after=facts.rss_after),
        gpu_memory=None,
        evictions=0,
        prefetch_hits=0,
        prefetch_misses=0,
        residency="all_resident",
        dropped_events=parse_log(telemetry).dropped,
        telemetry_digest=format_digest(sha256(telemetry)),
        self_check=generation.self_check,
        compute_receipt_digest=None,
        exec_envelope_digest=None,
        worker_state_root=None,
        worker_id=signing_key.public.key_id,
        host=_host(generation, facts),
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


def _opening(run: InferenceRun, generation: Generation, digest: str) -> Opening:
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


def _verify_own(
    members: tuple[Member, ...], marker: Member, receipt: Receipt, signing_key: SigningKey
) -> VerificationReport:
    files = {member.name: member.data for member in (*members, marker)}
    trust = TrustPolicy.for_keys([signing_key.public])
    report = verify_set(files, trust, now=datetime.fromisoformat(receipt.observed.end_time))
    try:
        report.require()
    except EvidenceError as error:
        raise RunFailedError(
            f"the run's own receipt does not verify: {error.message}",
            expected=error.expected,
            found=error.found,
            hint="nothing was signed away: this is a defect of the program or of the machine",
        ) from error
    return report
