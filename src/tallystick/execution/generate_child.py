"""Run a declared run in this (child) process, and gather its evidence."""

from __future__ import annotations

import time

from tallystick.contracts.generation import Generation, Timings
from tallystick.errors import RunFailedError
from tallystick.evidence.observer.records import MAX_EVENTS
from tallystick.execution.bundle_room import require_bundle_room
from tallystick.execution.child_engine import Engine, Reporter
from tallystick.execution.child_run import ChildRun
from tallystick.execution.evidence import Gathered, merged, require_equal
from tallystick.execution.jobs import GenerateJob
from tallystick.execution.prompt import context_of, prepare_prompt, require_ordered_length
from tallystick.execution.room import require_room
from tallystick.execution.session import Execution, OnRows, generate, re_execute
from tallystick.telemetry.events import EventKind
from tallystick.telemetry.rss import resident_bytes


def run_generate(job: GenerateJob, reporter: Reporter) -> Generation:
    """Generate and gather evidence, live or in a sealing pass over the finished run.

    A sealing pass, or one that was asked for as a self-check, re-executes everything before
    anything is reported. Raises RunFailedError when it does not find what was generated, and
    before anything is generated InputError when the prompt does not fit, UsageError when the
    evidence or the bundle would pass its bound.
    """
    reporter.event(EventKind.INIT)
    rss_before = resident_bytes()
    engine = Engine(job.setup, job.model_fd, reporter, job.ring)
    prompt = prepare_prompt(engine.model, job.run)
    require_ordered_length(len(prompt.ids), job.max_prompt_tokens)
    cells = context_of(engine.model, job.run, len(prompt.ids), job.row_class)
    this = ChildRun.of(job, engine, prompt, cells, rss_before)
    _require_room(this)
    clock = [time.monotonic_ns()]
    sampled, gathered = _generate(this, reporter, clock)
    reporter.event(EventKind.ARENA_RESET)
    sealing = this.evidence.sealed or job.self_check == "yes"
    if sealing:
        progress = reporter.progress("sealing" if this.evidence.sealed else "self-check")
        sealed = seal(this, sampled, progress)
        require_equal(gathered, sealed)
        gathered = merged(gathered, sealed)
    this.evidence.require_whole(gathered, len(sampled))
    clock.append(time.monotonic_ns())
    return this.result(
        sampled,
        gathered,
        Timings(
            load=engine.load_ns,
            prefill=clock[1] - clock[0],
            decode=clock[2] - clock[1],
            seal=clock[3] - clock[2],
        ),
        stop_reason="end_of_generation" if engine.model.is_end(sampled[-1]) else "length",
        self_check="passed" if sealing else "not_run",
    )


def _require_room(this: ChildRun) -> None:
    """Raise UsageError when the run could leave more evidence than its readers accept."""
    events, asked = 0, this.run.max_tokens
    if this.evidence.graph:
        events = this.events()
        require_room(
            asked,
            lambda generated: this.steps(generated) * events <= MAX_EVENTS,
            what="the evidence",
            bound=f"{MAX_EVENTS} operations",
            found=f"{this.steps(asked)} steps of {events} operations",
            instead="a shorter prompt, or no other evidence than states",
        )
    require_bundle_room(this, events)


def _generate(
    this: ChildRun, reporter: Reporter, clock: list[int]
) -> tuple[tuple[int, ...], Gathered]:
    """Return the sampled ids and the live evidence; note the first token's time and the end."""
    model = this.engine.model

    def on_token(index: int, token: int) -> None:
        if index == 0:
            clock.append(time.monotonic_ns())
        reporter.token(index, model.piece(token, special=False))

    evidence = this.evidence.live()
    execution = Execution(model, this.plan, len(this.prompt.ids), evidence)
    sampled = generate(
        execution,
        model.is_end,
        this.plan,
        this.prompt.ids,
        this.run.max_tokens,
        this.sampler,
        on_token,
        reporter.progress("prompt"),
    )
    clock.append(time.monotonic_ns())
    execution.close()
    return sampled, evidence.finish()


def seal(this: ChildRun, sampled: tuple[int, ...], on_rows: OnRows) -> Gathered:
    """Re-execute the finished run and return all its evidence, bound to no worker.

    Raises RunFailedError when a token does not follow from its own logits.
    """
    prompt = this.prompt.ids
    whole = this.evidence.unbound().whole()
    execution = Execution(this.engine.model, this.plan, len(prompt), whole)
    derived = re_execute(execution, this.plan, prompt, sampled, this.sampler, on_rows)
    execution.close()
    for index, (claimed, found) in enumerate(zip(sampled, derived, strict=True)):
        if claimed != found:
            raise RunFailedError(
                "self-check failed: a token does not follow from its own logits",
                found=f"generated token {index}",
                hint="recalibrate the model: tallystick model calibrate",
            )
    return whole.finish()
