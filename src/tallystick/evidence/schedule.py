"""The schedule of an observed run: which operations it evaluated, step by step.

A table holds each operation once, in the order of first use; a step is a list of places in that
table (docs/spec/evidence.md#schedule). It tells shapes and counts and nothing of the text.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from tallystick.canonical.codec import BinaryReader, BinaryWriter
from tallystick.canonical.hashing import domain_hash, u32le
from tallystick.compute.operations import Gemm, read_operation, write_operation
from tallystick.compute.schedule import ScheduledOperation
from tallystick.errors import EvidenceError
from tallystick.evidence.observer.records import MAX_EVENTS
from tallystick.evidence.observer.states import AwaitingPrefill, State, advance

#: Distinct operations, and steps: far more than a run of ``MAX_EVENTS`` operations has of either.
MAX_OPERATIONS: Final = 65_536
MAX_STEPS: Final = 65_536
MAX_SCHEDULE_BYTES: Final = 8 * 1024 * 1024
_INDEX_BYTES: Final = 4
_OPERATION_BYTES: Final = 4 + 1 + 8  # the shortest: stage, kind, one u64 or two u32
_STEP: Final = struct.Struct("<BIII")
_STEP_BYTES: Final = _STEP.size + 4 + _INDEX_BYTES
_U32_MAX: Final = 2**32 - 1
_WHERE: Final = "operation schedule"


class SchedulePhase(IntEnum):
    """What a step evaluates: a token of the prompt, a generated one, or a chunk of both."""

    PREFILL = 0
    DECODE = 1
    SEALING = 2

    @property
    def label(self) -> str:
        """The phase's name in texts: ``prefill``, ``decode``, ``sealing``."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class ScheduleStep:
    """One evaluation of the graph, over ``tokens`` positions from ``first_position`` on.

    ``number`` counts the steps of the phase from 0. ``entries`` are places in the schedule's table,
    u32 little-endian, in the order of evaluation.
    """

    phase: SchedulePhase
    number: int
    first_position: int
    tokens: int
    entries: bytes = field(repr=False)

    @property
    def events(self) -> int:
        """Number of operations."""
        return len(self.entries) // _INDEX_BYTES

    def indexes(self) -> tuple[int, ...]:
        """Return the entries as places in the schedule's table."""
        return unpack_indexes(self.entries)


@dataclass(frozen=True, slots=True)
class OperationSchedule:
    """All steps of a run. The same run gives one schedule, and a schedule has one encoding.

    Either the steps are those of a generation (prefill 0, 1, ..., then decode 0, 1, ...), or all
    are of the sealing phase; their positions follow each other without a gap. The table holds no
    operation twice and none that is not used, in the order of first use.

    Raises EvidenceError for anything else, and beyond ``MAX_EVENTS`` operations.
    """

    operations: tuple[ScheduledOperation, ...] = field(repr=False)
    steps: tuple[ScheduleStep, ...] = field(repr=False)

    def __post_init__(self) -> None:
        """Check everything that a schedule by itself can be checked for."""
        if not self.steps:
            raise EvidenceError(
                "an operation schedule without steps", expected="1 step or more", found="0"
            )
        _require_bound("distinct operations", MAX_OPERATIONS, len(self.operations))
        _require_bound("steps", MAX_STEPS, len(self.steps))
        _require_bound("operations", MAX_EVENTS, self.events)
        order = _Order()
        for step in self.steps:
            order.take(step)
        _check_table(self)

    @property
    def events(self) -> int:
        """Number of operations of all steps."""
        return sum(len(step.entries) for step in self.steps) // _INDEX_BYTES

    @property
    def gemms(self) -> int:
        """Number of matrix products of all steps."""
        return sum(
            times
            for scheduled, times in zip(self.operations, self.uses(), strict=True)
            if isinstance(scheduled.operation, Gemm)
        )

    @property
    def tokens(self) -> int:
        """Number of positions that were evaluated."""
        return sum(step.tokens for step in self.steps)

    @property
    def sealing(self) -> bool:
        """Whether the steps are those of a sealing pass."""
        return self.steps[0].phase is SchedulePhase.SEALING

    def uses(self) -> tuple[int, ...]:
        """Return how often each operation of the table occurs."""
        total = [0] * len(self.operations)
        # Most steps have the same entries: each list is counted once.
        for entries, repeats in Counter(step.entries for step in self.steps).items():
            for index, times in Counter(unpack_indexes(entries)).items():
                total[index] += times * repeats
        return tuple(total)

    def gemm_events(self) -> Iterator[int]:
        """Yield the places of all matrix products among the operations of the whole schedule."""
        gemms = {
            index
            for index, scheduled in enumerate(self.operations)
            if isinstance(scheduled.operation, Gemm)
        }
        offsets: dict[bytes, tuple[int, ...]] = {}
        first = 0
        for step in self.steps:
            places = offsets.get(step.entries)
            if places is None:
                found = enumerate(step.indexes())
                places = tuple(place for place, index in found if index in gemms)
                offsets[step.entries] = places
            yield from [first + place for place in places]
            first += step.events

    def commitment(self, ruleset_id: bytes) -> bytes:
        """Return the 32-byte commitment to this schedule under a ruleset."""
        return domain_hash("palw.operation-schedule", 1, [ruleset_id, encode_schedule(self)])


