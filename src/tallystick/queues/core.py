"""The queue itself, over whatever keeps its records: the adapters differ in nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Literal, Protocol, TypeVar

from tallystick.canonical.hashing import parse_digest
from tallystick.canonical.json import parse_strict
from tallystick.contracts.codec import decode, encode_bytes
from tallystick.contracts.digests import run_digest_of
from tallystick.contracts.request import InferenceRun
from tallystick.errors import EvidenceError, InputError, UsageError
from tallystick.queues import rules
from tallystick.queues.clock import ALWAYS, Clock, Moment
from tallystick.queues.names import Name, parse_name
from tallystick.queues.port import (
    DEFAULT_MAX_ATTEMPTS,
    MAX_ATTEMPTS,
    MAX_DELAY_SECONDS,
    MAX_LEASE_SECONDS,
    MAX_PLACE,
    MAX_PRIORITY,
    MAX_TEXT,
    Job,
    JobResult,
    JobState,
    Lease,
    LeaseEnd,
    LeaseName,
    PastLease,
    Submission,
)
from tallystick.queues.rules import Change, Now, Record

T = TypeVar("T")

# A prompt, a system message and a path of 2^20 characters each, escaped six times as long.
MAX_RUN_BYTES: Final = 24 * 1024 * 1024
_MAX_WORKER_ID: Final = 200
_MAX_STATUS: Final = 40
_DAMAGED: Final = "the stored run is damaged"


class Records(Protocol):
    """What an adapter keeps, inside one transaction: reads see it alone, and all its writes."""

    def find(self, job_id: str) -> Record | None:
        """Return the record of a job."""
        ...

    def search(self, name: Name) -> tuple[Record, ...]:
        """Return the records that ``name`` may mean, two at most."""
        ...

    def first_due(self, now: Moment, without_models: Sequence[str]) -> Record | None:
        """Return, of the pending and leased jobs that are due, the one whose turn it is.

        Jobs of the models ``without_models`` have no turn.
        """
        ...

    def waits(self, without_models: Sequence[str]) -> bool:
        """Say whether a job of any but these models is pending."""
        ...

    def add(self, job: Job, due: Moment, run: bytes) -> None:
        """Add a job behind all others, with its run."""
        ...

    def replace(self, before: Record, after: Record) -> None:
        """Put ``after`` in the place of ``before``."""
        ...

    def run_of(self, record: Record) -> bytes:
        """Return the stored run of a job that has not ended."""
        ...

    def forget_run(self, record: Record) -> None:
        """Remove the stored run of a job."""
        ...

    def begin_lease(self, record: Record) -> None:
        """Write down that the lease of a job began."""
        ...

    def end_lease(self, before: Record, after: Record, ended: LeaseEnd) -> None:
        """Write down how the lease that ``before`` had ended."""
        ...

    def leases(self, record: Record) -> tuple[PastLease, ...]:
        """Return all leases of a job, the first one first."""
        ...

    def newest(self, states: Sequence[JobState], limit: int) -> tuple[Job, ...]:
        """Return jobs in any of ``states``, newest first."""
        ...

    def count(self, state: JobState) -> int:
        """Return how many jobs are in a state."""
        ...


class Transactions(Protocol):
    """How an adapter makes a piece of work one transaction, and a durable one."""

    def write(self, work: Callable[[Records], T]) -> T:
        """Do ``work``, once, alone; what it raises undoes what it did."""
        ...

    def read(self, work: Callable[[Records], T]) -> T:
        """Do ``work``, which writes nothing, on one state of the queue."""
        ...


class JobQueue:
    """The queue port over an adapter's transactions and a clock; see :mod:`queues.port`."""

    def __init__(self, transactions: Transactions, clock: Clock) -> None:
        self._transactions = transactions
        self._clock = clock

    def submit(
        self, run: InferenceRun, *, priority: int = 0, max_attempts: int = DEFAULT_MAX_ATTEMPTS
    ) -> Submission:
        """Queue ``run`` once; see the port."""
        _require_range("priority", priority, -MAX_PRIORITY, MAX_PRIORITY)
        _require_range("number of attempts", max_attempts, 1, MAX_ATTEMPTS)
        data = encode_bytes(run)
        job_id = run_digest_of(run.blind, data)

        def work(records: Records) -> Submission:
            known = records.find(job_id)
            if known is not None:
                return Submission(job_id, "existing", known.job.state)
            if records.search(Name(run_id=run.run_id)):
                raise InputError(
                    "another declaration has this run_id",
                    expected=f"job {job_id}, or a run_id that the queue does not hold",
                    found=f"run_id {run.run_id}",
                    hint="give each declaration a run_id of its own",
                )
            job = rules.new_job(
                job_id,
                run.run_id,
                run.model_digest,
                priority=priority,
                max_attempts=max_attempts,
                now=self._now(),
            )
            records.add(job, ALWAYS, data)
            return Submission(job_id, "new", job.state)

        return self._transactions.write(work)

    def claim(
        self, worker_id: str, *, lease_seconds: float, without_models: Sequence[str] = ()
    ) -> Lease | None:
        """Take the job whose turn it is; see the port."""
        _require_text("worker_id", worker_id, _MAX_WORKER_ID)
        _require_range("number of seconds of a lease", lease_seconds, 1, MAX_LEASE_SECONDS)
        for digest in without_models:
            _require_digest("model", digest)
        while (taken := self._take(worker_id, lease_seconds, without_models)) is not None:
            job, data = taken
            run = _stored_run(job, data)
            if run is not None:
                return _lease(job, worker_id, lease_seconds, run)
            self._lose_damaged(job)
        return None

    def _take(
        self, worker_id: str, seconds: float, without_models: Sequence[str]
    ) -> tuple[Job, bytes] | None:
        def work(records: Records) -> tuple[Job, bytes] | None:
            now = self._now()
            while (record := records.first_due(now.moment, without_models)) is not None:
                change = rules.claim(record, worker_id, seconds, now)
                _apply(records, record, change)
                job = change.record.job
                if job.state is JobState.LEASED:
                    return job, records.run_of(change.record)
            return None

        return self._transactions.write(work)

    def _lose_damaged(self, job: Job) -> None:
        def work(records: Records) -> None:
            record = records.find(job.job_id)
            if record is not None and record.job == job:
                _apply(records, record, rules.damaged(record, _DAMAGED, self._now()))

        self._transactions.write(work)

    def heartbeat(self, lease: Lease) -> None:
        """Let the lease run on; see the port."""
        self._under(lease, lambda record, now: rules.renew(record, lease, now))

    def complete(self, lease: Lease | LeaseName, result: JobResult) -> None:
        """Record the result; see the port."""
        noted = _noted_result(result)
        self._under(lease, lambda record, now: rules.complete(record, lease, noted, now))

    def fail(
        self,
        lease: Lease,
        reason: str,
        *,
        retry: Literal["again", "never"],
        delay_seconds: float = 0,
    ) -> JobState:
        """Give the job up; see the port."""
        noted = noted_text(reason, MAX_TEXT)
        if retry not in ("again", "never"):
            raise UsageError("a job is tried again or never", expected="again or never")
        _require_range("delay in seconds", delay_seconds, 0, MAX_DELAY_SECONDS)
        after = self._under(
            lease, lambda record, now: rules.fail(record, lease, noted, retry, delay_seconds, now)
        )
        return after.job.state

    def release(self, lease: Lease, reason: str | None = None) -> None:
        """Hand the job back; see the port."""
        noted = None if reason is None else noted_text(reason, MAX_TEXT)
        self._under(lease, lambda record, now: rules.release(record, lease, noted, now))

    def waits(self, without_models: Sequence[str] = ()) -> bool:
        """Say whether a job is pending; see the port."""
        for digest in without_models:
            _require_digest("model", digest)
        return self._transactions.read(lambda records: records.waits(without_models))

    def cancel(self, name: str) -> Job:
        """Cancel a job; see the port."""
        return self._named(name, rules.cancel)

    def retry(self, name: str) -> Job:
        """Let a failed or dead job wait again; see the port."""
        return self._named(name, rules.retry)

    def get(self, name: str) -> Job:
        """Return a job; see the port."""
        wanted = parse_name(name)
        return self._transactions.read(lambda records: _one(records, wanted).job)

    def leases(self, job_id: str) -> tuple[PastLease, ...]:
        """Return the leases of a job; see the port."""
        wanted = parse_name(job_id)
        return self._transactions.read(lambda records: records.leases(_one(records, wanted)))

    def jobs(self, states: Sequence[JobState] = (), *, limit: int = 100) -> tuple[Job, ...]:
        """Return the newest jobs; see the port."""
        _require_range("limit", limit, 1, 1_000_000)
        wanted = tuple(states) or tuple(JobState)
        return self._transactions.read(lambda records: records.newest(wanted, limit))

    def counts(self) -> tuple[tuple[JobState, int], ...]:
        """Return how many jobs are in each state; see the port."""
        return self._transactions.read(
            lambda records: tuple((state, records.count(state)) for state in JobState)
        )

    def _under(
        self, lease: Lease | LeaseName, rule: Callable[[Record, Now], Change | None]
    ) -> Record:
        """Apply what a worker asks for under its lease; return the record afterwards."""

        def work(records: Records) -> Record:
            record = records.find(lease.job_id)
            if record is None:
                raise rules.lost(lease.job_id, lease.lease_epoch, None)
            return _apply(records, record, rule(record, self._now()))

        return self._transactions.write(work)

    def _named(self, name: str, rule: Callable[[Record, Now], Change | None]) -> Job:
        wanted = parse_name(name)

        def work(records: Records) -> Job:
            record = _one(records, wanted)
            return _apply(records, record, rule(record, self._now())).job

        return self._transactions.write(work)

    def _now(self) -> Now:
        # Read inside the transaction: readings of one queue then follow one another.
        return Now(self._clock.now(), self._clock.wall_ms())


