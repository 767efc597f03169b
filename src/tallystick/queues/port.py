"""The queue port: what a queue of runs does, whoever keeps it (docs/spec/queue.md).

A job is one declared run. A worker claims it under a lease with an epoch; each write names the
epoch, and a write under any but the current one is refused. So a worker that was given up for dead
can do no harm, however late it comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal, Protocol

from tallystick.contracts.request import InferenceRun

DEFAULT_MAX_ATTEMPTS: Final = 3
MAX_ATTEMPTS: Final = 100
MAX_PRIORITY: Final = 100
MAX_LEASE_SECONDS: Final = 7 * 24 * 3600
MAX_DELAY_SECONDS: Final = 7 * 24 * 3600
MAX_TEXT: Final = 500
MAX_PLACE: Final = 4096
SHORTEST_PREFIX: Final = 8


class JobState(StrEnum):
    """Where a job stands. Only a pending or leased job can still be executed."""

    PENDING = "pending"
    LEASED = "leased"
    DONE = "done"
    FAILED = "failed"  # it shall not be tried again
    DEAD = "dead"  # its attempts are used up
    CANCELLED = "cancelled"


class LeaseEnd(StrEnum):
    """How a lease ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    RELEASED = "released"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Submission:
    """What became of a submitted run: a new job, or the one that it already is."""

    job_id: str
    created: Literal["new", "existing"]
    state: JobState


@dataclass(frozen=True, slots=True)
class JobResult:
    """What a completed job left: the receipt's digest and status, and where its set is.

    ``place`` is kept as a line of at most 4096 characters, control characters as escapes.
    """

    receipt_digest: str
    status: str
    place: str | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """A job in the hands of one worker, until ``seconds`` after its last heartbeat.

    ``lease_epoch`` counts the job's leases from 1. ``attempt`` is at most ``max_attempts``.
    ``run`` is private.
    """

    job_id: str
    lease_epoch: int
    worker_id: str
    seconds: float
    attempt: int
    max_attempts: int
    run: InferenceRun = field(repr=False)


@dataclass(frozen=True, slots=True)
class LeaseName:
    """What tells a lease from all others: enough to complete under it, by whoever knows it."""

    job_id: str
    lease_epoch: int
    worker_id: str


@dataclass(frozen=True, slots=True)
class Job:
    """What anyone may know of a job: nothing of its prompt. Times are wall clock milliseconds."""

    job_id: str
    run_id: str
    model_digest: str
    state: JobState
    priority: int
    attempts: int
    max_attempts: int
    lease_epoch: int
    worker_id: str | None
    submitted_ms: int
    changed_ms: int
    result: JobResult | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class PastLease:
    """One lease of a job: whose, from when to when (None: not ended), and how it ended."""

    lease_epoch: int
    worker_id: str
    claimed_ms: int
    ended_ms: int | None
    ended: LeaseEnd | None
    reason: str | None


class Queue(Protocol):
    """A queue of runs. Every call is one transaction: when it returns, what it did is durable.

    Every call may raise UnavailableError when the queue cannot be used; then it did nothing, or
    (where power or the process failed in the middle) may be repeated. Calls under a lease raise
    LostLeaseError when its epoch is no longer the job's: the worker then drops what it has. Safe to
    use from several threads.
    """

    def submit(
        self, run: InferenceRun, *, priority: int = 0, max_attempts: int = DEFAULT_MAX_ATTEMPTS
    ) -> Submission:
        """Queue ``run``, once, however often and by however many it is submitted.

        Jobs of a higher ``priority`` (-100..100) are claimed first, equal ones in the order of
        submission. ``max_attempts`` (1..100) bounds how often it is begun. Both count for a new job
        only. Raises InputError when another declaration has the same run_id, UsageError for values
        out of range.
        """
        ...

    def claim(
        self, worker_id: str, *, lease_seconds: float, without_models: Sequence[str] = ()
    ) -> Lease | None:
        """Take the first job that waits, or whose lease ran out; None when there is none.

        Jobs of the models with the digests ``without_models`` are left to others.
        A job whose lease ran out at its last attempt becomes a dead letter instead. Raises
        UsageError for a worker_id or a number of seconds out of range.
        """
        ...

    def heartbeat(self, lease: Lease) -> None:
        """Let the lease run for its seconds from now on. Raises LostLeaseError."""
        ...

    def complete(self, lease: Lease | LeaseName, result: JobResult) -> None:
        """Record the result; the job is done for ever. Repeating the same call changes nothing.

        Raises LostLeaseError, or UsageError for a result that is none.
        """
        ...

    def fail(
        self,
        lease: Lease,
        reason: str,
        *,
        retry: Literal["again", "never"],
        delay_seconds: float = 0,
    ) -> JobState:
        """Give the job up for ``reason``: nothing private is in it, 500 characters are kept.

        ``again``: it waits for another attempt, at least ``delay_seconds``, or is dead when there
        is none left. ``never``: it failed. Returns the job's new state. Raises LostLeaseError or
        UsageError.
        """
        ...

    def release(self, lease: Lease, reason: str | None = None) -> None:
        """Hand the job back untouched, as if this attempt had not begun. Raises LostLeaseError.

        ``reason``, if there is one, is kept as :meth:`fail` keeps it.
        """
        ...

    def waits(self, without_models: Sequence[str] = ()) -> bool:
        """Say whether a job is pending, if only for a delay to be over.

        Jobs of the models with the digests ``without_models`` do not count.
        """
        ...

    def cancel(self, name: str) -> Job:
        """Cancel a job that waits or is leased; a worker that has it loses its lease.

        ``name`` is as for :meth:`get`. A cancelled job stays so. Raises InputError when the job has
        ended otherwise.
        """
        ...

    def retry(self, name: str) -> Job:
        """Let a failed or dead job wait again, with all its attempts. Raises InputError."""
        ...

    def get(self, name: str) -> Job:
        """Return a job by its job_id, its run_id, or the first 8 or more hex digits of its job_id.

        Raises InputError when there is no such job, or more than one.
        """
        ...

    def leases(self, job_id: str) -> tuple[PastLease, ...]:
        """Return every lease of a job, the first one first. Raises InputError as get does."""
        ...

    def jobs(self, states: Sequence[JobState] = (), *, limit: int = 100) -> tuple[Job, ...]:
        """Return the newest ``limit`` jobs in any of ``states`` (none named: all), newest first."""
        ...

    def counts(self) -> tuple[tuple[JobState, int], ...]:
        """Return how many jobs are in each state, in the order of JobState."""
        ...
