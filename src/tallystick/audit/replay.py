"""Execute a receipt again and compare every bit (docs/spec/replay.md).

No tolerance and no false alarm: either this machine can execute the receipt's runtime class, and
then every token and every committed state must come out equal, or it cannot, and then nothing is
said (IncomparableError, exit 3).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from tallystick.attest.auditkeys import default_audit_key_path, read_audit_key
from tallystick.attest.bundlekeys import AuditKey, BundleKey
from tallystick.attest.trust import TrustPolicy
from tallystick.audit.compare import (
    ClaimedEvidence,
    Difference,
    Verdict,
    compare,
    exact_positions,
    verdict,
)
from tallystick.audit.model_claims import require_claims
from tallystick.canonical.hashing import format_digest
from tallystick.compute.rules import RULES_V3
from tallystick.contracts.bundle import BundlePrivate, BundlePublic
from tallystick.contracts.commitments import local_network_id
from tallystick.contracts.generation import Generation
from tallystick.contracts.manifest import RuntimeManifest
from tallystick.contracts.opening import Opening
from tallystick.contracts.receipt import Core, Receipt
from tallystick.contracts.runtime import SEQUENTIAL, RowClass
from tallystick.contracts.sandbox_profile import SandboxProfile, holding
from tallystick.errors import EvidenceError, IncomparableError, InputError, UsageError
from tallystick.evidence.adapter.gates import gate_of
from tallystick.evidence.gemm_trace import decode_trace
from tallystick.evidence.observed import ObservedEvidence
from tallystick.evidence.observer.records import CONTEXT_TOKENS
from tallystick.evidence.observer.sealing import SEALING_OBSERVERS
from tallystick.evidence.portable import decode_portable
from tallystick.evidence.routes import decode_routes
from tallystick.execution import fingerprint as fingerprints
from tallystick.execution.calibrate import calibration_of
from tallystick.execution.chat import other_renderer
from tallystick.execution.jobs import ReplayJob
from tallystick.execution.knobs import knob_text
from tallystick.execution.launch import (
    InstalledEngine,
    OnProgress,
    OnText,
    find_engine,
    no_progress,
    no_text,
    run_job,
)
from tallystick.execution.observe import OnLine, TranscriptLines, require_gate
from tallystick.execution.rings import check_depth, ring_plan
from tallystick.execution.schedule import MAX_FLOOR
from tallystick.models.add import hash_file
from tallystick.models.manifest import pinned_facts
from tallystick.models.registry import (
    ModelFile,
    OpenModel,
    find_pin,
    open_model,
    pin_path,
    resolve,
    resolved,
)
from tallystick.receipts.documents import SetDocuments, find_id, read_documents
from tallystick.receipts.verify import VerifyContext, verify_with
from tallystick.store.home import home as default_home
from tallystick.store.home import user_path
from tallystick.store.sets import read_set


@dataclass(frozen=True, slots=True)
class TranscriptRequest:
    """That a replay is to write a transcript of its pass, for ``observer`` graph or sketch.

    Its lines (docs/spec/observer.md) go to ``on_line`` and are private: the last one holds the ids.
    """

    observer: str
    on_line: OnLine


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a replay found. ``exact`` of ``sampled`` generated positions are equal in every bit.

    ``signature`` is ``passed`` only when trust was given. ``states``, ``worker_states`` (the same
    under the worker's credential), ``routes``, ``schedule`` and ``products`` are each
    ``not_committed`` where the receipt has no such root; tokens and output are always compared.
    ``replay_ns`` is the time of the pass itself, ``rows`` how many rows it evaluated.
    """

    receipt_digest: str
    core_digest: str
    sampled: int
    exact: int
    rows: int
    states: Verdict
    worker_states: Verdict
    routes: Verdict
    schedule: Verdict
    products: Verdict
    signature: Literal["passed", "not_checked"]
    difference: Difference | None
    replay_ns: int

    @property
    def verified(self) -> bool:
        """True when nothing differs."""
        return self.difference is None

    @property
    def exit_code(self) -> int:
        """0 when every bit is equal, 1 when one is not."""
        return 0 if self.verified else EvidenceError.exit_code


