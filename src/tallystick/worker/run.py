"""One run, from a prompt to a signed set on disk: the supervisor's whole job."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from tallystick.attest.auditkeys import default_audit_key, default_audit_key_path, read_audit_key
from tallystick.attest.bundlekeys import AuditKey
from tallystick.attest.keyfiles import commit_key, default_key
from tallystick.attest.keys import PublicKey
from tallystick.contracts.assignment import credential_id
from tallystick.contracts.egress import EgressReport
from tallystick.contracts.generation import Generation
from tallystick.contracts.receipt import Receipt
from tallystick.contracts.request import InferenceRun
from tallystick.contracts.runtime import SEQUENTIAL, Knob, RowClass, RuntimeClass
from tallystick.contracts.sandbox_profile import SandboxProfile, at_least
from tallystick.contracts.ticket import Ticket
from tallystick.errors import InputError, SandboxError
from tallystick.execution import fingerprint as fingerprints
from tallystick.execution.calibrate import calibration_of
from tallystick.execution.jobs import GenerateJob
from tallystick.execution.launch import (
    InstalledEngine,
    OnProgress,
    OnText,
    Outcome,
    dropped_environment,
    find_engine,
    no_progress,
    no_text,
    run_job,
)
from tallystick.models.manifest import PinnedFacts, Runtime, build_manifest, model_profile
from tallystick.models.profiles import find_profile
from tallystick.models.registry import ModelFile, OpenModel, open_model, resolve
from tallystick.receipts.build import SetInputs, build_set
from tallystick.receipts.build_parts import SupervisorFacts
from tallystick.receipts.scheduling import open_ticket
from tallystick.sandbox.profiles import SHIPPED, load_profile
from tallystick.store.artifacts import OutputPlace, prepare, prepare_under
from tallystick.store.home import home as default_home
from tallystick.telemetry.events import EventKind, Stamper
from tallystick.telemetry.log import encode_log
from tallystick.telemetry.rss import resident_bytes
from tallystick.worker.declared import check_declared
from tallystick.worker.keys import SignerChoice, existing_key
from tallystick.worker.papers import RunPapers, own_papers, papers_of_ticket, record_in
from tallystick.worker.request import RunOptions, check_options, declare, uuid7


@dataclass(frozen=True, slots=True)
class RunResult:
    """A finished run. ``output`` and ``text`` are private unless the run was public.

    ``default_key_created`` and ``default_audit_key_created`` say that a signing key, and a key that
    opens the run's bundle, were made because there was none.
    """

    directory: Path
    receipt_id: str
    receipt_digest: str
    core_digest: str
    compute_receipt_id: str
    receipt: Receipt
    output: bytes = field(repr=False)
    seed: int | None
    signer: str
    default_key_created: bool
    default_audit_key_created: bool

    @property
    def text(self) -> str:
        """The output as text, undecodable bytes replaced."""
        return self.output.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Prepared:
    """The runtime class of a run, and the fingerprint behind it."""

    runtime_class: RuntimeClass
    fingerprint: fingerprints.Fingerprint


@dataclass(frozen=True, slots=True)
class OwnOrder:
    """A run that its user asks for: the request is declared and scheduled here."""

    options: RunOptions

    def require_sound(self) -> None:
        """Raise UsageError or InputError for what no model could make good."""
        check_options(self.options)

    def declared(self, model: ModelFile, commit: bytes) -> InferenceRun:
        """Return the declared run."""
        sandbox = load_profile(self.options.sandbox)
        return declare(self.options, model.digest, model.facts, commit, sandbox)

    def papers(
        self, run: InferenceRun, worker: PublicKey, profile_id: bytes, most: int
    ) -> RunPapers:
        """Return the papers of the run; ``most`` bounds the prompt's tokens."""
        return own_papers(run, worker, model_profile_id=profile_id, max_prefill_tokens=most)


