"""The transcript of a replay's pass, written while it is evaluated (docs/spec/observer.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from tallystick.contracts.request import PRODUCER
from tallystick.contracts.runtime import SEQUENTIAL
from tallystick.engine.port import NodeReading
from tallystick.errors import UsageError
from tallystick.evidence.adapter.collector import StepInfo
from tallystick.evidence.observer.records import (
    EXECUTION_POLICY,
    MAX_EVENTS,
    MAX_TRANSCRIPT,
    OBSERVATION_POLICY,
    SCHEMA,
    SCHEMA_VERSION,
    TRACE_VARIANT,
    Header,
)
from tallystick.evidence.observer.sealing import AnyHeader, SealingHeader, sealing_policy
from tallystick.evidence.observer.writer import Step, TranscriptWriter
from tallystick.execution.child_engine import Reporter
from tallystick.execution.child_run import ChildRun
from tallystick.execution.evidence import Evidence
from tallystick.execution.jobs import ReplayJob
from tallystick.execution.schedule import Chunk
from tallystick.execution.session import Execution
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

# The extents of a chunk's tensors have more digits than those of one row's: at most four more for
# each of a tensor and ten sources.
_EXTENT_GROWTH: Final = 44
# A route's line without its ids, and an id of at most five digits with its comma.
_ROUTE_LINE: Final = 200
_ROUTE_ID: Final = 6


class PassTranscript:
    """Writes what a pass evaluates, step by step, in pieces that ``reporter`` sends on."""

    def __init__(self, job: ReplayJob, this: ChildRun, reporter: Reporter) -> None:
        self._observer = job.transcript
        self._this = this
        self._claimed = job.claimed_ids
        self._file_name = job.file_name
        self._reporter = reporter
        self._writer = TranscriptWriter()
        self._renderer = Renderer(job.transcript)

    @property
    def reads(self) -> Literal["nodes", "products"]:
        """What it has to be given of each step."""
        return "products" if self._observer == "sketch" else "nodes"

    def start(self) -> None:
        """Send the header. Raises UsageError when the transcript could pass a bound."""
        header = self._writer.header(self._header())
        self._require_room(len(header))
        self._reporter.data(header)

    def step(self, info: StepInfo, readings: Sequence[NodeReading]) -> None:
        """Send the lines of one evaluation. Raises RunFailedError beyond a bound."""
        lines = self._renderer.lines(self._writer, readings, self._step(info))
        send_lines(self._reporter, lines)

    def finish(self) -> None:
        """Send the result: the ids that the pass was fed, and the last one."""
        prompt, model = self._this.prompt.ids, self._this.engine.model
        events = self._writer.events
        result = result_record(model, prompt, self._claimed, events, emit=False)
        self._reporter.data(self._writer.result(result))

    def _step(self, info: StepInfo) -> Step:
        phase = info.phase.label
        if self._this.plan.policy == SEQUENTIAL:
            return Step(phase, info.number, info.first_position)
        outputs_from = len(self._this.prompt.ids) - 1
        due = info.first_position + info.tokens - outputs_from
        return Step(
            phase,
            info.number,
            info.first_position,
            info.tokens,
            info.scratch,
            max(0, min(info.tokens, due)),
            self._this.engine.model.layers - 1,
        )

    def _header(self) -> AnyHeader:
        model = self._this.engine.model
        summary, engine = model.summary(), model.engine_summary()
        kind = SCHEMA, SCHEMA_VERSION, PRODUCER, self._observer, TRACE_VARIANT[self._observer]
        head = ("header", *kind, False, model_record(summary, self._file_name))
        plan, sampler = self._this.plan, self._this.sampler
        if plan.policy == SEQUENTIAL:
            return Header(*head, runtime_record(engine), EXECUTION_POLICY, OBSERVATION_POLICY)
        policy = sealing_policy(
            plan.row_class,
            len(self._this.prompt.ids),
            len(self._claimed),
            cells=plan.cells,
            threads=plan.threads,
            sampler="greedy" if sampler.temperature == 0 else "seeded",
        )
        return SealingHeader(*head, runtime_record(engine), policy, OBSERVATION_POLICY)

    def _require_room(self, header: int) -> None:
        this = self._this
        events, size, routes = _cost(this, self._observer)
        steps = this.steps(len(self._claimed))
        positions = len(this.prompt.ids) + len(self._claimed) - 1
        route = _ROUTE_LINE + _ROUTE_ID * this.evidence.figures.used
        whole = (
            header
            + steps * (size + (LINE_GROWTH + _EXTENT_GROWTH) * events)
            + positions * routes * route
            + RESULT_ROOM
            + ID_ROOM * (positions + 1)
        )
        if steps * events > MAX_EVENTS or whole > MAX_TRANSCRIPT:
            raise UsageError(
                "the transcript of this pass would be larger than its readers accept",
                expected=f"at most {MAX_EVENTS} events and {MAX_TRANSCRIPT} bytes",
                found=f"{steps} steps of {events} events, {positions} positions",
                hint="--observer graph writes less, and no routes"
                if self._observer == "sketch"
                else "replay this run without a transcript",
            )


class _Dry:
    """Counts what the first step of a context would add to a transcript."""

    def __init__(self, observer: str, last_layer: int) -> None:
        self.reads: Literal["nodes", "products"] = "products" if observer == "sketch" else "nodes"
        self.writer = TranscriptWriter()
        self._renderer = Renderer(observer)
        self._last_layer = last_layer

    def step(self, info: StepInfo, readings: Sequence[NodeReading]) -> None:
        where = Step("sealing", 0, 0, info.tokens, info.scratch, 1, self._last_layer)
        self._renderer.lines(self.writer, readings, where)


def _cost(this: ChildRun, observer: str) -> tuple[int, int, int]:
    """Return events, bytes and routes of one token's step, evaluated in a context of its own."""
    model = this.engine.model
    dry = _Dry(observer, model.layers - 1)
    execution = Execution(model, this.plan, 1, Evidence(sink=dry))
    try:
        execution.evaluate(this.prompt.ids[:1], Chunk(0, 1))
    finally:
        execution.close()
    return dry.writer.events, dry.writer.size, dry.writer.routes
