"""The records of the embedded queue: rows to values and back."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from tallystick.canonical.hashing import format_digest, parse_digest
from tallystick.queues.clock import Moment
from tallystick.queues.names import Name
from tallystick.queues.port import Job, JobResult, JobState, LeaseEnd, PastLease
from tallystick.queues.rules import Record, lost
from tallystick.queues.sqlite.schema import QUERIES

T = TypeVar("T")
Value: TypeAlias = str | int | bytes | None


class SqliteRecords:
    """Rows within one transaction of ``connection``; see :class:`tallystick.queues.core.Records`.

    Every method may raise sqlite3.Error.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def find(self, job_id: str) -> Record | None:
        """Return the record of a job."""
        row = self._row("find", {"job_id": parse_digest(job_id)})
        return None if row is None else _record(row)

    def search(self, name: Name) -> tuple[Record, ...]:
        """Return the records that ``name`` may mean, two at most."""
        if name.run_id is not None:
            rows = self._run("find_run", {"run_id": name.run_id})
        else:
            rows = self._run("find_prefix", {"first": name.first, "last": name.last})
        return tuple(map(_record, rows.fetchall()))

    def first_due(self, now: Moment, without_models: Sequence[str]) -> Record | None:
        """Return the job whose turn it is."""
        values: dict[str, Value] = {"boot": now.boot, "now": now.ms}
        row = self._row("first_due", {**values, "without": _hexes(without_models)})
        return None if row is None else _record(row)

    def waits(self, without_models: Sequence[str]) -> bool:
        """Say whether a job of any but these models is pending."""
        return self._row("first_waiting", {"without": _hexes(without_models)}) is not None

    def add(self, job: Job, due: Moment, run: bytes) -> None:
        """Add a job behind all others, with its run."""
        added = self._run("add", _values(job, due))
        self._run("add_run", {"seq": added.lastrowid, "run": run})

    def replace(self, before: Record, after: Record) -> None:
        """Put ``after`` in the place of ``before``."""
        held: dict[str, Value] = {
            "seq": before.seq,
            "held_state": before.job.state.value,
            "held_epoch": before.job.lease_epoch,
        }
        changed = self._run("replace", {**_values(after.job, after.due), **held})
        if changed.rowcount != 1:  # it cannot be, in one transaction; the fence stands anyway
            raise lost(before.job.job_id, before.job.lease_epoch, None)

    def run_of(self, record: Record) -> bytes:
        """Return the stored run of a job; no bytes when there is none."""
        row = self._row("run_of", {"seq": record.seq})
        return b"" if row is None else bytes(row["run"])

    def forget_run(self, record: Record) -> None:
        """Remove the stored run of a job."""
        self._run("forget_run", {"seq": record.seq})

    def begin_lease(self, record: Record) -> None:
        """Write down that the lease of a job began."""
        job = record.job
        self._run(
            "begin_lease",
            {
                "seq": record.seq,
                "lease_epoch": job.lease_epoch,
                "worker_id": job.worker_id,
                "claimed_ms": job.changed_ms,
            },
        )

    def end_lease(self, before: Record, after: Record, ended: LeaseEnd) -> None:
        """Write down how the lease that ``before`` had ended."""
        self._run(
            "end_lease",
            {
                "seq": before.seq,
                "lease_epoch": before.job.lease_epoch,
                "ended_ms": after.job.changed_ms,
                "ended": ended.value,
                "reason": after.job.reason if ended is LeaseEnd.FAILED else None,
            },
        )

    def leases(self, record: Record) -> tuple[PastLease, ...]:
        """Return all leases of a job, the first one first."""
        rows = self._run("leases", {"seq": record.seq}).fetchall()
        return tuple(map(_past_lease, rows))

    def newest(self, states: Sequence[JobState], limit: int) -> tuple[Job, ...]:
        """Return jobs in any of ``states``, newest first."""
        named = json.dumps([state.value for state in states])
        rows = self._run("newest", {"states": named, "limit": limit}).fetchall()
        return tuple(_job(row) for row in rows)

    def count(self, state: JobState) -> int:
        """Return how many jobs are in a state."""
        row = self._row("count", {"state": state.value})
        assert row is not None
        return int(row[0])

    def _run(self, query: str, values: Mapping[str, Value]) -> sqlite3.Cursor:
        return self._connection.execute(QUERIES[query], values)

    def _row(self, query: str, values: Mapping[str, Value]) -> sqlite3.Row | None:
        row: sqlite3.Row | None = self._run(query, values).fetchone()
        return row


def _sound(read: Callable[[sqlite3.Row], T]) -> Callable[[sqlite3.Row], T]:
    """Let a row that the schema cannot have written count as damage of the file."""

    def sound(row: sqlite3.Row) -> T:
        try:
            return read(row)
        except (TypeError, ValueError) as error:
            raise sqlite3.DatabaseError(type(error).__name__) from None

    return sound


def _hexes(digests: Sequence[str]) -> str:
    """Return digests as SQLite's hex() writes them, in a JSON list."""
    return json.dumps([parse_digest(digest).hex().upper() for digest in digests])


@_sound
def _record(row: sqlite3.Row) -> Record:
    due = None if row["due_ms"] is None else Moment(row["due_boot"], row["due_ms"])
    return Record(row["seq"], _job(row), due)


@_sound
def _job(row: sqlite3.Row) -> Job:
    result = None
    if row["receipt_digest"] is not None:
        result = JobResult(format_digest(row["receipt_digest"]), row["status"], row["place"])
    return Job(
        job_id=format_digest(row["job_id"]),
        run_id=row["run_id"],
        model_digest=format_digest(row["model_digest"]),
        state=JobState(row["state"]),
        priority=row["priority"],
        attempts=row["attempts"],
        max_attempts=row["max_attempts"],
        lease_epoch=row["lease_epoch"],
        worker_id=row["worker_id"],
        submitted_ms=row["submitted_ms"],
        changed_ms=row["changed_ms"],
        result=result,
        reason=row["reason"],
    )


def _values(job: Job, due: Moment | None) -> dict[str, Value]:
    result = job.result
    return {
        "job_id": parse_digest(job.job_id),
        "run_id": job.run_id,
        "model_digest": parse_digest(job.model_digest),
        "state": job.state.value,
        "priority": job.priority,
        "max_attempts": job.max_attempts,
        "attempts": job.attempts,
        "lease_epoch": job.lease_epoch,
        "worker_id": job.worker_id,
        "due_boot": None if due is None else due.boot,
        "due_ms": None if due is None else due.ms,
        "submitted_ms": job.submitted_ms,
        "changed_ms": job.changed_ms,
        "receipt_digest": None if result is None else parse_digest(result.receipt_digest),
        "status": None if result is None else result.status,
        "place": None if result is None else result.place,
        "reason": job.reason,
    }


@_sound
def _past_lease(row: sqlite3.Row) -> PastLease:
    return PastLease(
        lease_epoch=row["lease_epoch"],
        worker_id=row["worker_id"],
        claimed_ms=row["claimed_ms"],
        ended_ms=row["ended_ms"],
        ended=None if row["ended"] is None else LeaseEnd(row["ended"]),
        reason=row["reason"],
    )
