"""What was observed of a run's graphs: the schedule, and with sketches the trace of its products.

This is what the engine's child sends to the supervisor. The trace is private
(docs/spec/evidence.md#observed-evidence).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tallystick.canonical.codec import BinaryReader, BinaryWriter, decode_strict
from tallystick.errors import EvidenceError
from tallystick.evidence.gemm_trace import (
    MAX_TRACE_BYTES,
    GemmTrace,
    check_trace,
    read_trace,
    write_trace,
)
from tallystick.evidence.schedule import (
    MAX_SCHEDULE_BYTES,
    OperationSchedule,
    read_schedule,
    write_schedule,
)

MAX_OBSERVED_BYTES: Final = MAX_SCHEDULE_BYTES + 1 + MAX_TRACE_BYTES
_WHERE: Final = "observed evidence"


@dataclass(frozen=True, slots=True)
class ObservedEvidence:
    """A schedule, and the trace of its matrix products when they were sketched.

    Raises EvidenceError when the trace is not one of this schedule.
    """

    schedule: OperationSchedule
    trace: GemmTrace | None = field(repr=False)

    def __post_init__(self) -> None:
        """Check the trace against the schedule."""
        if self.trace is not None:
            check_trace(self.trace, self.schedule)

    @property
    def trace_events(self) -> int:
        """Number of sketched products, 0 without a trace."""
        return 0 if self.trace is None else self.trace.events


def write_observed(writer: BinaryWriter, observed: ObservedEvidence) -> None:
    """Append the encoding of ``observed``."""
    write_schedule(writer, observed.schedule)
    writer.u8(observed.trace is not None)
    if observed.trace is not None:
        write_trace(writer, observed.trace)


def read_observed(reader: BinaryReader) -> ObservedEvidence:
    """Read observed evidence. Raises EvidenceError for what none encodes to."""
    schedule = read_schedule(reader)
    flag = reader.u8()
    if flag > 1:
        raise EvidenceError(f"{_WHERE}: not a flag", expected="0 or 1", found=str(flag))
    return ObservedEvidence(schedule, read_trace(reader) if flag else None)


def encode_observed(observed: ObservedEvidence) -> bytes:
    """Return the one encoding of ``observed``."""
    writer = BinaryWriter()
    write_observed(writer, observed)
    return writer.finish()


def decode_observed(data: bytes) -> ObservedEvidence:
    """Return the evidence that ``data`` encodes. Raises EvidenceError for anything else."""
    return decode_strict(data, read_observed, max_bytes=MAX_OBSERVED_BYTES, where=_WHERE)
