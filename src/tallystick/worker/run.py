"""One run, from a prompt to a signed set on disk: the supervisor's whole job."""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass, field
from pathlib import Path

from tallystick.attest.keyfiles import commit_key, default_key
from tallystick.contracts.generation import Generation
from tallystick.contracts.receipt import Receipt
from tallystick.contracts.request import InferenceRun
from tallystick.contracts.runtime import SEQUENTIAL, Knob, RowClass, RuntimeClass
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
from tallystick.models.registry import ModelFile, OpenModel, open_model, resolve
from tallystick.receipts.build import SupervisorFacts, build_set
from tallystick.store.artifacts import OutputPlace, prepare, prepare_under
from tallystick.store.home import home as default_home
from tallystick.telemetry.events import EventKind, Stamper
from tallystick.telemetry.log import encode_log
from tallystick.telemetry.rss import resident_bytes
from tallystick.worker.keys import SignerChoice, existing_key
from tallystick.worker.request import RunOptions, check_options, declare

_NO_CREDENTIAL = "00" * 32


@dataclass(frozen=True, slots=True)
class RunResult:
    """A finished run. ``output`` and ``text`` are private unless the run was public.

    ``default_key_created`` says that a signing key was made because there was none.
    """

    directory: Path
    receipt_id: str
    receipt_digest: str
    core_digest: str
    receipt: Receipt
    output: bytes = field(repr=False)
    seed: int | None
    signer: str
    default_key_created: bool

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
class _Executed:
    """All that a receipt is built from; private."""

    declared: InferenceRun = field(repr=False)
    generation: Generation = field(repr=False)
    facts: SupervisorFacts
    telemetry: bytes = field(repr=False)


def run(
    model: str,
    options: RunOptions,
    *,
    output_dir: Path | None = None,
    signer: SignerChoice | None = None,
    home: Path | None = None,
    on_text: OnText = no_text,
    on_progress: OnProgress = no_progress,
) -> RunResult:
    """Run ``model`` (a name or a path) as ``options`` say and leave a signed set of files.

    ``output_dir`` has to be new or empty; None chooses ``receipts/<id>`` in the data folder.
    Raises UsageError, InputError, IncomparableError, UnavailableError or RunFailedError; then no
    receipt exists and nothing is left behind.
    """
    check_options(options)
    where = home or default_home()
    with _claim(output_dir, where) as place:
        key = existing_key(signer or SignerChoice(), where)
        engine = find_engine(where)
        chosen = resolve(model, where, on_progress)
        with open_model(chosen) as opened:
            prepared = prepare_class(where, opened, chosen, engine, options, on_progress)
            executed = _execute(
                options, commit_key(where), opened, chosen, engine, prepared, on_text, on_progress
            )
        created = False
        if key is None:  # made now that there is something to sign: a failed run leaves no key
            key, created = default_key(where)
        built = build_set(
            executed.declared,
            executed.generation,
            runtime_class=prepared.runtime_class,
            engine=engine.build,
            facts=executed.facts,
            telemetry=executed.telemetry,
            signing_key=key,
        )
        directory = place.write(built.members, built.marker)
    return RunResult(
        directory=directory,
        receipt_id=built.receipt_id,
        receipt_digest=built.receipt_digest,
        core_digest=built.core_digest,
        receipt=built.receipt,
        output=base64.b64decode(executed.generation.output),
        seed=executed.declared.seed,
        signer=key.public.key_id,
        default_key_created=created,
    )


def _claim(output_dir: Path | None, home: Path) -> OutputPlace:
    return prepare_under(home / "receipts") if output_dir is None else prepare(output_dir)


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
    options: RunOptions,
    commit: bytes,
    opened: OpenModel,
    model: ModelFile,
    engine: InstalledEngine,
    prepared: Prepared,
    on_text: OnText,
    on_progress: OnProgress,
) -> _Executed:
    """Generate in a child."""
    declared = declare(options, opened.digest, model.facts, commit)
    runtime = prepared.runtime_class
    job = GenerateJob(
        setup=engine.setup(options.threads),
        model_fd=opened.fd,
        run=declared,
        row_class=runtime.decode_class,
        credential_id=_NO_CREDENTIAL,
        self_check=options.self_check,
    )
    before = resident_bytes()
    start_wall, start = time.time_ns(), time.monotonic_ns()
    outcome = run_job(
        job, runtime.knobs, on_progress=on_progress, on_text=on_text, model_fd=opened.fd
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
    return _Executed(declared, outcome.generation(), facts, telemetry)


def _telemetry(outcome: Outcome) -> bytes:
    """The child's events, and the last one, which only the supervisor can see: it is gone."""
    last = Stamper(resident_bytes, first_seq=len(outcome.events))(EventKind.SHUTDOWN_COMPLETE)
    return encode_log((*outcome.events, last))
