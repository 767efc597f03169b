"""What the verbs about queued runs share: the queue's place, and how jobs are shown."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from tallystick.cli.options import PATH
from tallystick.queues.port import Job, JobResult, PastLease
from tallystick.queues.sqlite.adapter import queue_path
from tallystick.store.home import home

if TYPE_CHECKING:
    from tallystick.canonical.json import JSONValue

F = TypeVar("F", bound=Callable[..., Any])
_SHORT_DIGITS: Final = 12
_PREFIX: Final = "sha256:"


def queue_option(function: F) -> F:
    """Add ``--queue``; the verb receives ``queue: Path | None``."""
    return click.option(
        "--queue",
        type=PATH,
        metavar="FILE",
        help="The queue. Default: queue.sqlite3 in the data folder.",
    )(function)


def chosen_queue(path: Path | None) -> Path:
    """Return the queue that the user named, or the default one."""
    return queue_path(home()) if path is None else path


def job_document(job: Job) -> dict[str, JSONValue]:
    """Return what ``--json`` shows of a job."""
    return {
        "job_id": job.job_id,
        "run_id": job.run_id,
        "model_digest": job.model_digest,
        "state": job.state.value,
        "priority": job.priority,
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        "lease_epoch": job.lease_epoch,
        "worker_id": job.worker_id,
        "submitted": moment(job.submitted_ms),
        "changed": moment(job.changed_ms),
        "result": _result_document(job.result),
        "reason": job.reason,
    }


def _result_document(result: JobResult | None) -> JSONValue:
    if result is None:
        return None
    return {
        "receipt_digest": result.receipt_digest,
        "status": result.status,
        "place": result.place,
    }


def lease_document(lease: PastLease) -> JSONValue:
    """Return what ``--json`` shows of a lease."""
    return {
        "lease_epoch": lease.lease_epoch,
        "worker_id": lease.worker_id,
        "claimed": moment(lease.claimed_ms),
        "ended": None if lease.ended is None else lease.ended.value,
        "ended_at": None if lease.ended_ms is None else moment(lease.ended_ms),
        "reason": lease.reason,
    }


def moment(milliseconds: int) -> str:
    """Return a wall clock time as a text: UTC, to the second."""
    when = datetime.fromtimestamp(milliseconds // 1000, UTC)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def short(job_id: str) -> str:
    """Return the first digits of a job_id, enough to name the job."""
    return job_id.removeprefix(_PREFIX)[:_SHORT_DIGITS]
