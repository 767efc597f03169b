"""Executing one run: the runtime class it runs in, what holds its child, and the child."""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass, field
from pathlib import Path

from tallystick.contracts.assignment import credential_id
from tallystick.contracts.egress import EgressReport
from tallystick.contracts.generation import Generation
from tallystick.contracts.request import InferenceRun
from tallystick.contracts.runtime import SEQUENTIAL, Knob, RowClass, RuntimeClass
from tallystick.contracts.sandbox_profile import SandboxProfile, at_least, holding
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
    no_progress,
    no_text,
    run_job,
)
from tallystick.execution.rings import require_asked, ring_plan
from tallystick.execution.streamed import Streamed
from tallystick.execution.templates import Templates
from tallystick.models.manifest import PinnedFacts
from tallystick.models.registry import ModelFile, OpenModel
from tallystick.receipts.build_parts import SupervisorFacts
from tallystick.sandbox.messages import well_formed
from tallystick.sandbox.profiles import SHIPPED, load_profile
from tallystick.telemetry.bus import EventBus, LocalBus
from tallystick.telemetry.events import EventKind, Stamper
from tallystick.telemetry.log import encode_log, parse_log
from tallystick.telemetry.rss import resident_bytes
from tallystick.worker.papers import RunPapers
from tallystick.worker.request import RunOptions


@dataclass(frozen=True, slots=True)
class Show:
    """Who is told of the answer as it comes, and of how far the work is.

    The events of the run, and of nothing before it, go over ``bus``.
    """

    on_text: OnText = no_text
    on_progress: OnProgress = no_progress
    bus: EventBus = field(default_factory=LocalBus)


@dataclass(frozen=True, slots=True)
class Settled:
    """Everything about a run that is settled before an engine is started for it. Private."""

    run: InferenceRun = field(repr=False)
    papers: RunPapers
    options: RunOptions
    model: PinnedFacts
    engine: InstalledEngine
    sandbox: SandboxProfile


@dataclass(frozen=True, slots=True)
class Prepared:
    """The runtime class of a run, and the fingerprint behind it."""

    runtime_class: RuntimeClass
    fingerprint: fingerprints.Fingerprint


@dataclass(frozen=True, slots=True)
class Executed:
    """What an execution left behind. Private."""

    generation: Generation = field(repr=False)
    facts: SupervisorFacts
    telemetry: bytes = field(repr=False)
    audit: EgressReport | None


def named_profile(name: str | None, wanted: str) -> SandboxProfile:
    """Return the sandbox profile called ``name``: one that ships, or the one at ``wanted``.

    What a run declares is a name and never a path. None, for a run that is yet to be declared, is
    the wanted one. Raises InputError when there is none.
    """
    return SHIPPED.get(name or "") or load_profile(wanted)


def declared_profile(run: InferenceRun, wanted: str) -> SandboxProfile:
    """Return the sandbox profile that a run declares, see :func:`named_profile`.

    Raises InputError when the profile is not the declared one, SandboxError when it allows less
    than the run demands.
    """
    profile = named_profile(run.sandbox_profile, wanted)
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


def prepare_class(
    home: Path,
    opened: OpenModel,
    model: ModelFile,
    engine: InstalledEngine,
    options: RunOptions,
    sandbox: SandboxProfile,
    on_progress: OnProgress,
) -> Prepared:
    """Return the runtime class to run in, measuring what is not known yet on this machine.

    A calibration is held as the run will be, by ``sandbox``.
    """
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
            sandbox=sandbox,
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


def execute(
    settled: Settled,
    opened: OpenModel,
    prepared: Prepared,
    show: Show,
    templates: Templates | None = None,
) -> Executed:
    """Generate in a child, forked by one of ``templates`` where they are given.

    Raises RunFailedError, and what a child may raise.
    """
    runtime, papers = prepared.runtime_class, settled.papers.papers
    job = GenerateJob(
        setup=settled.engine.setup(settled.options.threads),
        model_fd=opened.fd,
        run=settled.run,
        row_class=runtime.decode_class,
        credential_id=credential_id(papers.credential).hex(),
        max_prompt_tokens=papers.request.body.max_prefill_tokens,
        self_check=settled.options.self_check,
        ring=ring_plan(opened, settled.options.ring_depth, settled.sandbox),
    )
    streamed = Streamed(show.on_text, settled.run.max_tokens)
    before = resident_bytes()
    start_wall, start = time.time_ns(), time.monotonic_ns()
    outcome = run_job(
        job,
        runtime.knobs,
        on_progress=show.on_progress,
        on_text=streamed.write,
        model_fd=opened.fd,
        sandbox=holding(settled.sandbox),
        templates=templates,
        bus=show.bus,
    )
    opened.unchanged()
    generation = outcome.generation()
    require_asked(generation.residency, settled.options.ring_depth)
    streamed.require(base64.b64decode(generation.output))
    telemetry = telemetry_of(outcome, show.bus)
    facts = SupervisorFacts(
        start_ns=start_wall,
        total_ns=time.monotonic_ns() - start,
        rss_peak=outcome.peak_rss,
        rss_after=max(0, resident_bytes() - before),
        dropped_environment=dropped_environment(),
        fingerprint_parts=prepared.fingerprint.short_parts(),
    )
    return Executed(generation, facts, telemetry, outcome.audit)


def telemetry_of(outcome: Outcome, bus: EventBus) -> bytes:
    """Return the child's events, and the last one, which only the supervisor can see: it is gone.

    Its number tells how many the child had, those that were dropped included. Raises RunFailedError
    when the events are none of a run.
    """
    last = Stamper(resident_bytes, first_seq=outcome.stamped)(EventKind.SHUTDOWN_COMPLETE)
    data = encode_log((*outcome.events, last))
    with well_formed("telemetry"):
        parse_log(data)
    bus.publish(last)
    return data
