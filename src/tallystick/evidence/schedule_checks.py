"""What an observed schedule costs, and whether it can be one of this model and these counts.

Everything is decided once for each distinct operation (docs/spec/evidence.md#schedule).
"""

from __future__ import annotations

from tallystick.compute.architecture import Architecture
from tallystick.compute.operations import ExpertGemm, ExpertRoute, Generic
from tallystick.compute.rules import ComputeUnitCounter, ComputeUnitRules
from tallystick.contracts.runtime import ROW_CLASS, RuntimeClass
from tallystick.errors import EvidenceError
from tallystick.evidence.chunks import chunk_sizes
from tallystick.evidence.schedule import OperationSchedule, SchedulePhase
from tallystick.evidence.schedule_presence import check_presence


def price(schedule: OperationSchedule, rules: ComputeUnitRules) -> int:
    """Return the compute units of all operations of ``schedule``, by a ruleset of version 1 or 2.

    Raises EvidenceError for an operation without a price, and for an overflow.
    """
    counter = ComputeUnitCounter(rules)
    for scheduled, times in zip(schedule.operations, schedule.uses(), strict=True):
        counter.record(scheduled.operation, times)
    return counter.total


def check_schedule(
    schedule: OperationSchedule, architecture: Architecture, prefill: int, generated: int
) -> None:
    """Require that ``schedule`` can be that of a model, ``prefill`` and ``generated`` tokens.

    The last generated token is not evaluated. Raises EvidenceError.
    """
    _check_operations(schedule, architecture)
    positions = prefill + generated - 1
    if schedule.tokens != positions:
        raise EvidenceError(
            "a schedule does not cover the run's positions",
            expected=f"{positions} tokens in all steps",
            found=str(schedule.tokens),
        )
    # Numbers, and positions without a gap: the schedule itself makes sure of them.
    if not schedule.sealing:
        _check_live_steps(schedule, prefill)
    check_presence(schedule, architecture, prefill)


def _check_live_steps(schedule: OperationSchedule, prefill: int) -> None:
    if any(step.tokens != 1 for step in schedule.steps):
        raise EvidenceError("a step of a generation evaluates more than one token")
    prompt = sum(step.phase is SchedulePhase.PREFILL for step in schedule.steps)
    if prompt != prefill:
        raise EvidenceError(
            "a schedule has another number of prefill steps than the prompt has tokens",
            expected=str(prefill),
            found=str(prompt),
        )


def check_steps(schedule: OperationSchedule, runtime: RuntimeClass) -> None:
    """Require that the steps are those of the runtime class: live, or the chunks of a sealing pass.

    Raises EvidenceError.
    """
    sealing = runtime.policy == ROW_CLASS
    if schedule.sealing is not sealing:
        kinds = ("prefill and decode", "sealing")
        raise EvidenceError(
            "a schedule's steps are not those of the policy",
            expected=f"{kinds[sealing]} steps under {runtime.policy}",
            found=f"{kinds[not sealing]} steps",
        )
    if not sealing:
        return
    expected = chunk_sizes(schedule.tokens, runtime.prompt_class)
    for number, (size, step) in enumerate(zip(expected, schedule.steps, strict=False)):
        if size != step.tokens:
            raise EvidenceError(
                "a sealing step is not a chunk of the row class",
                expected=f"{size} tokens in step {number}",
                found=str(step.tokens),
            )


def _check_operations(schedule: OperationSchedule, architecture: Architecture) -> None:
    layers = len(architecture.layers)
    experts = architecture.has_experts
    for scheduled in schedule.operations:
        operation = scheduled.operation
        if scheduled.stage > layers:
            raise EvidenceError(
                "an operation belongs to a layer that the model does not have",
                expected=f"stage 0..{layers}",
                found=f"stage {scheduled.stage}",
            )
        if isinstance(operation, Generic):
            raise EvidenceError("a schedule holds a generic operation, which the rules refuse")
        if not experts and isinstance(operation, ExpertGemm | ExpertRoute):
            raise EvidenceError(
                "an operation on experts in a model that has none", found=operation.name
            )