def replay(
    path: Path,
    model: str,
    *,
    trust: TrustPolicy | None = None,
    key: AuditKey | BundleKey | None = None,
    network_id: bytes | None = None,
    threads: int | None = None,
    transcript: TranscriptRequest | None = None,
    sandbox: SandboxProfile | None = None,
    ring_depth: int = 0,
    home: Path | None = None,
    on_progress: OnProgress = no_progress,
) -> ReplayReport:
    """Re-execute the receipt at ``path`` on ``model`` (a name or a path) and compare.

    The set is verified first, the signature against ``trust`` where it is given. ``key`` opens the
    private half; None tries the data folder's audit key. ``network_id`` is the network whose
    receipts count, None the local one. ``sandbox`` holds every child that opens the model;
    SandboxError where it cannot. ``ring_depth`` is how many layers of the model are in memory at a
    time, 0 for all, whatever the receipt's run had. Raises EvidenceError when the set does not
    hold or the model is another one, IncomparableError when this machine cannot execute the
    receipt's runtime class, InputError when the private half is withheld or locked; with a
    ``transcript`` UsageError when it would pass its bounds, InputError for more tokens than it may
    have.
    """
    check_depth(ring_depth)
    where = home or default_home()
    context = VerifyContext(
        trust,
        datetime.now(UTC),
        key or _known_key(where),
        network_id=local_network_id() if network_id is None else network_id,
    )
    held = _open(read_set(path).files, context)
    documents, opening = held.documents, held.opening
    receipt, core = documents.receipt, documents.receipt.core
    if transcript is not None:
        _require_transcript(transcript, opening)
    _require_model(core, model, where, on_progress)
    engine = find_engine(where)
    _require_engine(core, engine)
    chosen = resolve(model, where, on_progress, sandbox)
    with open_model(chosen) as opened:
        # Between the two looks at it, another file may have come to its place.
        _require_digest(core, opened.digest)
        manifest = RuntimeManifest.decode_strict(held.public.manifest)
        require_claims(manifest, pinned_facts(chosen))
        _require_class(
            receipt, where, engine, opened, chosen, _Means(threads, sandbox, on_progress)
        )
        job = ReplayJob(
            setup=engine.setup(threads),
            model_fd=opened.fd,
            run=opening.request,
            row_class=core.runtime_class.decode_class,
            claimed_ids=opening.sampled_ids,
            credential_id=documents.compute.body.worker_credential_id.hex(),
            renderer=receipt.observed.host.renderer,
            transcript="none" if transcript is None else transcript.observer,
            file_name="" if transcript is None else chosen.path.name,
            ring=ring_plan(opened, ring_depth, sandbox),
        )
        outcome = run_job(
            job,
            core.runtime_class.knobs,
            on_progress=on_progress,
            on_text=no_text if transcript is None else _lines(transcript, chosen),
            model_fd=opened.fd,
            sandbox=holding(sandbox),
        )
        opened.unchanged()
    found_run, claimed = outcome.generation(), held.claimed()
    require_renderer(receipt.observed.host.renderer, opening, found_run)
    return ReplayReport(
        receipt_digest=documents.receipt_digest,
        core_digest=documents.core_digest,
        sampled=core.sampled_tokens,
        exact=exact_positions(core, opening, found_run),
        rows=core.prompt_tokens + core.sampled_tokens - 1,
        states=verdict(core.evidence.state_root, found_run.state_root),
        worker_states=verdict(claimed.worker_state_root, found_run.worker_state_root),
        routes=verdict(core.evidence.expert_route_root, found_run.expert_route_root),
        schedule=verdict(claimed.schedule_commitment, found_run.schedule_commitment),
        products=verdict(core.evidence.gemm_trace_root, found_run.gemm_trace_root),
        signature="not_checked" if trust is None else "passed",
        difference=compare(core, opening, found_run, claimed),
        replay_ns=found_run.timings.prefill,
    )


def _require_transcript(transcript: TranscriptRequest, opening: Opening) -> None:
    if transcript.observer not in SEALING_OBSERVERS:
        raise UsageError(
            "unknown observer",
            expected=" or ".join(SEALING_OBSERVERS),
            found=transcript.observer[:40],
        )
    tokens = len(opening.prompt_ids) + len(opening.sampled_ids)
    if tokens > CONTEXT_TOKENS:
        raise InputError(
            "this run has more tokens than a transcript may have",
            expected=f"at most {CONTEXT_TOKENS} in all",
            found=str(tokens),
            hint="replay it without a transcript",
        )


def _lines(transcript: TranscriptRequest, model: ModelFile) -> OnText:
    """Return what takes the child's pieces, and holds the header to the model's facts."""
    gate = gate_of(model.facts)
    return TranscriptLines(transcript.on_line, lambda line: require_gate(line, gate)).take


@dataclass(frozen=True, slots=True)
class _Means:
    """How a replay computes, and who is told of it."""

    threads: int | None
    sandbox: SandboxProfile | None
    on_progress: OnProgress


@dataclass(frozen=True, slots=True)
class _Opened:
    """A set that holds, its private half open."""

    documents: SetDocuments
    opening: Opening
    public: BundlePublic
    private: BundlePrivate = field(repr=False)

    def claimed(self) -> ClaimedEvidence:
        """Return what it claims beyond the core."""
        schedule = decode_portable(self.public.evidence).schedule
        routes, trace = self.private.expert_routes, self.private.gemm_trace
        observed = commitment = None
        if schedule is not None:
            observed = ObservedEvidence(schedule, None if trace is None else decode_trace(trace))
            commitment = format_digest(schedule.commitment(RULES_V3.ruleset_id))
        return ClaimedEvidence(
            self.documents.receipt.observed.worker_state_root,
            commitment,
            None if routes is None else decode_routes(routes),
            observed,
        )


