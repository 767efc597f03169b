"""Observe a run under `sequential` in this (child) process (docs/spec/observer.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tallystick.canonical.json import JSONValue
from tallystick.contracts.request import PRODUCER
from tallystick.contracts.runtime import SEQUENTIAL, RowClass
from tallystick.engine.port import (
    Context,
    DescribedModel,
    EngineSummary,
    ModelSummary,
    NodeReading,
    ObservedContext,
    Rows,
    Watch,
)
from tallystick.errors import InputError
from tallystick.evidence.observer.records import (
    CONTEXT_TOKENS,
    EXECUTION_POLICY,
    MAX_EVENTS,
    MAX_TRANSCRIPT,
    OBSERVATION_POLICY,
    SCHEMA,
    SCHEMA_VERSION,
    TRACE_VARIANT,
    Header,
)
from tallystick.evidence.observer.writer import (
    Step,
    TranscriptWriter,
)
from tallystick.execution import sampling
from tallystick.execution.child_engine import Engine, Reporter
from tallystick.execution.jobs import ObserveJob
from tallystick.execution.room import require_room
from tallystick.execution.session import Plan
from tallystick.execution.transcript import (
    ID_ROOM,
    LINE_GROWTH,
    RESULT_ROOM,
    Renderer,
    model_record,
    result_record,
    runtime_record,
    send_lines,
)

_WATCH: Final = {
    # Flash attention and the type of the cache show in a graph only.
    "off": Watch(),
    "graph": Watch(graph="nodes"),
    "sketch": Watch(graph="products"),
}
_SPEC: Final = Plan(SEQUENTIAL, RowClass(1, 1), CONTEXT_TOKENS, 1).context_spec()
_OUTPUT_ROOM: Final = 4 * 256


@dataclass(frozen=True, slots=True)
class StepCost:
    """What one step adds to a transcript at most."""

    events: int
    size: int


def run_observe(job: ObserveJob, reporter: Reporter) -> dict[str, JSONValue]:
    """Send the transcript of one run in pieces of whole lines; return its counts.

    Raises InputError for a prompt that is empty or too long for the context, UsageError when the
    transcript would pass its bounds (then nothing was sent).
    """
    model = Engine(job.setup, job.model_fd, reporter).model
    prompt = _prompt(model, job)
    writer = TranscriptWriter()
    header = writer.header(_header(job, model.summary(), model.engine_summary()))
    renderer = Renderer(job.observer)
    cost = _dry_step(model, job.observer, prompt[0], renderer)
    if job.observer != "off":
        _require_room(job, len(prompt), len(header), cost)
    reporter.data(header)
    generated = _generate(job, model, prompt, lambda *seen: renderer.lines(writer, *seen), reporter)
    reporter.data(
        writer.result(
            result_record(model, prompt, generated, writer.events, emit=job.output_bytes == "emit")
        )
    )
    return {
        "events": writer.events,
        "routes": writer.routes,
        "prompt_tokens": len(prompt),
        "generated_tokens": len(generated),
    }


def _prompt(model: DescribedModel, job: ObserveJob) -> tuple[int, ...]:
    prompt = model.tokenize(job.prompt.encode(), add_special=True, parse_special=True)
    if not prompt:
        raise InputError("the prompt has no tokens", hint="give a prompt that is not empty")
    if len(prompt) + job.max_tokens > CONTEXT_TOKENS:
        raise InputError(
            "prompt and generated tokens do not fit the context",
            expected=f"at most {CONTEXT_TOKENS} tokens in all",
            found=f"{len(prompt)} prompt tokens + {job.max_tokens} to generate",
            hint="shorten the prompt or lower --n-predict",
        )
    return prompt


def _dry_step(model: DescribedModel, observer: str, token: int, renderer: Renderer) -> StepCost:
    """Evaluate one token in a context of its own: what a step costs, and that the graph is fine.

    Flash attention and the type of the cache show in a graph only, so `off` needs this as well.
    """
    context = model.open_observed(_SPEC, _WATCH[observer])
    try:
        context.evaluate(_rows(token, 0))
        readings = context.observation().nodes
    finally:
        context.close()
    writer = TranscriptWriter()
    renderer.lines(writer, readings, Step("prefill", 0, 0))
    records = writer.events + writer.routes
    return StepCost(writer.events, writer.size + LINE_GROWTH * records)


def _require_room(job: ObserveJob, prompt: int, header: int, cost: StepCost) -> None:
    """Raise UsageError when the whole transcript could pass a bound."""

    def fits(generated: int) -> bool:
        steps = prompt + generated - 1
        room = RESULT_ROOM + ID_ROOM * (prompt + generated)
        if job.output_bytes == "emit":
            room += _OUTPUT_ROOM * generated
        return (
            steps * cost.events <= MAX_EVENTS
            and header + steps * cost.size + room <= MAX_TRANSCRIPT
        )

    require_room(
        job.max_tokens,
        fits,
        what="the transcript",
        bound=f"{MAX_EVENTS} events and {MAX_TRANSCRIPT} bytes",
        found=f"{prompt + job.max_tokens - 1} steps of {cost.events} events",
        instead="a shorter prompt, or --observer off",
    )


def _rows(token: int, position: int) -> Rows:
    return Rows(tokens=(token,), positions=(position,), sequences=(0,), outputs=(True,))


def _generate(
    job: ObserveJob,
    model: DescribedModel,
    prompt: Sequence[int],
    lines: Callable[[Sequence[NodeReading], Step], bytes],
    reporter: Reporter,
) -> tuple[int, ...]:
    """Evaluate token by token, greedily, and send each step's lines when it is over."""
    context: Context
    observed: ObservedContext | None = None
    if job.observer == "off":
        context = model.open_context(_SPEC)
    else:
        context = observed = model.open_observed(_SPEC, _WATCH[job.observer])
    progress = reporter.progress("observing")
    generated: list[int] = []
    step = 0
    while True:
        position = step
        decoding = step >= len(prompt)
        token = generated[-1] if decoding else prompt[step]
        context.evaluate(_rows(token, position))
        if observed is not None:
            where = (
                Step("decode", step - len(prompt), position)
                if decoding
                else Step("prefill", step, position)
            )
            send_lines(reporter, lines(observed.observation().nodes, where))
        step += 1
        progress(step, len(prompt) + job.max_tokens - 1)
        if step < len(prompt):
            continue
        generated.append(sampling.greedy(context.logits(0)))
        if len(generated) == job.max_tokens or model.is_end(generated[-1]):
            context.close()
            return tuple(generated)


def _header(job: ObserveJob, model: ModelSummary, engine: EngineSummary) -> Header:
    return Header(
        record="header",
        schema=SCHEMA,
        schema_version=SCHEMA_VERSION,
        producer=PRODUCER,
        observer=job.observer,
        trace_variant=TRACE_VARIANT[job.observer],
        cuda_kernel_trace=False,
        model=model_record(model, job.file_name),
        runtime=runtime_record(engine),
        execution_policy=EXECUTION_POLICY,
        observation_policy=OBSERVATION_POLICY,
    )
