"""What an observed schedule costs, and whether it can be one of this model and these counts.

Everything is decided once for each distinct operation (docs/spec/evidence.md#schedule).
"""

from __future__ import annotations

from tallystick.compute.architecture import Architecture, ExpertFeedForward
from tallystick.compute.operations import ExpertGemm, ExpertRoute, Generic
from tallystick.compute.rules import U64_MAX, ComputeUnitRules
from tallystick.errors import EvidenceError
from tallystick.evidence.schedule import OperationSchedule, SchedulePhase


def price(schedule: OperationSchedule, rules: ComputeUnitRules) -> int:
    """Return the compute units of all operations of ``schedule``, by a ruleset of version 1 or 2.

    It is what a ComputeUnitCounter comes to that records them one by one. Raises EvidenceError
    where that would refuse: for an operation without a price, and for an overflow.
    """
    total = 0
    for scheduled, times in zip(schedule.operations, schedule.uses(), strict=True):
        total += rules.cost(scheduled.operation) * times
    if total > U64_MAX:
        raise EvidenceError(
            "the sum of compute units overflows",
            expected="at most 64 bits",
            found=f"{total.bit_length()} bits",
        )
    return total


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
    if schedule.sealing:
        return  # numbers and positions without a gap: the schedule itself makes sure of them
    if any(step.tokens != 1 for step in schedule.steps):
        raise EvidenceError("a step of a generation evaluates more than one token")
    prompt = sum(step.phase is SchedulePhase.PREFILL for step in schedule.steps)
    if prompt != prefill:
        raise EvidenceError(
            "a schedule has another number of prefill steps than the prompt has tokens",
            expected=str(prefill),
            found=str(prompt),
        )


def _check_operations(schedule: OperationSchedule, architecture: Architecture) -> None:
    layers = len(architecture.layers)
    experts = any(isinstance(x.feed_forward, ExpertFeedForward) for x in architecture.layers)
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
