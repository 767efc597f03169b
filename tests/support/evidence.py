"""Made-up evidence: schedules, traces, routes, and strategies that make any of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from tallystick.compute.architecture import Architecture, DeltaNetMixer, ExpertFeedForward
from tallystick.compute.families import describe
from tallystick.compute.operations import (
    Elementwise,
    ExpertGemm,
    ExpertRoute,
    GatedDeltaNet,
    Gemm,
    Generic,
    KvCacheWrite,
    Operation,
    RmsNorm,
    Silu,
)
from tallystick.compute.profiles import QWEN36_35B_A3B, PublishedNumbers
from tallystick.compute.schedule import ScheduledOperation
from tallystick.contracts.model import ModelShape
from tallystick.evidence.adapter.gates import HeaderGate
from tallystick.evidence.gemm_trace import GemmTrace, make_trace
from tallystick.evidence.routes import ExpertRoutes, RouteBuilder
from tallystick.evidence.schedule import (
    OperationSchedule,
    ScheduleBuilder,
    SchedulePhase,
    pack_indexes,
)
from tests.golden import reference_observer

BLIND = bytes(range(32))
HYBRID = describe(QWEN36_35B_A3B)
DENSE = describe(
    PublishedNumbers(
        architecture="llama",
        layers=1,
        embedding=64,
        vocabulary=100,
        experts=0,
        experts_used=0,
        shape=ModelShape(4, 2, 16, 16, 128, *(0,) * 11),
    )
)
PREFILL, DECODE, SEALING = SchedulePhase

#: The gate of the model that :func:`small_header` tells of.
SMALL_GATE = HeaderGate(
    architecture="qwen35moe",
    layers=1,
    blocks=1,
    embedding=4,
    vocabulary=11,
    context_train=4096,
    parameters=1000,
    experts=4,
    experts_used=2,
    file_type=7,
    rope_frequency_scale="0.25",
)
#: The gate of the model of `reference_sealing_pass`.
SEALING_GATE = replace(SMALL_GATE, layers=2, blocks=2)
_METADATA = {
    "general.architecture": "qwen35moe",
    "general.file_type": "7",
    "general.quantization_version": "2",
    "qwen35moe.block_count": "1",
    "qwen35moe.context_length": "4096",
    "qwen35moe.embedding_length": "4",
    "qwen35moe.expert_count": "4",
    "qwen35moe.expert_used_count": "2",
}
Step = tuple[SchedulePhase, int, Sequence[ScheduledOperation]]


def schedule_of(*steps: Step) -> OperationSchedule:
    """Return the schedule of steps: phase, tokens, operations; numbers and positions follow."""
    builder = ScheduleBuilder()
    numbers = dict.fromkeys(SchedulePhase, 0)
    position = 0
    for phase, tokens, operations in steps:
        entries = pack_indexes([builder.place(x) for x in operations])
        builder.add(phase, numbers[phase], position, tokens, entries)
        numbers[phase] += 1
        position += tokens
    return builder.finish()


def at(stage: int, *operations: Operation) -> list[ScheduledOperation]:
    """Return operations at one stage."""
    return [ScheduledOperation(stage, operation) for operation in operations]


def live(prefill: int = 2, generated: int = 2, stage: int = 1) -> OperationSchedule:
    """Return a schedule of a generation with two products a step, one smaller than a sketch."""
    operations = at(stage, RmsNorm(64, 1), Gemm(64, 1, 64, 1), Silu(64), Gemm(1, 1, 64, 1))
    steps: list[Step] = [(PREFILL, 1, operations)] * prefill
    return schedule_of(*steps, *[(DECODE, 1, operations)] * (generated - 1))


def sealed(*tokens: int) -> OperationSchedule:
    """Return the schedule of a sealing pass with chunks of ``tokens``, one product each."""
    return schedule_of(*[(SEALING, count, at(1, Gemm(64, count, 64, 1))) for count in tokens])


def layer_operations(architecture: Architecture, tokens: int) -> list[ScheduledOperation]:
    """Return what no layer can do without in an evaluation of ``tokens``."""
    found: list[ScheduledOperation] = []
    for stage, layer in enumerate(architecture.layers, 1):
        found += at(stage, Gemm(64, tokens, 64, 1))
        forward = layer.feed_forward
        if isinstance(forward, ExpertFeedForward):
            choice = forward.experts, forward.used
            found += at(stage, ExpertRoute(tokens, *choice), ExpertGemm(64, tokens, 64, *choice))
        if isinstance(layer.mixer, DeltaNetMixer):  # engines name the recurrence after no layer
            found += at(0, GatedDeltaNet(tokens, 2, 16, 16))
    return found


def completed(schedule: OperationSchedule, architecture: Architecture) -> OperationSchedule:
    """Return ``schedule`` with what every step has to show of the architecture's layers."""
    return schedule_of(
        *(
            (
                step.phase,
                step.tokens,
                [schedule.operations[index] for index in step.indexes()]
                + layer_operations(architecture, step.tokens),
            )
            for step in schedule.steps
        )
    )


def trace_of(schedule: OperationSchedule) -> GemmTrace:
    """Return a trace whose lanes number the products in their first byte."""
    lanes = [bytes([group % 16 << 4]).ljust(32, b"\0") for group in range(schedule.gemms)]
    return make_trace(schedule, lanes)


def routes_of(architecture: Architecture, positions: int, last_from: int = 0) -> ExpertRoutes:
    """Return routes in which each layer chooses the experts that follow its number."""
    (feed_forward,) = {x.feed_forward for x in architecture.layers}
    assert isinstance(feed_forward, ExpertFeedForward)
    experts, used = feed_forward.experts, feed_forward.used
    layers = len(architecture.layers)
    builder = RouteBuilder(layers, experts, used, last_from=last_from)
    rows = [pack_indexes([(layer + i) % experts for i in range(used)]) for layer in range(layers)]
    for position in range(positions):
        due = builder.rows_due(position, 1)
        builder.push(position, 1, [*rows[:-1], rows[-1] * due])
    return builder.finish()


def small_header(observer: str) -> bytes:
    """Return the header's line of the golden transcript, with metadata that a gate knows."""
    header = reference_observer.header(observer)
    header["model"]["metadata"] = [{"key": k, "value": v} for k, v in _METADATA.items()]
    return reference_observer.line(header)


U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
SMALL = st.integers(0, 3)
OPERATIONS: st.SearchStrategy[Operation] = st.one_of(
    st.builds(Gemm, SMALL, SMALL, SMALL, SMALL),
    st.builds(Gemm, U32, U32, U32, U32),
    st.builds(RmsNorm, U32, U32),
    st.builds(Silu, U64),
    st.builds(KvCacheWrite, U64),
    st.builds(Generic, U32, U64),
    st.builds(Elementwise, SMALL),
)
SCHEDULED = st.builds(ScheduledOperation, st.integers(0, 3), OPERATIONS)
STEPS = st.lists(st.lists(SCHEDULED, min_size=1, max_size=8), min_size=1, max_size=5)


@st.composite
def schedules(draw: st.DrawFn) -> OperationSchedule:
    """Draw a schedule of a generation or of a sealing pass."""
    lists = draw(STEPS)
    if draw(st.booleans()):
        return schedule_of(*[(SEALING, draw(st.integers(1, 5)), step) for step in lists])
    prompt = draw(st.integers(1, len(lists)))
    phases = [PREFILL if place < prompt else DECODE for place in range(len(lists))]
    return schedule_of(*[(phase, 1, step) for phase, step in zip(phases, lists, strict=True)])
