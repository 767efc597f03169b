"""What every step of a schedule has to show of a model's layers (docs/spec/evidence.md#schedule).

A layer that is evaluated has products, one with experts chooses and applies them, and a delta net
has its recurrence. More is not known of an engine's graph without the engine: whether an operation
is missing beyond that, or invented, only a replay tells.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, TypeAlias

from tallystick.compute.architecture import Architecture, DeltaNetMixer, ExpertFeedForward
from tallystick.compute.operations import ExpertGemm, ExpertRoute, GatedDeltaNet, Gemm, Operation
from tallystick.errors import EvidenceError
from tallystick.evidence.schedule import OperationSchedule, SchedulePhase, ScheduleStep

_NAMED: Final = (Gemm, ExpertGemm, ExpertRoute)
_Shown: TypeAlias = tuple[frozenset[tuple[int, type[Operation]]], int]


def check_presence(schedule: OperationSchedule, architecture: Architecture, prefill: int) -> None:
    """Require in every step what a layer cannot do without.

    The last layer is not looked at in a sealing step without a position that has an output: an
    engine leaves out what nobody needs there. Raises EvidenceError.
    """
    kinds = [(item.stage, type(item.operation)) for item in schedule.operations]
    needed = tuple(_needed(architecture))
    seen: dict[bytes, _Shown] = {}
    for step in schedule.steps:
        shown = seen.get(step.entries)
        if shown is None:
            shown = seen[step.entries] = _shown(step, kinds)
        layers = len(architecture.layers) - (not _has_output(step, prefill))
        there, recurrences = shown
        for stage, kind in needed:
            if stage <= layers and (stage, kind) not in there:
                raise EvidenceError(
                    "a step of the schedule lacks an operation of a layer",
                    expected=f"{kind.name} at stage {stage}",
                    found=f"none in {step.phase.label} step {step.number}",
                )
        nets = sum(isinstance(x.mixer, DeltaNetMixer) for x in architecture.layers[:layers])
        if recurrences < nets:
            raise EvidenceError(
                "a step of the schedule lacks a recurrence of a delta net",
                expected=f"{nets} {GatedDeltaNet.name}",
                found=f"{recurrences} in {step.phase.label} step {step.number}",
            )


def _has_output(step: ScheduleStep, prefill: int) -> bool:
    """Say whether a step has a position from the last one of the prompt on, or is no sealing."""
    return step.phase is not SchedulePhase.SEALING or step.first_position + step.tokens >= prefill


def _needed(architecture: Architecture) -> Iterator[tuple[int, type[Operation]]]:
    for stage, layer in enumerate(architecture.layers, 1):
        yield stage, Gemm
        if isinstance(layer.feed_forward, ExpertFeedForward):
            yield stage, ExpertRoute
            yield stage, ExpertGemm


def _shown(step: ScheduleStep, kinds: list[tuple[int, type[Operation]]]) -> _Shown:
    """Return which layers show which of the operations, and how many recurrences there are.

    Engines name a recurrence after no layer, so it is counted over all of them.
    """
    counts = Counter(step.indexes())
    there = frozenset(kinds[index] for index in counts if kinds[index][1] in _NAMED)
    nets = sum(n for index, n in counts.items() if kinds[index][1] is GatedDeltaNet)
    return there, nets
