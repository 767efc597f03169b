"""How a job moves from state to state. Pure: a record and a moment in, a change out.

Every adapter applies these rules, inside one transaction of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tallystick.errors import InputError, LostLeaseError
from tallystick.queues.clock import ALWAYS, Moment
from tallystick.queues.port import Job, JobResult, JobState, Lease, LeaseEnd, LeaseName

OPEN = (JobState.PENDING, JobState.LEASED)
_EXPIRED = "the lease ran out"


@dataclass(frozen=True, slots=True)
class Record:
    """A job as an adapter keeps it.

    ``due`` is when it may be claimed: for a leased job the end of its lease; None when it ended.
    """

    seq: int
    job: Job
    due: Moment | None


@dataclass(frozen=True, slots=True)
class Change:
    """A record's next version; ``ended`` says how the lease ended, if one did."""

    record: Record
    ended: LeaseEnd | None = None


@dataclass(frozen=True, slots=True)
class Now:
    """The present by both clocks: only ``moment`` decides anything."""

    moment: Moment
    wall_ms: int


def new_job(
    job_id: str, run_id: str, model_digest: str, *, priority: int, max_attempts: int, now: Now
) -> Job:
    """Return the job of a submitted run."""
    return Job(
        job_id=job_id,
        run_id=run_id,
        model_digest=model_digest,
        state=JobState.PENDING,
        priority=priority,
        attempts=0,
        max_attempts=max_attempts,
        lease_epoch=0,
        worker_id=None,
        submitted_ms=now.wall_ms,
        changed_ms=now.wall_ms,
        result=None,
        reason=None,
    )


def claim(record: Record, worker_id: str, seconds: float, now: Now) -> Change:
    """Lease a job that is due to a worker, or bury it when its attempts are used up."""
    job = record.job
    ended = LeaseEnd.EXPIRED if job.state is JobState.LEASED else None
    if job.attempts >= job.max_attempts:
        return _ended(record, JobState.DEAD, ended, now, reason=_EXPIRED)
    leased = replace(
        job,
        state=JobState.LEASED,
        attempts=job.attempts + 1,
        lease_epoch=job.lease_epoch + 1,
        worker_id=worker_id,
        changed_ms=now.wall_ms,
        reason=_EXPIRED if ended else job.reason,
    )
    return Change(Record(record.seq, leased, now.moment.after(seconds)), ended)


def renew(record: Record, lease: Lease, now: Now) -> Change:
    """Let a lease run for its seconds from now on. Raises LostLeaseError."""
    _require_held(record.job, lease)
    return Change(replace(record, due=now.moment.after(lease.seconds)))


def complete(
    record: Record, lease: Lease | LeaseName, result: JobResult, now: Now
) -> Change | None:
    """Record a result; None when this very lease has recorded it. Raises LostLeaseError."""
    job = record.job
    if (job.state, job.lease_epoch, job.result) == (JobState.DONE, lease.lease_epoch, result):
        return None
    _require_held(job, lease)
    return _ended(record, JobState.DONE, LeaseEnd.COMPLETED, now, result=result)


def fail(
    record: Record,
    lease: Lease,
    reason: str,
    retry: Literal["again", "never"],
    delay_seconds: float,
    now: Now,
) -> Change:
    """Give a job up, for now or for good. Raises LostLeaseError."""
    job = record.job
    _require_held(job, lease)
    if retry == "never":
        return _ended(record, JobState.FAILED, LeaseEnd.FAILED, now, reason=reason)
    if job.attempts >= job.max_attempts:
        return _ended(record, JobState.DEAD, LeaseEnd.FAILED, now, reason=reason)
    due = now.moment.after(delay_seconds) if delay_seconds else ALWAYS
    waiting = _waiting(job, now, attempts=job.attempts, reason=reason)
    return Change(Record(record.seq, waiting, due), LeaseEnd.FAILED)


def release(record: Record, lease: Lease, reason: str | None, now: Now) -> Change:
    """Hand a job back without counting the attempt. Raises LostLeaseError."""
    job = record.job
    _require_held(job, lease)
    waiting = _waiting(job, now, attempts=job.attempts - 1, reason=reason or job.reason)
    return Change(Record(record.seq, waiting, ALWAYS), LeaseEnd.RELEASED)


def cancel(record: Record, now: Now) -> Change | None:
    """Cancel a job that has not ended; None when it is cancelled. Raises InputError."""
    job = record.job
    if job.state is JobState.CANCELLED:
        return None
    if job.state not in OPEN:
        raise InputError(
            "the job cannot be cancelled: it has ended",
            expected="a job that is pending or leased",
            found=f"job {job.job_id} is {job.state}",
        )
    ended = LeaseEnd.CANCELLED if job.state is JobState.LEASED else None
    return _ended(record, JobState.CANCELLED, ended, now, reason=job.reason)


def retry(record: Record, now: Now) -> Change:
    """Let a failed or dead job wait again. Raises InputError."""
    job = record.job
    if job.state not in (JobState.FAILED, JobState.DEAD):
        raise InputError(
            "the job cannot be tried again",
            expected="a job that is failed or dead",
            found=f"job {job.job_id} is {job.state}",
            hint="a run that shall be executed anew is declared anew, with a run_id of its own",
        )
    return Change(Record(record.seq, _waiting(job, now, attempts=0, reason=job.reason), ALWAYS))


def damaged(record: Record, reason: str, now: Now) -> Change:
    """Give up a leased job whose stored run cannot be read."""
    return _ended(record, JobState.FAILED, LeaseEnd.FAILED, now, reason=reason)


def lost(job_id: str, lease_epoch: int, job: Job | None) -> LostLeaseError:
    """Return the error that refuses a write under a lease that is no longer the job's."""
    found = "no such job"
    if job is not None:
        found = f"the job is {job.state}, its last lease has epoch {job.lease_epoch}"
    return LostLeaseError(
        f"the lease of job {job_id} was lost",
        expected=f"the job leased under epoch {lease_epoch}",
        found=found,
        hint="drop what was computed: another worker has the job, or it was cancelled",
    )


def _require_held(job: Job, lease: Lease | LeaseName) -> None:
    # A lease that ran out is held until another claim ends it: until then nobody else has the job.
    held = (job.state, job.lease_epoch, job.worker_id)
    if held != (JobState.LEASED, lease.lease_epoch, lease.worker_id):
        raise lost(lease.job_id, lease.lease_epoch, job)


def _waiting(job: Job, now: Now, *, attempts: int, reason: str | None) -> Job:
    return replace(
        job,
        state=JobState.PENDING,
        attempts=attempts,
        worker_id=None,
        changed_ms=now.wall_ms,
        reason=reason,
    )


def _ended(
    record: Record,
    state: JobState,
    ended: LeaseEnd | None,
    now: Now,
    *,
    result: JobResult | None = None,
    reason: str | None = None,
) -> Change:
    job = replace(
        record.job,
        state=state,
        worker_id=None,
        changed_ms=now.wall_ms,
        result=result,
        reason=reason,
    )
    return Change(Record(record.seq, job, None), ended)