def _apply(records: Records, before: Record, change: Change | None) -> Record:
    """Write a change down: the record, the leases that it ends and begins, the run it forgets."""
    if change is None:
        return before
    after = change.record
    records.replace(before, after)
    if change.ended is not None:
        records.end_lease(before, after, change.ended)
    if after.job.lease_epoch != before.job.lease_epoch:
        records.begin_lease(after)
    if after.job.state in (JobState.DONE, JobState.CANCELLED):
        records.forget_run(after)  # it is private, and nobody needs it any more
    return after


def _one(records: Records, name: Name) -> Record:
    found = records.search(name)
    if len(found) == 1:
        return found[0]
    raise InputError(
        "the queue has no such job" if not found else "more than one job is meant",
        expected="a job_id, a run_id, or enough of the first digits of a job_id",
        found=name.shown(),
        hint="tallystick runs ls shows the jobs",
    )


def _stored_run(job: Job, data: bytes) -> InferenceRun | None:
    """Return the run whose digest names the job; None when what was stored is another."""
    try:
        run = decode(InferenceRun, parse_strict(data, max_bytes=MAX_RUN_BYTES))
    except EvidenceError:
        return None
    # Under this digest there are no other bytes than those that were submitted.
    return run if run_digest_of(run.blind, data) == job.job_id else None


