"""Observed schedules: one encoding each, in the order of first use, never a gap or a way back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.canonical.hashing import domain_hash
from tallystick.compute.operations import (
    ExpertGemm,
    ExpertRoute,
    GatedDeltaNet,
    Gemm,
    Generic,
    Operation,
    RmsNorm,
    Silu,
)
from tallystick.compute.rules import (
    RULES_V1,
    RULES_V2,
    RULES_V3,
    ComputeUnitCounter,
    ComputeUnitRules,
)
from tallystick.compute.schedule import ScheduledOperation
from tallystick.contracts.runtime import RowClass
from tallystick.errors import EvidenceError
from tallystick.evidence import schedule as module
from tallystick.evidence.schedule import (
    OperationSchedule,
    ScheduleBuilder,
    SchedulePhase,
    ScheduleStep,
    encode_schedule,
    pack_indexes,
)
from tallystick.evidence.schedule_checks import check_schedule, check_steps, price
from tests.support.decoding import decode_schedule
from tests.support.documents import RUNTIME
from tests.support.evidence import (
    DECODE,
    DENSE,
    HYBRID,
    PREFILL,
    SEALING,
    at,
    layer_operations,
    live,
    schedule_of,
    schedules,
    sealed,
)

NORM, GEMM, SILU = at(1, RmsNorm(64, 1), Gemm(64, 1, 64, 1), Silu(64))


def step(
    phase: SchedulePhase, number: int, position: int, tokens: int, *indexes: int
) -> ScheduleStep:
    return ScheduleStep(phase, number, position, tokens, pack_indexes([*indexes]))


def flat(schedule: OperationSchedule) -> list[ScheduledOperation]:
    return [schedule.operations[i] for each in schedule.steps for i in each.indexes()]


@given(schedules())
def test_round_trip(schedule: OperationSchedule) -> None:
    data = encode_schedule(schedule)
    assert decode_schedule(data) == schedule
    assert encode_schedule(decode_schedule(data)) == data


def test_the_encoding_written_by_hand() -> None:
    schedule = schedule_of((PREFILL, 1, [NORM, SILU, NORM]), (DECODE, 1, [SILU]))
    expected = (
        "02000000"  # two operations
        "01000000"
        "03"
        "4000000001000000"  # stage 1, rms_norm(64, 1)
        "01000000"
        "08"
        "4000000000000000"  # stage 1, silu(64)
        "02000000"  # two steps
        "00"
        "00000000"
        "00000000"
        "01000000"
        "03000000"
        "000000000100000000000000"
        "01"
        "00000000"
        "01000000"
        "01000000"
        "01000000"
        "01000000"
    )
    assert encode_schedule(schedule).hex() == expected
    assert schedule.commitment(b"r" * 32) == domain_hash(
        "palw.operation-schedule", 1, [b"r" * 32, bytes.fromhex(expected)]
    )


@given(schedules(), st.data())
def test_a_changed_byte_or_a_cut_is_refused_or_is_another_schedule(
    schedule: OperationSchedule, draw: st.DataObject
) -> None:
    data = bytearray(encode_schedule(schedule))
    with pytest.raises(EvidenceError):
        decode_schedule(bytes(data[: draw.draw(st.integers(0, len(data) - 1))]))
    with pytest.raises(EvidenceError):
        decode_schedule(bytes(data) + b"\0")
    data[draw.draw(st.integers(0, len(data) - 1))] ^= draw.draw(st.integers(1, 255))
    try:
        other = decode_schedule(bytes(data))
    except EvidenceError:
        return
    assert other != schedule
    assert other.commitment(RULES_V3.ruleset_id) != schedule.commitment(RULES_V3.ruleset_id)


@given(schedules())
def test_counts_and_places_of_products(schedule: OperationSchedule) -> None:
    operations = flat(schedule)
    assert schedule.events == len(operations)
    assert schedule.uses() == tuple(map(operations.count, schedule.operations))
    gemms = [i for i, x in enumerate(operations) if isinstance(x.operation, Gemm)]
    assert [*schedule.gemm_events()] == gemms
    assert schedule.gemms == len(gemms)
    assert schedule.tokens == sum(each.tokens for each in schedule.steps)


@pytest.mark.parametrize(
    ("operations", "steps", "message"),
    [
        ([], [], "without steps"),
        ([NORM, GEMM], [step(PREFILL, 0, 0, 1, 1, 0)], "order of first use"),
        ([NORM, GEMM], [step(PREFILL, 0, 0, 1, 0)], "do not fit together"),
        ([NORM], [step(PREFILL, 0, 0, 1, 0, 1)], "do not fit together"),
        ([NORM], [step(PREFILL, 0, 0, 1, 2**32 - 1)], "order of first use"),
        ([NORM, NORM], [step(PREFILL, 0, 0, 1, 0, 1)], "twice"),
        ([NORM], [step(PREFILL, 0, 0, 1)], "whole entries"),
        ([NORM], [ScheduleStep(PREFILL, 0, 0, 1, bytes(5))], "whole entries"),
        ([NORM], [step(PREFILL, 1, 0, 1, 0)], "out of order"),
        ([NORM], [step(DECODE, 0, 0, 1, 0)], "out of order"),
        ([NORM], [step(PREFILL, 0, 0, 1, 0), step(PREFILL, 0, 1, 1, 0)], "out of order"),
        ([NORM], [step(PREFILL, 0, 0, 1, 0), step(PREFILL, 2, 1, 1, 0)], "out of order"),
        ([NORM], [step(PREFILL, 0, 0, 1, 0), step(DECODE, 1, 1, 1, 0)], "out of order"),
        ([NORM], [step(PREFILL, 0, 0, 1, 0), step(SEALING, 0, 1, 1, 0)], "out of order"),
        ([NORM], [step(SEALING, 1, 0, 1, 0)], "out of order"),
        ([NORM], [step(SEALING, 0, 0, 1, 0), step(SEALING, 0, 1, 1, 0)], "out of order"),
        ([NORM], [step(SEALING, 0, 0, 1, 0), step(PREFILL, 0, 1, 1, 0)], "out of order"),
        ([NORM], [step(PREFILL, 0, 1, 1, 0)], "positions do not follow"),
        ([NORM], [step(PREFILL, 0, 0, 0, 0)], "positions do not follow"),
        ([NORM], [step(SEALING, 0, 0, 4, 0), step(SEALING, 1, 5, 1, 0)], "positions do not follow"),
        ([NORM], [step(SEALING, 0, 0, 4, 0), step(SEALING, 1, 3, 1, 0)], "positions do not follow"),
        ([NORM], [step(SEALING, 0, 0, 2**32, 0)], "32 bits"),
    ],
)
def test_what_no_schedule_is(
    operations: list[ScheduledOperation], steps: list[ScheduleStep], message: str
) -> None:
    with pytest.raises(EvidenceError, match=message):
        OperationSchedule(tuple(operations), tuple(steps))


def test_a_phase_that_does_not_exist() -> None:
    data = bytearray(encode_schedule(schedule_of((PREFILL, 1, [NORM]))))
    data[4 + 13 + 4] = 3
    with pytest.raises(EvidenceError, match="not a phase"):
        decode_schedule(bytes(data))


def test_the_bounds_hold_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = schedule_of((PREFILL, 1, [NORM, NORM]), (PREFILL, 1, [NORM]))
    data = encode_schedule(whole)
    monkeypatch.setattr(module, "MAX_EVENTS", 3)
    assert decode_schedule(data) == whole
    monkeypatch.setattr(module, "MAX_EVENTS", 2)
    with pytest.raises(EvidenceError, match="too many items"):  # before they are read
        decode_schedule(data)
    attempts: list[Callable[[], object]] = [
        lambda: OperationSchedule(whole.operations, whole.steps),
        lambda: schedule_of((PREFILL, 1, [NORM, NORM]), (PREFILL, 1, [NORM])),
    ]
    for attempt in attempts:
        with pytest.raises(EvidenceError, match="too many operations"):
            attempt()


@pytest.mark.parametrize("bound", ["MAX_OPERATIONS", "MAX_STEPS"])
def test_the_bounds_of_tables_hold(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = schedule_of((PREFILL, 1, [NORM]), (PREFILL, 1, [GEMM]))
    data = encode_schedule(whole)
    monkeypatch.setattr(module, bound, 1)
    with pytest.raises(EvidenceError, match="too many"):
        decode_schedule(data)
    with pytest.raises(EvidenceError, match="too many"):
        OperationSchedule(whole.operations, whole.steps)


def test_a_builder_takes_nothing_after_an_error() -> None:
    builder = ScheduleBuilder()
    entries = pack_indexes([builder.place(NORM)])
    builder.add(PREFILL, 0, 0, 1, entries)
    with pytest.raises(EvidenceError, match="out of order"):
        builder.add(PREFILL, 0, 1, 1, entries)
    attempts: list[Callable[[], object]] = [
        lambda: builder.add(PREFILL, 1, 1, 1, entries),
        lambda: builder.place(GEMM),
        builder.finish,
    ]
    for attempt in attempts:
        with pytest.raises(EvidenceError, match="refused before"):
            attempt()


def test_an_empty_builder_has_no_schedule() -> None:
    with pytest.raises(EvidenceError, match="without steps"):
        ScheduleBuilder().finish()


def sequential(schedule: OperationSchedule, rules: ComputeUnitRules) -> int:
    counter = ComputeUnitCounter(rules)
    for scheduled in flat(schedule):
        counter.record(scheduled.operation)
    return counter.total


def outcome(function: Callable[[], int]) -> int | None:
    try:
        return function()
    except EvidenceError:
        return None


@given(schedules(), st.sampled_from([RULES_V1, RULES_V2, RULES_V3]))
def test_the_price_is_what_a_counter_comes_to(
    schedule: OperationSchedule, rules: ComputeUnitRules
) -> None:
    one_by_one = outcome(lambda: sequential(schedule, rules))
    assert outcome(lambda: price(schedule, rules)) == one_by_one


def test_a_price_that_overflows_is_refused_and_the_last_that_does_not_is_not() -> None:
    # silu costs elements * 2 / 4096: each of these 2^53, and 2^11 of them 2^64.
    big = at(1, Silu(2**64 - 1))
    for times in (2047, 2048):
        one_by_one = outcome(partial(sequential, schedule_of((PREFILL, 1, big * times)), RULES_V1))
        assert (one_by_one is None) is (times == 2048)
    assert outcome(lambda: price(schedule_of((PREFILL, 1, big * 2047)), RULES_V1)) == 2047 << 53
    with pytest.raises(EvidenceError, match="overflows"):
        price(schedule_of((PREFILL, 1, big * 2048)), RULES_V1)


def test_schedules_of_the_run_are_accepted() -> None:
    check_schedule(live(3, 2), DENSE, 3, 2)
    check_schedule(live(3, 1), DENSE, 3, 1)
    check_schedule(sealed(4), DENSE, 3, 2)
    check_schedule(sealed(2, 1, 1), DENSE, 3, 2)
    check_schedule(schedule_of((PREFILL, 1, layer_operations(HYBRID, 1))), HYBRID, 1, 1)
    # An engine leaves out of the last layer what has no output.
    early = [item for item in layer_operations(HYBRID, 2) if item.stage < 40]
    check_schedule(
        schedule_of((SEALING, 2, early), (SEALING, 1, layer_operations(HYBRID, 1))), HYBRID, 3, 1
    )


@pytest.mark.parametrize(
    ("kind", "stage", "message"),
    [
        (Gemm, 7, "gemm at stage 7"),
        (Gemm, 40, "gemm at stage 40"),
        (ExpertRoute, 1, "expert_route at stage 1"),
        (ExpertGemm, 40, "expert_gemm at stage 40"),
        (GatedDeltaNet, 0, "30 gated_delta_net"),
    ],
)
def test_a_step_without_what_a_layer_needs_is_refused(
    kind: type[Operation], stage: int, message: str
) -> None:
    whole = layer_operations(HYBRID, 1)
    lacking = list(whole)
    lacking.remove(next(x for x in whole if x.stage == stage and isinstance(x.operation, kind)))
    for phase in (DECODE, SEALING):
        first = PREFILL if phase is DECODE else SEALING
        schedule = schedule_of((first, 1, whole), (phase, 1, lacking))
        with pytest.raises(EvidenceError, match="lacks") as caught:
            check_schedule(schedule, HYBRID, 1, 2)
        assert message in str(caught.value)
        assert f"{phase.label} step" in str(caught.value)


@pytest.mark.parametrize(
    ("schedule", "counts", "message"),
    [
        (live(3, 2), (3, 3), "positions"),
        (live(3, 2), (2, 2), "positions"),
        (live(3, 2), (2, 3), "prefill steps"),
        (live(2, 3), (3, 2), "prefill steps"),
        (sealed(4), (3, 3), "positions"),
        (sealed(2, 3), (3, 2), "positions"),
        (schedule_of((PREFILL, 2, [NORM])), (2, 1), "more than one token"),
        (live(1, 1, stage=3), (1, 1), "layer that the model does not have"),
        (schedule_of((PREFILL, 1, at(1, Generic(1, 1)))), (1, 1), "generic"),
        (schedule_of((PREFILL, 1, at(1, ExpertRoute(1, 4, 2)))), (1, 1), "experts"),
        (schedule_of((PREFILL, 1, at(1, ExpertGemm(4, 1, 4, 4, 2)))), (1, 1), "experts"),
    ],
)
def test_schedules_of_another_run_are_refused(
    schedule: OperationSchedule, counts: tuple[int, int], message: str
) -> None:
    with pytest.raises(EvidenceError, match=message):
        check_schedule(schedule, DENSE, *counts)


def test_steps_are_those_of_the_policy() -> None:
    narrow = replace(RUNTIME, prompt_class=RowClass(2, 4), decode_class=RowClass(2, 4))
    sequential = replace(RUNTIME, policy="sequential")
    check_steps(sealed(4, 3), narrow)
    check_steps(live(3, 2), sequential)
    for schedule, runtime in ((live(3, 2), narrow), (sealed(4), sequential)):
        with pytest.raises(EvidenceError, match="not those of the policy"):
            check_steps(schedule, runtime)
    for sizes in ((7,), (5, 2), (3, 4), (4, 2, 1), (4, 1, 2), (1,) * 7):
        with pytest.raises(EvidenceError, match="not a chunk"):
            check_steps(sealed(*sizes), narrow)