@dataclass(frozen=True, slots=True)
class TicketOrder:
    """A run that a scheduler ordered; ``options`` has what is left to its worker."""

    ticket: Ticket
    options: RunOptions

    def require_sound(self) -> None:
        """Raise InputError for a ticket that no worker and no model could make good."""
        open_ticket(self.ticket)
        check_declared(self.ticket.request)

    def declared(self, model: ModelFile, _: bytes) -> InferenceRun:
        """Return the ordered run under an id of its own. InputError for another model."""
        run = self.ticket.request
        if run.model_digest != model.digest:
            raise InputError(
                "the ticket is for another model", expected=run.model_digest, found=model.digest
            )
        return replace(run, run_id=uuid7())

    def papers(self, _run: InferenceRun, worker: PublicKey, profile_id: bytes, _: int) -> RunPapers:
        """Return the papers of the worker to whom the ticket was given. Raises InputError."""
        made = papers_of_ticket(self.ticket, worker)
        wanted = made.papers.request.body.model_profile_id
        if wanted != profile_id:
            raise InputError(
                "the ticket is for another model profile",
                expected=wanted.hex(),
                found=profile_id.hex(),
                hint="both sides need the same version of this program and the same file",
            )
        return made


@dataclass(frozen=True, slots=True)
class DeclaredOrder:
    """A run that was declared elsewhere, as a queue hands it out; it is scheduled here."""

    run: InferenceRun
    options: RunOptions

    def require_sound(self) -> None:
        """Raise InputError for a run that no model could make good."""
        check_declared(self.run)

    def declared(self, model: ModelFile, _: bytes) -> InferenceRun:
        """Return the run. Raises InputError unless the model is the one that it declares."""
        if self.run.model_digest != model.digest:
            raise InputError(
                "the run's model_digest is not that of the model",
                expected=self.run.model_digest,
                found=model.digest,
            )
        return self.run

    def papers(
        self, run: InferenceRun, worker: PublicKey, profile_id: bytes, most: int
    ) -> RunPapers:
        """Return the papers of the run; ``most`` bounds the prompt's tokens."""
        return own_papers(run, worker, model_profile_id=profile_id, max_prefill_tokens=most)


Order = OwnOrder | TicketOrder | DeclaredOrder
Guard = Callable[[], None]


def no_guard() -> None:
    """Guard nothing: whoever asked for the run waits for it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a set goes and with which keys: None chooses the defaults of the data folder.

    ``output_dir`` is new or empty and gets the set itself; else a folder named by its id is made
    in ``receipts``, or in the data folder's receipts.
    """

    output_dir: Path | None = None
    receipts: Path | None = None
    signer: SignerChoice = field(default_factory=SignerChoice)
    audit_key: Path | None = None
    home: Path | None = None


@dataclass(frozen=True, slots=True)
class _Executed:
    """All that a receipt is built from; private."""

    generation: Generation = field(repr=False)
    facts: SupervisorFacts
    telemetry: bytes = field(repr=False)
    audit: EgressReport | None


def run(
    model: str,
    options: RunOptions,
    *,
    output_dir: Path | None = None,
    signer: SignerChoice | None = None,
    audit_key: Path | None = None,
    home: Path | None = None,
    on_text: OnText = no_text,
    on_progress: OnProgress = no_progress,
) -> RunResult:
    """Run ``model`` (a name or a path) as ``options`` say and leave a signed set of files.

    ``output_dir`` has to be new or empty; None chooses ``receipts/<id>`` in the data folder. The
    bundle is sealed with the 32-byte key in the file ``audit_key``; None takes the data folder's,
    made on first use. Raises UsageError, InputError, IncomparableError, UnavailableError or
    RunFailedError; then no receipt exists and nothing is left behind.
    """
    place = Place(
        output_dir=output_dir, signer=signer or SignerChoice(), audit_key=audit_key, home=home
    )
    return _run(model, OwnOrder(options), place, on_text, on_progress)


