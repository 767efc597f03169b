"""Re-execute a receipt's run in this (child) process, over the ids that it claims."""

from __future__ import annotations

import time
from dataclasses import replace

from tallystick.contracts.generation import Generation, Timings
from tallystick.engine.port import Model
from tallystick.errors import EvidenceError, IncomparableError, InputError
from tallystick.evidence.observer.records import MAX_EVENTS
from tallystick.execution.chat import other_renderer, renderer
from tallystick.execution.child_engine import Engine, Reporter
from tallystick.execution.child_run import ChildRun
from tallystick.execution.jobs import ReplayJob
from tallystick.execution.prompt import Prompt, context_of, prepare_prompt
from tallystick.execution.replay_transcript import PassTranscript
from tallystick.execution.session import Execution, re_execute
from tallystick.telemetry.events import EventKind
from tallystick.telemetry.rss import resident_bytes


def run_replay(job: ReplayJob, reporter: Reporter) -> Generation:
    """Re-execute the claimed ids; the result holds what follows, not what was claimed.

    Raises EvidenceError when this model cannot have made such a run.
    """
    reporter.event(EventKind.INIT)
    rss_before = resident_bytes()
    engine = Engine(job.setup, job.model_fd, reporter, job.ring)
    model = engine.model
    prompt, cells = prompt_of_receipt(model, job)
    _check_claim(job, model)
    this = ChildRun.of(job, engine, prompt, cells, rss_before)
    if this.evidence.graph:
        _check_room(this, len(job.claimed_ids))
    evidence = this.evidence.whole()
    transcript = None if job.transcript == "none" else PassTranscript(job, this, reporter)
    if transcript is not None:
        transcript.start()
        evidence = replace(evidence, sink=transcript)
    execution = Execution(model, this.plan, len(prompt.ids), evidence)
    started = time.monotonic_ns()
    derived = re_execute(
        execution,
        this.plan,
        prompt.ids,
        job.claimed_ids,
        this.sampler,
        reporter.progress("replay"),
    )
    spent = time.monotonic_ns() - started
    execution.close()
    gathered = evidence.finish()
    this.evidence.require_whole(gathered, len(job.claimed_ids))
    if transcript is not None:
        transcript.finish()
    ended = next((i for i, token in enumerate(derived) if model.is_end(token)), None)
    if ended is not None:
        # A generation is over with its first end token, whatever the claim goes on to say.
        derived = derived[: ended + 1]
    return this.result(
        derived,
        gathered,
        Timings(load=engine.load_ns, prefill=spent, decode=0, seal=0),
        stop_reason="length" if ended is None else "end_of_generation",
        self_check="not_run",
    )


def _check_claim(job: ReplayJob, model: Model) -> None:
    if not 1 <= len(job.claimed_ids) <= job.run.max_tokens:
        raise EvidenceError(
            "the receipt has another number of tokens than its request allows",
            expected=f"1 to {job.run.max_tokens}",
            found=str(len(job.claimed_ids)),
        )
    if max(job.claimed_ids) >= model.vocabulary:
        raise EvidenceError("a sampled id is beyond the model's vocabulary")


def _check_room(this: ChildRun, generated: int) -> None:
    steps, events = this.steps(generated), this.events()
    if steps * events > MAX_EVENTS:
        raise EvidenceError(
            "the receipt's run has more operations than evidence may hold",
            expected=f"at most {MAX_EVENTS}",
            found=f"{steps} steps of {events}",
        )


def prompt_of_receipt(model: Model, job: ReplayJob) -> tuple[Prompt, int]:
    """Return the prompt and the context of a run that a receipt says was made.

    Raises EvidenceError where the model cannot have made it, IncomparableError where the reason
    may be this machine.
    """
    run = job.run
    try:
        prepared = prepare_prompt(model, run, unable=IncomparableError)
        return prepared, context_of(model, run, len(prepared.ids), job.row_class)
    except InputError as error:
        if run.chat is not None and job.renderer != renderer():
            raise other_renderer(job.renderer, renderer()) from None
        raise EvidenceError(
            "this model cannot have made the receipt's run",
            expected=error.expected,
            found="; ".join(filter(None, (error.message, error.found))),
        ) from None
