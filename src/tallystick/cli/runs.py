"""``tallystick runs``: see and steer the runs of a queue (docs/spec/queue.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from tallystick.cli.options import json_option
from tallystick.cli.output import emit, table
from tallystick.cli.queueing import (
    chosen_queue,
    job_document,
    lease_document,
    moment,
    queue_option,
    short,
)
from tallystick.queues.port import Job, JobState, PastLease
from tallystick.queues.sqlite.adapter import SqliteQueue, open_queue


@click.group(name="runs")
def command() -> None:
    """See and steer the runs of a queue.

    A run is named by its job_id, its run_id, or the first 8 or more digits of its job_id.
    """


@command.command(name="ls")
@queue_option
@click.option(
    "--state",
    type=click.Choice([state.value for state in JobState]),
    multiple=True,
    help="Only runs in this state; may be repeated.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000_000),
    default=100,
    show_default=True,
    metavar="N",
    help="How many at most.",
)
@json_option
def list_runs(queue: Path | None, state: Sequence[str], limit: int, as_json: bool) -> None:
    """List the runs, the newest first, and count them by state.

    Exit status: 0, 6 the queue is not there or cannot be used.
    """
    with _opened(queue) as opened:
        jobs = opened.jobs([JobState(name) for name in state], limit=limit)
        counts = opened.counts()
    emit(
        {
            "runs": [job_document(job) for job in jobs],
            "counts": {known.value: count for known, count in counts},
        },
        as_json=as_json,
        lines=[*map(_line, jobs), _totals(counts)],
    )


@command.command()
@click.argument("name", metavar="RUN")
@queue_option
@json_option
def show(name: str, queue: Path | None, as_json: bool) -> None:
    """Show a run and each of its leases; never its prompt.

    Exit status: 0, 4 there is no such run, 6 the queue cannot be used.
    """
    with _opened(queue) as opened:
        job = opened.get(name)
        leases = opened.leases(job.job_id)
    _show(job, leases, as_json)


@command.command()
@click.argument("name", metavar="RUN")
@queue_option
@json_option
def cancel(name: str, queue: Path | None, as_json: bool) -> None:
    """Cancel a run that waits or is being executed: its worker drops it.

    Exit status: 0 it is cancelled, 4 there is no such run or it has ended, 6 the queue cannot be
    used.
    """
    with _opened(queue) as opened:
        job = opened.cancel(name)
        leases = opened.leases(job.job_id)
    _show(job, leases, as_json)


@command.command()
@click.argument("name", metavar="RUN")
@queue_option
@json_option
def retry(name: str, queue: Path | None, as_json: bool) -> None:
    """Let a failed or dead run wait again, with all its attempts.

    Exit status: 0 it waits, 4 there is no such run or it is in another state, 6 the queue cannot
    be used.
    """
    with _opened(queue) as opened:
        job = opened.retry(name)
        leases = opened.leases(job.job_id)
    _show(job, leases, as_json)


def _opened(queue: Path | None) -> SqliteQueue:
    return open_queue(chosen_queue(queue), missing="refuse")


def _line(job: Job) -> str:
    detail = job.worker_id or job.reason or ""
    if job.result is not None:
        detail = job.result.place or job.result.receipt_digest
    attempts = f"{job.attempts}/{job.max_attempts}"
    when = moment(job.changed_ms)
    return f"{short(job.job_id)}  {job.state:<9}  {attempts:>5}  {when}  {job.run_id}  {detail}"


def _totals(counts: Sequence[tuple[JobState, int]]) -> str:
    named = [f"{count} {state}" for state, count in counts if count]
    return ", ".join(named) or "no runs"


def _show(job: Job, leases: Sequence[PastLease], as_json: bool) -> None:
    document = {**job_document(job), "leases": [lease_document(lease) for lease in leases]}
    emit(document, as_json=as_json, lines=_details(job, leases))


def _details(job: Job, leases: Sequence[PastLease]) -> list[str]:
    rows = [
        ("job_id", job.job_id),
        ("run_id", job.run_id),
        ("model_digest", job.model_digest),
        ("state", job.state.value),
        ("priority", str(job.priority)),
        ("attempts", f"{job.attempts} of {job.max_attempts}"),
        ("submitted", moment(job.submitted_ms)),
        ("changed", moment(job.changed_ms)),
    ]
    if job.reason is not None:
        rows.append(("reason", job.reason))
    if job.result is not None:
        rows += [
            ("receipt_digest", job.result.receipt_digest),
            ("status", job.result.status),
            ("place", job.result.place or ""),
        ]
    return [*table(rows), *map(_lease_line, leases)]


def _lease_line(lease: PastLease) -> str:
    end = "held"
    if lease.ended is not None and lease.ended_ms is not None:
        end = f"{lease.ended} {moment(lease.ended_ms)}"
    why = f": {lease.reason}" if lease.reason else ""
    claimed = moment(lease.claimed_ms)
    return f"  lease {lease.lease_epoch}  {lease.worker_id}  claimed {claimed}  {end}{why}"
