"""From a transcript to evidence: the strict reader, a header gate, and the collector."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tallystick.canonical.hashing import ids_bytes
from tallystick.errors import EvidenceError
from tallystick.evidence.adapter.collector import Collected, Collector, Readings, StepInfo
from tallystick.evidence.adapter.gates import HeaderGate, check_header
from tallystick.evidence.adapter.nodes import NodePlan
from tallystick.evidence.gemm_trace import gemm_root
from tallystick.evidence.observed import ObservedEvidence
from tallystick.evidence.observer.reader import Limits, Transcript, TranscriptReader
from tallystick.evidence.observer.records import AnyEvent, Header, Route, SketchEvent
from tallystick.evidence.observer.sealing import (
    AnyHeader,
    Record,
    SealingHeader,
    SealingStep,
    sealing_steps,
)
from tallystick.evidence.routes import ExpertRoutes, RouteBuilder
from tallystick.evidence.schedule import SchedulePhase

_MAX_KEPT: Final = 16_384
_PHASES: Final = {phase.label: phase for phase in SchedulePhase}


@dataclass(frozen=True, slots=True)
class AdaptedTranscript:
    """The evidence that a transcript holds, and its roots under the run's blind (None: no part).

    ``transcript`` has the private token ids.
    """

    transcript: Transcript = field(repr=False)
    evidence: ObservedEvidence
    routes: ExpertRoutes | None = field(repr=False)
    gemm_root: bytes | None = field(repr=False)
    expert_route_root: bytes | None = field(repr=False)


def adapt_transcript(
    pieces: Iterable[bytes], gate: HeaderGate, blind: bytes, limits: Limits | None = None
) -> AdaptedTranscript:
    """Return the evidence of the transcript in ``pieces``.

    Raises EvidenceError when it is not a transcript of a run of the gate's model, or one of an
    unobserved run; IncomparableError for a header of an unknown architecture.
    """
    reader = TranscriptReader(limits)
    steps = _Steps(gate)
    for piece in pieces:
        for record in reader.feed(piece):
            steps.take(record)
    transcript = reader.finish()
    collected = steps.finish()
    trace, routes = collected.evidence.trace, collected.routes
    return AdaptedTranscript(
        transcript,
        collected.evidence,
        routes,
        None if trace is None else gemm_root(blind, trace),
        None if routes is None else routes.root(blind),
    )


class _Steps:
    """Gathers the records of each step and gives them to a collector."""

    def __init__(self, gate: HeaderGate) -> None:
        self._gate = gate
        self._collector: Collector | None = None
        # The reader hands out the same tensor object for lines that differ in numbers only.
        self._kept: dict[int, tuple[AnyEvent, NodePlan]] = {}
        self._step: tuple[str, int] | None = None
        self._position = 0
        self._plans: list[NodePlan] = []
        self._lanes: list[bytes] = []
        self._routes: list[tuple[int, bytes]] = []
        self._choice = 0  # the event of the last route
        self._chunks: tuple[SealingStep, ...] = ()

    def take(self, record: Record) -> None:
        if isinstance(record, AnyEvent):
            self._event(record)
        elif isinstance(record, Route):
            self._route(record)
        elif isinstance(record, Header | SealingHeader):
            self._start(record)

    def _route(self, route: Route) -> None:
        rows = ids_bytes(route.expert_ids)
        if route.event_seq == self._choice:  # of the next position
            layer, before = self._routes[-1]
            self._routes[-1] = (layer, before + rows)
        else:
            self._routes.append((route.layer, rows))
            self._choice = route.event_seq

    def finish(self) -> Collected:
        self._flush()
        return self._require().finish()

    def _start(self, header: AnyHeader) -> None:
        check_header(header, self._gate)
        if header.observer == "off":
            raise EvidenceError(
                "the transcript of an unobserved run holds no evidence",
                expected="observer graph or sketch",
                found="off",
            )
        figures = self._gate.figures
        readings: Readings = "products" if header.observer == "sketch" else "nothing"
        routes, last_from = None, 0
        if isinstance(header, SealingHeader):
            self._chunks = sealing_steps(header.execution_policy)
            last_from = header.execution_policy.prompt_tokens - 1
        if header.observer == "sketch" and figures.experts:
            routes = RouteBuilder(
                figures.layers, figures.experts, figures.used, last_from=last_from
            )
        self._collector = Collector(figures, readings, routes)

    def _event(self, event: AnyEvent) -> None:
        step = (event.phase, event.phase_step)
        if step != self._step:
            self._flush()
            self._step = step
        key = id(event.tensor)
        kept = self._kept.get(key)
        if kept is None:
            if len(self._kept) >= _MAX_KEPT:
                self._kept.clear()
            kept = self._kept[key] = (event, self._require().plan(event))
        self._plans.append(kept[1])
        if isinstance(event, SketchEvent):
            self._lanes.append(bytes.fromhex(event.sketch.hex))

    def _flush(self) -> None:
        if self._step is None:
            return
        phase, number = self._step
        # Padding has no routes in a transcript, so none is to be left out.
        tokens = self._chunks[number].tokens if self._chunks else 1
        info = StepInfo(_PHASES[phase], number, self._position, tokens)
        self._require().step_of(info, self._plans, self._lanes, self._routes)
        self._position += tokens
        self._plans, self._lanes, self._routes = [], [], []

    def _require(self) -> Collector:
        if self._collector is None:
            raise EvidenceError("the transcript has no header")
        return self._collector