class ScheduleBuilder:
    """Makes a schedule while steps arrive. After one error every method raises EvidenceError."""

    __slots__ = ("_events", "_operations", "_order", "_places", "_poisoned", "_steps")

    def __init__(self) -> None:
        self._places: dict[bytes, int] = {}
        self._operations: list[ScheduledOperation] = []
        self._steps: list[ScheduleStep] = []
        self._order = _Order()
        self._events = 0
        self._poisoned = False

    @property
    def events(self) -> int:
        """Number of operations so far."""
        return self._events

    def place(self, scheduled: ScheduledOperation) -> int:
        """Return the place of an operation in the table; a new one is put at its end.

        Ask in the order of evaluation, and only for operations of the step that is added next.
        """
        self._require_sound()
        encoding = _encoded(scheduled)
        place = self._places.setdefault(encoding, len(self._operations))
        if place == len(self._operations):
            self._operations.append(scheduled)
        return place

    def add(
        self,
        phase: SchedulePhase,
        number: int,
        first_position: int,
        tokens: int,
        entries: bytes,
    ) -> None:
        """Add a step; ``entries`` are what :meth:`place` returned, u32 little-endian."""
        self._require_sound()
        try:
            step = ScheduleStep(phase, number, first_position, tokens, entries)
            _require_bound("operations", MAX_EVENTS, self._events + step.events)
            self._order.take(step)
            self._events += step.events
            self._steps.append(step)
        except BaseException:
            self._poison()
            raise

    def finish(self) -> OperationSchedule:
        """Return the schedule of all steps."""
        self._require_sound()
        try:
            return OperationSchedule(tuple(self._operations), tuple(self._steps))
        except BaseException:
            self._poison()
            raise

    def _require_sound(self) -> None:
        if self._poisoned:
            raise EvidenceError("the schedule was refused before: nothing more is taken into it")

    def _poison(self) -> None:
        self._poisoned = True
        self._places.clear()
        self._operations.clear()
        self._steps.clear()


class _Order:
    """The rules between the steps: states, positions, order of first use."""

    __slots__ = ("_known", "_position", "_sealing", "_state", "seen")

    def __init__(self) -> None:
        self.seen = 0  # operations of the table that were used so far
        self._known: set[bytes] = set()
        self._position = 0
        self._sealing = 0
        self._state: State = AwaitingPrefill()

    def take(self, step: ScheduleStep) -> None:
        self._advance(step)
        if step.first_position != self._position or step.tokens < 1:
            raise EvidenceError(
                "a step's positions do not follow those of the step before it",
                expected=f"position {self._position} and at least one token",
                found=f"position {step.first_position} and {step.tokens} tokens",
            )
        self._position += step.tokens
        if self._position > _U32_MAX:
            raise EvidenceError("a schedule's positions do not fit 32 bits")
        if not step.entries or len(step.entries) % _INDEX_BYTES:
            raise EvidenceError(
                "a step does not consist of one or more whole entries",
                expected=f"a multiple of {_INDEX_BYTES} bytes",
                found=f"{len(step.entries)} bytes",
            )
        if step.entries not in self._known:
            self._use(step.entries)

    def _advance(self, step: ScheduleStep) -> None:
        if step.phase is SchedulePhase.SEALING and isinstance(self._state, AwaitingPrefill):
            if step.number != self._sealing:
                raise _out_of_order(f"sealing step {self._sealing}", step)
            self._sealing += 1
            return
        if self._sealing:
            raise _out_of_order(f"sealing step {self._sealing}", step)
        if step.phase is SchedulePhase.SEALING:
            raise _out_of_order("no sealing step in a generation", step)
        state = advance(self._state, step.phase.label, step.number)
        if state == self._state:  # a transcript repeats it with each event, a schedule never
            raise _out_of_order("another step than the one before", step)
        self._state = state

    def _use(self, entries: bytes) -> None:
        self._known.add(entries)
        first_uses = dict.fromkeys(unpack_indexes(entries))
        new = [index for index in first_uses if index >= self.seen]
        if new != [*range(self.seen, self.seen + len(new))]:
            raise EvidenceError("the table of a schedule is not in the order of first use")
        self.seen += len(new)