def _lease(job: Job, worker_id: str, seconds: float, run: InferenceRun) -> Lease:
    return Lease(
        job_id=job.job_id,
        lease_epoch=job.lease_epoch,
        worker_id=worker_id,
        seconds=seconds,
        attempt=job.attempts,
        max_attempts=job.max_attempts,
        run=run,
    )


def _require_range(what: str, value: float, low: int, high: int) -> None:
    if not low <= value <= high:
        raise UsageError(
            f"the {what} is out of range", expected=f"{low} to {high}", found=f"{value:.20g}"
        )


def _require_text(what: str, text: str, limit: int) -> None:
    if not 0 < len(text) <= limit or not text.isprintable():
        raise UsageError(
            f"the {what} cannot be written down",
            expected=f"1 to {limit} printable characters",
            found=f"{len(text)} characters",
        )


def _require_digest(what: str, text: str) -> None:
    try:
        parse_digest(text)
    except EvidenceError as error:
        raise UsageError(
            f"what shall name a {what} is no digest", expected=error.expected, found=error.found
        ) from None


def _noted_result(result: JobResult) -> JobResult:
    _require_digest("receipt", result.receipt_digest)
    _require_text("status of the result", result.status, _MAX_STATUS)
    place = None if result.place is None else noted_text(result.place, MAX_PLACE)
    return replace(result, place=place)


def noted_text(text: str, limit: int) -> str:
    """Return ``text`` as one line of at most ``limit`` characters, whatever is in it.

    Nothing that ends a job may fail over the wording of a reason or the name of a directory.
    """
    plain = "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text[:limit]
    )
    return plain[:limit] or "-"