def run_ticket(
    model: str,
    ticket: Ticket,
    *,
    threads: int | None = None,
    place: Place | None = None,
    on_text: OnText = no_text,
    on_progress: OnProgress = no_progress,
) -> RunResult:
    """Execute one slot of a job that a scheduler ordered; the rest is as for :func:`run`.

    Raises InputError also when the ticket is for another worker, another model, or expired.
    """
    request = ticket.request
    options = RunOptions(prompt=request.prompt, policy=request.policy, threads=threads)
    return _run(model, TicketOrder(ticket, options), place or Place(), on_text, on_progress)


def run_declared(
    model: str,
    declared: InferenceRun,
    *,
    threads: int | None = None,
    place: Place | None = None,
    guard: Guard = no_guard,
    on_progress: OnProgress = no_progress,
) -> RunResult:
    """Execute a declared run; the rest is as for :func:`run`.

    ``guard`` is called when everything is signed, right before the set is written: what it raises
    leaves no set. Raises InputError also when the model is not the declared one.
    """
    options = RunOptions(prompt=declared.prompt, policy=declared.policy, threads=threads)
    order = DeclaredOrder(declared, options)
    return _run(model, order, place or Place(), no_text, on_progress, guard)


def _run(
    model: str,
    order: Order,
    where: Place,
    on_text: OnText,
    on_progress: OnProgress,
    guard: Guard = no_guard,
) -> RunResult:
    order.require_sound()
    home = where.home or default_home()
    # A key inside the output is told as that, not as an output that is not empty.
    audit_key = _existing_audit_key(where.audit_key, home, where.output_dir)
    with _claim(where, home) as place:
        key = existing_key(where.signer, home)
        engine = find_engine(home)
        chosen = resolve(model, home, on_progress)
        with open_model(chosen) as opened:
            pinned = pinned_facts(chosen)
            profile = model_profile(pinned)  # an architecture without units stops here
            declared = order.declared(chosen, commit_key(home))
            check_declared(declared)  # reading a large model for its digest takes its time
            sandbox = declared_profile(declared, order.options.sandbox)
            created = False
            if key is None:  # made now that all is there that has to be
                key, created = default_key(home)
            # Papers that cannot give a receipt are refused here, before any engine is started.
            papers = order.papers(
                declared, key.public, profile.model_profile_id, profile.native_context_tokens
            )
            prepared = prepare_class(home, opened, chosen, engine, order.options, on_progress)
            executed = _execute(
                declared,
                papers,
                order.options,
                opened,
                engine,
                prepared,
                sandbox,
                on_text,
                on_progress,
            )
        audit_created = False
        if audit_key is None:  # made now that there is something to seal
            audit_key, audit_created = default_audit_key(home, place.directory)
        built = build_set(
            SetInputs(
                run=declared,
                generation=executed.generation,
                runtime_class=prepared.runtime_class,
                engine=engine.build,
                manifest=build_manifest(
                    pinned,
                    Runtime(
                        engine.build,
                        prepared.runtime_class,
                        executed.generation.platform,
                        executed.generation.context_tokens,
                    ),
                ),
                papers=papers.papers,
                facts=executed.facts,
                telemetry=executed.telemetry,
                audit=executed.audit,
            ),
            papers.sealing(audit_key),
            key,
            record_in(place.directory),
        )
        guard()
        directory = place.write(built.members, built.marker)
    return RunResult(
        directory=directory,
        receipt_id=built.receipt_id,
        receipt_digest=built.receipt_digest,
        core_digest=built.core_digest,
        compute_receipt_id=built.compute_receipt_id,
        receipt=built.receipt,
        output=base64.b64decode(executed.generation.output),
        seed=declared.seed,
        signer=key.public.key_id,
        default_key_created=created,
        default_audit_key_created=audit_created,
    )


def declared_profile(run: InferenceRun, wanted: str) -> SandboxProfile:
    """Return the sandbox profile that a run declares: one that ships, or the one at ``wanted``.

    What a run declares is a name and never a path. Raises InputError when the profile is not the
    declared one, SandboxError when it allows less than the run demands.
    """
    profile = SHIPPED.get(run.sandbox_profile)
    if profile is None:
        profile = load_profile(wanted)
    if profile.name != run.sandbox_profile:
        raise InputError(
            "the sandbox profile is not the one that the run declares",
            expected=run.sandbox_profile,
            found=profile.name,
        )
    if not at_least(profile.levels()[-1], run.enforcement):
        raise SandboxError(
            "the sandbox profile allows less than the run demands",
            expected=f"at least level {run.enforcement}",
            found=f"level {profile.levels()[-1]} would be acceptable to {profile.name}",
        )
    return profile


