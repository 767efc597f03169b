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
    GraphNode,
    GraphTensor,
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
    MetadataEntry,
    ModelRecord,
    Result,
    RuntimeRecord,
    SourceRecord,
    TensorRecord,
)
from tallystick.evidence.observer.writer import (
    EventTemplate,
    Step,
    TranscriptWriter,
    step_template,
    template,
)
from tallystick.execution import sampling
from tallystick.execution.child_engine import Engine, Reporter
from tallystick.execution.jobs import ObserveJob
from tallystick.execution.room import require_room
from tallystick.execution.session import Plan

_WATCH: Final = {
    # Flash attention and the type of the cache show in a graph only.
    "off": Watch(),
    "graph": Watch(graph="nodes"),
    "sketch": Watch(graph="products"),
}
_SPEC: Final = Plan(SEQUENTIAL, RowClass(1, 1), CONTEXT_TOKENS, 1).context_spec()
_PIECE: Final = 1 << 20
# Lines of later steps have longer numbers than those of the first, and the result has to fit too.
_LINE_GROWTH: Final = 24
_RESULT_ROOM: Final = 64 * 1024
_ID_ROOM: Final = 12
_OUTPUT_ROOM: Final = 4 * 256


@dataclass(frozen=True, slots=True)
class StepCost:
    """What one step adds to a transcript at most."""

    events: int
    size: int


class Renderer:
    """Turns readings into lines; what it made of a node is used again for the same node."""

    def __init__(self, observer: str) -> None:
        self._observer = observer
        # By identity: the tap hands out the same object for the same node, and here it stays.
        self._templates: dict[int, tuple[GraphNode, EventTemplate]] = {}
        self._nodes: list[GraphNode] = []
        self._plan = step_template(())

    def lines(self, writer: TranscriptWriter, readings: Sequence[NodeReading], step: Step) -> bytes:
        """Return the lines of one step."""
        nodes = [reading.node for reading in readings]
        if nodes != self._nodes:
            self._nodes = nodes
            self._plan = step_template([self._template(node) for node in nodes])
        return writer.step(self._plan, step, [reading.data for reading in readings])

    def _template(self, node: GraphNode) -> EventTemplate:
        found = self._templates.get(id(node))
        if found is None:
            sources = [SourceRecord(each.name, each.type, each.shape) for each in node.sources]
            found = node, template(self._observer, _tensor(node.tensor), sources)
            self._templates[id(node)] = found
        return found[1]


def _tensor(tensor: GraphTensor) -> TensorRecord:
    return TensorRecord(tensor.name, tensor.op, tensor.type, tensor.shape, tensor.n_bytes)


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
    reporter.data(writer.result(_result(job, model, prompt, generated, writer.events)))
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
    return StepCost(writer.events, writer.size + _LINE_GROWTH * records)


def _require_room(job: ObserveJob, prompt: int, header: int, cost: StepCost) -> None:
    """Raise UsageError when the whole transcript could pass a bound."""

    def fits(generated: int) -> bool:
        steps = prompt + generated - 1
        room = _RESULT_ROOM + _ID_ROOM * (prompt + generated)
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
            _send(reporter, lines(observed.observation().nodes, where))
        step += 1
        progress(step, len(prompt) + job.max_tokens - 1)
        if step < len(prompt):
            continue
        generated.append(sampling.greedy(context.logits(0)))
        if len(generated) == job.max_tokens or model.is_end(generated[-1]):
            context.close()
            return tuple(generated)


def _send(reporter: Reporter, lines: bytes) -> None:
    """Send ``lines`` in pieces of whole lines."""
    start = 0
    while start < len(lines):
        end = len(lines)
        if end - start > _PIECE:
            end = lines.rfind(b"\n", start, start + _PIECE) + 1
            end = end or lines.index(b"\n", start) + 1
        reporter.data(lines[start:end])
        start = end


def _header(job: ObserveJob, model: ModelSummary, engine: EngineSummary) -> Header:
    metadata = {entry.key: entry.value for entry in model.metadata}
    file_type = metadata.get("general.file_type", "")
    return Header(
        record="header",
        schema=SCHEMA,
        schema_version=SCHEMA_VERSION,
        producer=PRODUCER,
        observer=job.observer,
        trace_variant=TRACE_VARIANT[job.observer],
        cuda_kernel_trace=False,
        model=ModelRecord(
            path=job.file_name,
            description=model.description[:200],
            tensor_size_bytes=model.tensor_bytes,
            parameter_count=model.parameters,
            file_type=int(file_type) if file_type.isascii() and file_type.isdigit() else None,
            n_ctx_train=model.context_train,
            n_embd=model.embedding,
            n_layer=model.layers,
            n_head=model.heads,
            n_head_kv=model.heads_kv,
            n_vocab=model.vocabulary,
            rope_type=model.rope_type,
            rope_freq_scale_train=model.rope_frequency_scale,
            metadata=tuple(MetadataEntry(entry.key, entry.value) for entry in model.metadata),
        ),
        runtime=RuntimeRecord(
            ggml_version=engine.version,
            ggml_commit=engine.commit,
            system_info=engine.system_info,
            supports_gpu_offload=engine.gpu_offload,
            requested_gpu_layers=0,
            devices=(),
        ),
        execution_policy=EXECUTION_POLICY,
        observation_policy=OBSERVATION_POLICY,
    )


def _result(
    job: ObserveJob,
    model: DescribedModel,
    prompt: tuple[int, ...],
    generated: tuple[int, ...],
    events: int,
) -> Result:
    output = b"".join(model.piece(token, special=False) for token in generated)
    return Result(
        record="result",
        status="ok",
        stop_reason="eog" if model.is_end(generated[-1]) else "n_predict",
        prompt_token_ids=prompt,
        generated_token_ids=generated,
        output_bytes=tuple(output) if job.output_bytes == "emit" else (),
        output_n_bytes=len(output),
        event_count=events,
    )
