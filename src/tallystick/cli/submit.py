"""``tallystick submit``: queue declared runs (docs/spec/queue.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli.options import PATH, json_option
from tallystick.cli.output import emit, note, printable
from tallystick.cli.queueing import chosen_queue, queue_option, short
from tallystick.errors import InputError, UsageError
from tallystick.queues.port import DEFAULT_MAX_ATTEMPTS, MAX_ATTEMPTS, MAX_PRIORITY, Submission
from tallystick.queues.runfile import read_run
from tallystick.queues.spool import CollectedFiles, collect
from tallystick.queues.sqlite.adapter import open_queue

if TYPE_CHECKING:
    from tallystick.canonical.json import JSONValue


@click.command(name="submit")
@click.argument("runs", type=PATH, nargs=-1, metavar="RUN.json...")
@queue_option
@click.option(
    "--priority",
    type=click.IntRange(-MAX_PRIORITY, MAX_PRIORITY),
    metavar="N",
    help=f"-{MAX_PRIORITY} to {MAX_PRIORITY}, the highest first. Default: 0.",
)
@click.option(
    "--max-attempts",
    type=click.IntRange(1, MAX_ATTEMPTS),
    metavar="N",
    help=f"How often a run is begun at most, 1 to {MAX_ATTEMPTS}. Default: {DEFAULT_MAX_ATTEMPTS}.",
)
@click.option(
    "--spool", type=PATH, metavar="DIR", help="Submit what was dropped into DIR/incoming instead."
)
@json_option
@click.pass_context
def command(
    context: click.Context,
    runs: Sequence[Path],
    queue: Path | None,
    priority: int | None,
    max_attempts: int | None,
    spool: Path | None,
    as_json: bool,
) -> None:
    """Queue the runs that the files RUN.json declare, for a worker to execute.

    A run is queued once, however often it is submitted. When one file is no run, none is queued;
    with --spool such a file is moved to DIR/refused, beside its reason.

    Exit status: 0 all runs are in the queue, 2 a flag is out of range, 4 a file is no run, or
    another declaration in the queue has its run_id, 6 the queue cannot be used.
    """
    if spool is not None:
        if runs or priority is not None or max_attempts is not None:
            raise UsageError("--spool goes with no file, --priority or --max-attempts")
        _collect(context, spool, chosen_queue(queue), as_json)
        return
    if not runs:
        raise UsageError("nothing to submit", expected="RUN.json, or --spool")
    declared = [read_run(path) for path in runs]
    with open_queue(chosen_queue(queue)) as opened:
        submissions = [
            opened.submit(
                run, priority=priority or 0, max_attempts=_attempts_or_default(max_attempts)
            )
            for run in declared
        ]
    rows = [
        (str(path), run.run_id, submission)
        for path, run, submission in zip(runs, declared, submissions, strict=True)
    ]
    emit(
        {
            "submissions": [
                {**_document(path, submission), "run_id": run_id}
                for path, run_id, submission in rows
            ]
        },
        as_json=as_json,
        lines=[_words(path, submission) for path, _, submission in rows],
    )


def _attempts_or_default(count: int | None) -> int:
    return DEFAULT_MAX_ATTEMPTS if count is None else count


def _collect(context: click.Context, spool: Path, queue: Path, as_json: bool) -> None:
    with open_queue(queue) as opened:
        found = collect(spool, opened)
    emit(_collected(found), as_json=as_json, lines=_collected_words(found))
    for refused in found.refused:
        note(f"refused: {refused.place}: {refused.reason}")
    context.exit(InputError.exit_code if found.refused else 0)


def _collected(found: CollectedFiles) -> JSONValue:
    return {
        "submissions": [_document(item.name, item.submission) for item in found.accepted],
        "refused": [
            {
                "file": printable(item.name),
                "place": printable(str(item.place)),
                "reason": item.reason,
            }
            for item in found.refused
        ],
        "unfinished": [printable(name) for name in found.unfinished],
    }


def _collected_words(found: CollectedFiles) -> list[str]:
    lines = [_words(item.name, item.submission) for item in found.accepted]
    lines += [f"left, it may be unfinished: {name}" for name in found.unfinished]
    return lines or ["nothing was dropped"]


def _document(name: str, submission: Submission) -> dict[str, JSONValue]:
    return {
        "file": printable(name),
        "job_id": submission.job_id,
        "created": submission.created,
        "state": submission.state.value,
    }


def _words(name: str, submission: Submission) -> str:
    known = "" if submission.created == "new" else "known, "
    return f"{short(submission.job_id)}  {known}{submission.state}  {name}"
