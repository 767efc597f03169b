"""``tallystick worker``: work off a queue of runs, one child per run (docs/spec/worker.md)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tallystick.cli.extras import require_engine
from tallystick.cli.options import PATH, json_option
from tallystick.cli.output import emit, note, note_error, printable
from tallystick.cli.queueing import short
from tallystick.cli.watching import Viewer, choose_face, turn_words
from tallystick.errors import UsageError

if TYPE_CHECKING:
    from tallystick.canonical.json import JSONValue
    from tallystick.errors import UnavailableError
    from tallystick.queues.port import Queue
    from tallystick.queues.spool import CollectedFiles
    from tallystick.worker.turns import Listener, Turn

#: What a worker may hold more after a run than before without a word about it, in bytes.
_UNREMARKABLE: Final = 10 * 2**20
_TROUBLE: Final = "trying again later"


@click.command(name="worker")
@click.option("--config", type=PATH, metavar="FILE", help="Settings (YAML). Default: all defaults.")
@click.option("--once", is_flag=True, help="Stop when nothing waits in the queue.")
@click.option("--watch", is_flag=True, help="Show what goes on: live on a terminal, else in lines.")
@json_option
def command(config: Path | None, once: bool, watch: bool, as_json: bool) -> None:
    """Fetch runs from the queue, execute each in a child of its own, and leave signed sets.

    Runs until it is told to stop (SIGTERM or Ctrl-C): then the present run may finish within the
    grace of the settings, else it goes back to the queue. A second signal gives it up at once.

    Exit status: 0 stopped in order, 4 bad settings, 6 the queue or the output cannot be used.
    """
    if watch and as_json:
        raise UsageError("--watch is for people, and --json for programs", expected="one of them")
    require_engine()
    from tallystick.queues.sqlite.adapter import open_queue, queue_path
    from tallystick.store.home import home
    from tallystick.worker.loop import Worker, new_worker_id
    from tallystick.worker.notify import Notifier
    from tallystick.worker.reporting import Reporter
    from tallystick.worker.settings import DEFAULTS, read_settings
    from tallystick.worker.stopping import StopSwitch

    place = home()
    settings = DEFAULTS if config is None else read_settings(config)
    worker_id = new_worker_id()
    health = Path(settings.health) if settings.health else None
    reporter = Reporter(worker_id, health, Notifier.of(os.environ, os.getpid()))

    with StopSwitch(settings.grace_seconds, on_tick=reporter.tick) as stop:
        file = Path(settings.queue) if settings.queue else queue_path(place)
        with open_queue(file) as queue, _watching(queue) if watch else _telling(as_json) as told:
            worker = Worker(
                queue,
                settings,
                place,
                stop,
                worker_id=worker_id,
                reporter=reporter,
                listener=told,
            )
            turns = worker.work(until="empty" if once else "stopped")
    note(f"{turns} runs" if turns != 1 else "1 run")


@contextmanager
def _telling(as_json: bool) -> Iterator[Listener]:
    """Tell of each turn on standard output, and of everything else on standard error."""
    from tallystick.worker.turns import Listener

    def tell(turn: Turn) -> None:
        emit(_document(turn), as_json=as_json, lines=[turn_words(turn)])
        sys.stdout.flush()
        for line in _memory_lines(turn):
            note(line)

    def collected(files: CollectedFiles) -> None:
        for line in _collected_lines(files):
            note(line)

    def trouble(error: UnavailableError) -> None:
        note_error(_TROUBLE, error)

    yield Listener(tell, collected, trouble)


@contextmanager
def _watching(queue: Queue) -> Iterator[Listener]:
    """Show on standard output what goes on, and tell the same as ever between."""
    from tallystick.telemetry.bus import LocalBus
    from tallystick.worker.turns import Listener
    from tallystick.worker.watch import Watch

    bus = LocalBus()
    with closing(Watch(bus, queue)) as watch, Viewer(watch.view, choose_face()) as viewer:

        def tell(turn: Turn) -> None:
            watch.turn(turn)
            for line in (turn_words(turn), *_memory_lines(turn)):
                viewer.say(line)

        def collected(files: CollectedFiles) -> None:
            for line in _collected_lines(files):
                viewer.say(line)

        def trouble(error: UnavailableError) -> None:
            for line in error.lines():
                viewer.say(f"{_TROUBLE}: {line}")

        yield Listener(tell, collected, trouble, watch.begin, watch.progress, bus)


def _collected_lines(files: CollectedFiles) -> Iterator[str]:
    for file in files.accepted:
        yield f"spool: {file.name} is job {file.submission.job_id}"
    for refused in files.refused:
        yield f"spool: {refused.name} was refused: {refused.reason}"


def _memory_lines(turn: Turn) -> Iterator[str]:
    """Say so when memory did not come back."""
    if turn.kept > _UNREMARKABLE:
        yield (
            f"memory did not come back: the worker holds {turn.kept / 2**20:.1f} MiB more than "
            f"before job {short(turn.job_id)}"
        )


def _document(turn: Turn) -> JSONValue:
    memory = turn.memory
    return {
        "job_id": turn.job_id,
        "outcome": turn.outcome,
        "receipt_digest": turn.receipt_digest,
        "place": None if turn.place is None else printable(str(turn.place)),
        "reason": turn.reason,
        "memory": None
        if memory is None
        else {"before": memory.before, "peak": memory.peak, "after": memory.after},
        "kept": turn.kept,
    }