def _open(files: Mapping[str, bytes], context: VerifyContext) -> _Opened:
    """Check the set as `verify` does: signed by whom trust names, else by its own worker."""
    documents = read_documents(files, find_id(files), context.key)
    bundle = documents.bundle
    if bundle is None or bundle.private is None or bundle.opening is None:
        raise InputError(
            "a replay needs the private half of the receipt",
            expected="the sealed bundle beside the receipt, and the key that opens it",
            found="no bundle" if bundle is None else "a bundle, and no key",
            hint="ask the holder of the receipt for both; give the key with --bundle-key-file",
        )
    verify_with(files, context).require()
    return _Opened(documents, bundle.opening, bundle.public, bundle.private)


def _known_key(home: Path) -> AuditKey | None:
    """Return the data folder's own audit key, if there is one: most replays are of own runs."""
    path = default_audit_key_path(home)
    return read_audit_key(path) if os.path.lexists(path) else None


def _require_model(core: Core, model: str, home: Path, on_progress: OnProgress) -> None:
    """Hash the file before anything parses or loads it."""
    pin = find_pin(model, home)
    path = resolved(user_path(model) if pin is None else pin_path(pin, home))
    _require_digest(core, hash_file(path, home, on_progress).digest)


def _require_digest(core: Core, found: str) -> None:
    if found != core.model_digest:
        raise EvidenceError(
            "the model is not the one of the receipt",
            expected=core.model_digest,
            found=found,
            hint="replay needs the very file that ran: same weights, same quantisation",
        )


def _require_engine(core: Core, engine: InstalledEngine) -> None:
    if engine.build.library != core.engine.library:
        raise IncomparableError(
            "the receipt was made by another engine build, so bits cannot be compared",
            expected=f"{core.engine.name} {core.engine.version}, {core.engine.library}",
            found=f"{engine.build.name} {engine.build.version}, {engine.build.library}",
            hint="install the build that the receipt names",
        )
    if engine.build != core.engine:
        raise EvidenceError(
            "the receipt gives its engine library a name or version that it does not have",
            expected=f"{engine.build.name} {engine.build.version}",
            found=f"{core.engine.name} {core.engine.version}",
        )


def _require_class(
    receipt: Receipt,
    home: Path,
    engine: InstalledEngine,
    opened: OpenModel,
    model: ModelFile,
    means: _Means,
) -> None:
    """The receipt's runtime class must be one that is exact here."""
    runtime = receipt.core.runtime_class
    here = fingerprints.current(home, engine, means.on_progress)
    if here.digest != runtime.fingerprint:
        parts = fingerprints.differing_parts(
            here.short_parts(), receipt.observed.host.fingerprint_parts
        )
        raise IncomparableError(
            "this machine computes with other bits than the receipt's, so nothing can be compared",
            expected=f"numeric fingerprint {runtime.fingerprint}",
            found=f"{here.digest}; differing parts: {', '.join(parts[:6]) or 'another suite'}",
            hint="replay on a machine with the same numeric fingerprint",
        )
    row_class = runtime.decode_class
    if runtime.policy == SEQUENTIAL:
        if runtime.knobs or row_class != RowClass(1, 1):
            raise IncomparableError(
                "the receipt names a row class that the sequential policy does not have",
                expected="one row at a time, no knob",
                found=f"{row_class.floor} to {row_class.max_rows} rows, {knob_text(runtime.knobs)}",
            )
        return
    calibration = calibration_of(
        home,
        opened,
        model.facts,
        engine,
        here,
        threads=means.threads,
        sandbox=means.sandbox,
        on_progress=means.on_progress,
    )
    for exact in calibration.combinations:
        if exact.knobs == runtime.knobs and (
            exact.row_class.floor <= row_class.floor <= MAX_FLOOR
            and 2 * row_class.floor <= row_class.max_rows <= exact.row_class.max_rows
        ):
            return
    raise IncomparableError(
        "the receipt's row class is not exact for this model on this machine",
        expected=" or ".join(
            f"{c.row_class.floor} to {c.row_class.max_rows} rows with {knob_text(c.knobs)}"
            for c in calibration.combinations
        ),
        found=f"{row_class.floor} to {row_class.max_rows} rows with {knob_text(runtime.knobs)}",
        hint="the run was not executed under a calibrated class: ask for a new one",
    )


def require_renderer(theirs: str, opening: Opening, found: Generation) -> None:
    """Another rendering is a verdict only where the same renderer made both."""
    ours = found.host.renderer
    if found.rendered_prompt != opening.rendered_prompt and ours != theirs:
        raise other_renderer(theirs, ours)
