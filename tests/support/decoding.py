"""Decoding one value alone that the program only reads as a part of others."""

from __future__ import annotations

from tallystick.canonical.codec import decode_strict
from tallystick.compute.operations import MAX_OPERATION, Operation, read_operation
from tallystick.evidence.schedule import MAX_SCHEDULE_BYTES, OperationSchedule, read_schedule


def decode_operation(data: bytes) -> Operation:
    """Return the operation whose encoding is ``data``. Raises EvidenceError for anything else."""
    return decode_strict(data, read_operation, max_bytes=MAX_OPERATION, where="operation")


def decode_schedule(data: bytes) -> OperationSchedule:
    """Return the schedule that ``data`` encodes. Raises EvidenceError for anything else."""
    return decode_strict(data, read_schedule, max_bytes=MAX_SCHEDULE_BYTES, where="schedule")
