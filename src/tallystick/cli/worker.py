"""``tallystick worker``: work off a queue of runs, one child per run (docs/spec/worker.md)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli.extras import require_engine
from tallystick.cli.options import PATH, json_option
from tallystick.cli.output import emit_json, note, printable

if TYPE_CHECKING:
    from tallystick.canonical.json import JSONValue
    from tallystick.worker.loop import Turn


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
    from tallystick.queues.sqlite.adapter import open_queue
    from tallystick.store.home import home
    from tallystick.worker.loop import Worker
    from tallystick.worker.settings import parse_settings, read_settings
    from tallystick.worker.stopping import StopSwitch

    place = home()
    settings = (
        parse_settings(b"schema: tallystick.worker/v1\n", folder=place)
        if config is None
        else read_settings(config)
    )
    queue_path = Path(settings.queue) if settings.queue else place / "queue.sqlite3"

    def tell(turn: Turn) -> None:
        if as_json:
            emit_json(_document(turn))
        else:
            click.echo(_words(turn))

    with open_queue(queue_path) as queue, StopSwitch(settings.grace_seconds) as stop:
        worker = Worker(queue, settings, place, stop, on_turn=tell)
        turns = worker.work(until="empty" if once else "stopped")
    note(f"{turns} runs")


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
