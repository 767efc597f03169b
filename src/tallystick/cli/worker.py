"""``tallystick worker``: work off a queue of runs, one child per run (docs/spec/worker.md)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli.extras import require_engine
from tallystick.cli.options import PATH, json_option
from tallystick.cli.output import emit, note, note_error, printable

if TYPE_CHECKING:
    from tallystick.canonical.json import JSONValue
    from tallystick.errors import UnavailableError
    from tallystick.queues.spool import CollectedFiles
    from tallystick.worker.turns import Turn


@click.command(name="worker")
@click.option("--config", type=PATH, metavar="FILE", help="Settings (YAML). Default: all defaults.")
@click.option("--once", is_flag=True, help="Stop when nothing waits in the queue.")
@json_option
def command(config: Path | None, once: bool, as_json: bool) -> None:
    """Fetch runs from the queue, execute each in a child of its own, and leave signed sets.

    Runs until it is told to stop (SIGTERM or Ctrl-C): then the present run may finish within the
    grace of the settings, else it goes back to the queue. A second signal gives it up at once.

    Exit status: 0 stopped in order, 4 bad settings, 6 the queue or the output cannot be used.
    """
    require_engine()
    from tallystick.queues.sqlite.adapter import open_queue, queue_path
    from tallystick.store.home import home
    from tallystick.worker.loop import Worker, new_worker_id
    from tallystick.worker.notify import Notifier
    from tallystick.worker.reporting import Reporter
    from tallystick.worker.settings import DEFAULTS, read_settings
    from tallystick.worker.stopping import StopSwitch
    from tallystick.worker.turns import Listener

    place = home()
    settings = DEFAULTS if config is None else read_settings(config)
    worker_id = new_worker_id()
    health = Path(settings.health) if settings.health else None
    reporter = Reporter(worker_id, health, Notifier.of(os.environ, os.getpid()))

    def tell(turn: Turn) -> None:
        emit(_document(turn), as_json=as_json, lines=[_words(turn)])
        sys.stdout.flush()

    with StopSwitch(settings.grace_seconds, on_tick=reporter.tick) as stop:
        file = Path(settings.queue) if settings.queue else queue_path(place)
        with open_queue(file) as queue:
            worker = Worker(
                queue,
                settings,
                place,
                stop,
                worker_id=worker_id,
                reporter=reporter,
                listener=Listener(tell, _note_collected, _note_trouble),
            )
            turns = worker.work(until="empty" if once else "stopped")
    note(f"{turns} runs" if turns != 1 else "1 run")


def _note_collected(files: CollectedFiles) -> None:
    for file in files.accepted:
        note(f"spool: {file.name} is job {file.submission.job_id}")
    for refused in files.refused:
        note(f"spool: {refused.name} was refused: {refused.reason}")


def _note_trouble(error: UnavailableError) -> None:
    note_error("trying again later", error)


def _document(turn: Turn) -> JSONValue:
    return {
        "job_id": turn.job_id,
        "outcome": turn.outcome,
        "receipt_digest": turn.receipt_digest,
        "place": None if turn.place is None else printable(str(turn.place)),
        "reason": turn.reason,
    }


def _words(turn: Turn) -> str:
    tail = turn.receipt_digest or turn.reason or ""
    return f"{turn.outcome:<8}  {turn.job_id[:16]}  {turn.seconds:7.2f} s  {tail}"
