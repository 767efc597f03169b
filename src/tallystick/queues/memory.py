"""A queue in memory, for tests: it keeps every rule of the queue, and nothing after the process.

queue = memory_queue()
queue.submit(run)
lease = queue.claim("worker", lease_seconds=60)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tallystick.queues.clock import Clock, Moment, SystemClock
from tallystick.queues.core import JobQueue, Records
from tallystick.queues.names import Name
from tallystick.queues.port import Job, JobState, LeaseEnd, PastLease, Queue
from tallystick.queues.rules import Record

T = TypeVar("T")


def memory_queue(clock: Clock | None = None) -> Queue:
    """Return an empty queue in memory; ``clock`` is the machine's unless a test has its own."""
    return JobQueue(_Memory(), clock or SystemClock())


@dataclass(slots=True)
class _Held:
    """The records of one queue, in the order of submission."""

    records: dict[str, Record] = field(default_factory=dict)
    runs: dict[str, bytes] = field(default_factory=dict)
    past: dict[str, tuple[PastLease, ...]] = field(default_factory=dict)

    def find(self, job_id: str) -> Record | None:
        return self.records.get(job_id)

    def search(self, name: Name) -> tuple[Record, ...]:
        prefix = f"sha256:{name.digits}"
        found = (
            record
            for record in self.records.values()
            if (
                record.job.job_id.startswith(prefix)
                if name.run_id is None
                else record.job.run_id == name.run_id
            )
        )
        return tuple(found)[:2]

    def first_due(self, now: Moment, without_models: Sequence[str]) -> Record | None:
        due = (
            record
            for record in self.records.values()
            if record.due is not None and record.due.reached(now)
            if record.job.model_digest not in without_models
        )
        return min(due, key=lambda record: (-record.job.priority, record.seq), default=None)

    def waits(self, without_models: Sequence[str]) -> bool:
        return any(
            record.job.state is JobState.PENDING and record.job.model_digest not in without_models
            for record in self.records.values()
        )

    def add(self, job: Job, due: Moment, run: bytes) -> None:
        self.records[job.job_id] = Record(len(self.records) + 1, job, due)
        self.runs[job.job_id] = run

    def replace(self, before: Record, after: Record) -> None:
        assert self.records[before.job.job_id] == before
        self.records[before.job.job_id] = after

    def run_of(self, record: Record) -> bytes:
        return self.runs[record.job.job_id]

    def forget_run(self, record: Record) -> None:
        self.runs.pop(record.job.job_id, None)

    def begin_lease(self, record: Record) -> None:
        job = record.job
        assert job.worker_id is not None
        begun = PastLease(job.lease_epoch, job.worker_id, job.changed_ms, None, None, None)
        self.past[job.job_id] = (*self.past.get(job.job_id, ()), begun)

    def end_lease(self, before: Record, after: Record, ended: LeaseEnd) -> None:
        *earlier, last = self.past[before.job.job_id]
        assert last.lease_epoch == before.job.lease_epoch
        reason = after.job.reason if ended is LeaseEnd.FAILED else None
        last = replace(last, ended_ms=after.job.changed_ms, ended=ended, reason=reason)
        self.past[before.job.job_id] = (*earlier, last)

    def leases(self, record: Record) -> tuple[PastLease, ...]:
        return self.past.get(record.job.job_id, ())

    def newest(self, states: Sequence[JobState], limit: int) -> tuple[Job, ...]:
        jobs = (record.job for record in reversed(self.records.values()))
        return tuple(job for job in jobs if job.state in states)[:limit]

    def count(self, state: JobState) -> int:
        return sum(record.job.state is state for record in self.records.values())


class _Memory:
    def __init__(self) -> None:
        self._held = _Held()
        self._lock = threading.Lock()

    def write(self, work: Callable[[Records], T]) -> T:
        with self._lock:
            # The values are immutable, so copies of the three tables are enough to fall back on.
            held = self._held
            draft = _Held({**held.records}, {**held.runs}, {**held.past})
            result = work(draft)
            self._held = draft
            return result

    def read(self, work: Callable[[Records], T]) -> T:
        with self._lock:
            return work(self._held)