def unpack_indexes(entries: bytes) -> tuple[int, ...]:
    """Return u32 little-endian ``entries`` as integers."""
    return struct.unpack(f"<{len(entries) // _INDEX_BYTES}I", entries)


def pack_indexes(indexes: list[int]) -> bytes:
    """Return places of a schedule's table as the entries of a step."""
    return struct.pack(f"<{len(indexes)}I", *indexes)


def encode_schedule(schedule: OperationSchedule) -> bytes:
    """Return the one encoding of ``schedule``."""
    writer = BinaryWriter()
    write_schedule(writer, schedule)
    return writer.finish()


def write_schedule(writer: BinaryWriter, schedule: OperationSchedule) -> None:
    """Append the encoding of ``schedule``."""
    writer.count(len(schedule.operations), limit=MAX_OPERATIONS)
    for scheduled in schedule.operations:
        writer.u32(scheduled.stage)
        write_operation(writer, scheduled.operation)
    writer.count(len(schedule.steps), limit=MAX_STEPS)
    for step in schedule.steps:
        head = (step.phase, step.number, step.first_position, step.tokens)
        writer.integers(_STEP, head)
        writer.count(step.events, limit=MAX_EVENTS)
        writer.fixed(step.entries, len(step.entries))


def read_schedule(reader: BinaryReader) -> OperationSchedule:
    """Read one schedule. Raises EvidenceError for what no schedule encodes to."""
    count = reader.count(limit=MAX_OPERATIONS, item_bytes=_OPERATION_BYTES)
    operations = tuple(
        ScheduledOperation(reader.u32(), read_operation(reader)) for _ in range(count)
    )
    steps = []
    left = MAX_EVENTS
    shared: dict[bytes, bytes] = {}  # equal lists of entries are kept, and hashed, once
    for _ in range(reader.count(limit=MAX_STEPS, item_bytes=_STEP_BYTES)):
        tag, number, first_position, tokens = reader.integers(_STEP)
        if tag not in _PHASES:
            raise reader.refusal("not a phase", expected="0, 1 or 2", found=str(tag))
        events = reader.count(limit=left, item_bytes=_INDEX_BYTES)
        left -= events
        entries = reader.fixed(events * _INDEX_BYTES)
        entries = shared.setdefault(entries, entries)
        steps.append(ScheduleStep(_PHASES[tag], number, first_position, tokens, entries))
    return OperationSchedule(operations, tuple(steps))


_PHASES: Final = {int(phase): phase for phase in SchedulePhase}


def _check_table(schedule: OperationSchedule) -> None:
    used = max(max(unpack_indexes(entries)) for entries in {s.entries for s in schedule.steps}) + 1
    if used != len(schedule.operations):
        raise EvidenceError(
            "a schedule's entries and its table do not fit together",
            expected=f"each of {len(schedule.operations)} operations used, and no other",
            found=f"{used} operations used",
        )
    # Compared as bytes: their hashes are keyed, those of integers could be made to collide.
    if len({_encoded(scheduled) for scheduled in schedule.operations}) != used:
        raise EvidenceError("a schedule's table holds an operation twice")


def _encoded(scheduled: ScheduledOperation) -> bytes:
    writer = BinaryWriter()
    write_operation(writer, scheduled.operation)
    return u32le(scheduled.stage) + writer.finish()


def _require_bound(what: str, bound: int, found: int) -> None:
    if found > bound:
        raise EvidenceError(
            f"a schedule has too many {what}", expected=f"at most {bound}", found=str(found)
        )


def _out_of_order(expected: str, step: ScheduleStep) -> EvidenceError:
    return EvidenceError(
        "a schedule's steps are out of order",
        expected=expected,
        found=f"{step.phase.label} step {step.number}",
    )