def _claim(where: Place, home: Path) -> OutputPlace:
    if where.output_dir is not None:
        return prepare(where.output_dir)
    return prepare_under(where.receipts or home / "receipts")


def _existing_audit_key(path: Path | None, home: Path, output: Path | None) -> AuditKey | None:
    """Return the key in the file ``path``, or the default one; None when that is yet to be made."""
    default = default_audit_key_path(home)
    if path is None and not os.path.lexists(default):
        return None
    return read_audit_key(path or default, output or home / "receipts")


def pinned_facts(model: ModelFile) -> PinnedFacts:
    """Return what a model profile is made of."""
    source = None if model.pin is None else model.pin.derived_from
    return PinnedFacts(model.facts, model.digest, model.size, find_profile(model.digest, source))


def prepare_class(
    home: Path,
    opened: OpenModel,
    model: ModelFile,
    engine: InstalledEngine,
    options: RunOptions,
    on_progress: OnProgress,
) -> Prepared:
    """Return the runtime class to run in, measuring what is not known yet on this machine."""
    fingerprint = fingerprints.current(home, engine, on_progress)
    if options.policy == SEQUENTIAL:
        knobs: tuple[Knob, ...] = ()
        row_class = RowClass(1, 1)
    else:
        calibration = calibration_of(
            home,
            opened,
            model.facts,
            engine,
            fingerprint,
            threads=options.threads,
            on_progress=on_progress,
        )
        best = calibration.combinations[0]
        knobs, row_class = best.knobs, best.row_class
    return Prepared(
        RuntimeClass(
            engine_library=engine.build.library,
            fingerprint=fingerprint.digest,
            policy=options.policy,
            knobs=knobs,
            prompt_class=row_class,
            decode_class=row_class,
        ),
        fingerprint,
    )


def _execute(
    declared: InferenceRun,
    papers: RunPapers,
    options: RunOptions,
    opened: OpenModel,
    engine: InstalledEngine,
    prepared: Prepared,
    sandbox: SandboxProfile,
    on_text: OnText,
    on_progress: OnProgress,
) -> _Executed:
    """Generate in a child."""
    runtime = prepared.runtime_class
    job = GenerateJob(
        setup=engine.setup(options.threads),
        model_fd=opened.fd,
        run=declared,
        row_class=runtime.decode_class,
        credential_id=credential_id(papers.papers.credential).hex(),
        max_prompt_tokens=papers.papers.request.body.max_prefill_tokens,
        self_check=options.self_check,
    )
    before = resident_bytes()
    start_wall, start = time.time_ns(), time.monotonic_ns()
    outcome = run_job(
        job,
        runtime.knobs,
        on_progress=on_progress,
        on_text=on_text,
        model_fd=opened.fd,
        sandbox=None if sandbox.level == "none" else sandbox,
    )
    opened.unchanged()
    telemetry = _telemetry(outcome)
    facts = SupervisorFacts(
        start_ns=start_wall,
        total_ns=time.monotonic_ns() - start,
        rss_peak=outcome.peak_rss,
        rss_after=max(0, resident_bytes() - before),
        dropped_environment=dropped_environment(),
        fingerprint_parts=prepared.fingerprint.short_parts(),
    )
    return _Executed(outcome.generation(), facts, telemetry, outcome.audit)


def _telemetry(outcome: Outcome) -> bytes:
    """The child's events, and the last one, which only the supervisor can see: it is gone."""
    last = Stamper(resident_bytes, first_seq=len(outcome.events))(EventKind.SHUTDOWN_COMPLETE)
    return encode_log((*outcome.events, last))
