"""``worker --watch``: what a worker does, painted by a thread of its own.

The worker hands over lines and goes on: a terminal that is held, or that nobody reads, holds no
run up. On a terminal the view is live (rich), elsewhere it is a line now and then.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

from tallystick.cli.output import note, printable
from tallystick.cli.progress import work_words
from tallystick.cli.queueing import short

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from tallystick.worker.turns import Turn
    from tallystick.worker.watch import RunView, WorkerView

_INTERVAL: Final = 0.5
_LINE_SECONDS: Final = 5.0
_PATIENCE: Final = 5.0  # seconds for the last words of a view that is to end
_MIB: Final = 2**20
#: Lines that wait for a view whose terminal takes none.
_MOST_LINES: Final = 10_000
_STAGES: Final = {
    "begun": "looking for its model",
    "Init": "starting",
    "Loading": "loading the model",
    "LoadComplete": "reading the prompt",
    "TokenEmitted": "generating",
    "ArenaReset": "finishing",
    "ShutdownComplete": "signing",
}


class Face(Protocol):
    """How a view looks. Everything is called from one thread."""

    def show(self, view: WorkerView, lines: tuple[str, ...]) -> None:
        """Show how things stand, and above it ``lines`` that stay."""
        ...

    def end(self) -> None:
        """Leave the terminal as it was, but for what was shown, and let go of it."""
        ...


class Viewer:
    """Shows ``look()`` on ``face`` some times a second, until it is left."""

    def __init__(self, look: Callable[[], WorkerView], face: Face) -> None:
        self._look = look
        self._face = face
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._paint, name="watch", daemon=True)

    def say(self, line: str) -> None:
        """Have a line written that stays. From any thread; never waits."""
        self._lines.append(printable(line))

    def _paint(self) -> None:
        # A worker's signals are for its main thread, which has to wake from its waits.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        with contextlib.suppress(OSError):  # the terminal is gone: the worker goes on unwatched
            try:
                while not self._over.wait(_INTERVAL):
                    self._show()
                self._show()
            finally:
                self._face.end()

    def _show(self) -> None:
        lines = []
        while self._lines:
            lines.append(self._lines.popleft())
        self._face.show(self._look(), tuple(lines))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join(_PATIENCE)


def choose_face() -> Face:
    """Return the live face on a terminal that can show it, else the one of lines."""
    live = sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    # Unbuffered and of its own: no lock is held in a write that does not come back.
    raw = io.FileIO(os.dup(sys.stdout.fileno()), "w")
    out = io.TextIOWrapper(raw, "utf-8", errors="replace", write_through=True)
    if live:
        try:
            from rich.console import Console
        except ImportError:
            note("the live view needs the Python module rich: pip install 'tallystick[worker]'")
            note("lines follow instead")
        else:
            return LiveFace(
                Console(file=out, force_terminal=True, markup=False, emoji=False, highlight=False)
            )
    return LineFace(out)


class LineFace:
    """A line when the stage of a run changes, and every few seconds."""

    def __init__(self, out: io.TextIOWrapper) -> None:
        self._out = out
        self._shown: tuple[str, str] | None = None
        self._at = 0.0

    def show(self, view: WorkerView, lines: tuple[str, ...]) -> None:
        """Write ``lines``, and one about the present run when there is news of it."""
        for line in lines:
            self._out.write(line + "\n")
        run = view.run
        if run is None:
            self._shown = None
            return
        now, what = time.monotonic(), (run.job_id, run.doing)
        if what != self._shown or now - self._at >= _LINE_SECONDS:
            self._shown, self._at = what, now
            self._out.write(printable(f"watch     {_run_words(run)}  {_queue_words(view)}") + "\n")

    def end(self) -> None:
        """Let go of the output."""
        self._out.close()


class LiveFace:
    """A picture that is painted over; lines that stay scroll away above it."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        self._live = Live(
            console=console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def show(self, view: WorkerView, lines: tuple[str, ...]) -> None:
        """Paint the picture anew."""
        self._live.start()  # writes, and so not where the worker would wait for it
        for line in lines:
            self._console.print(line, soft_wrap=True)
        self._live.update(picture(view), refresh=True)

    def end(self) -> None:
        """Leave the last picture, and give the cursor back."""
        with self._console.file:
            self._live.stop()


def picture(view: WorkerView) -> RenderableType:
    """Return how things stand as something for rich to show. No text of a run is in it."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="dim", width=6)
    table.add_column(overflow="ellipsis")  # on a narrow terminal it alone gives way
    for name, value in _rows(view):
        table.add_row(name, Text(printable(value), overflow="ellipsis", no_wrap=True))
    return table


def _rows(view: WorkerView) -> list[tuple[str, str]]:
    rows = [("queue", _queue_words(view)), ("worker", f"{_mib(view.rss)}, {view.done} turns")]
    run = view.run
    if run is None:
        rows.append(("run", "idle"))
    else:
        speed = "" if run.rate is None else f", {run.rate:.1f} tokens/s"
        rows += [
            ("run", f"{short(run.job_id)}  {run.seconds:.0f} s  {_doing(run)}"),
            ("tokens", f"{run.tokens}{speed}"),
            ("memory", f"{_mib(run.rss)} now, {_mib(run.peak)} peak"),
            ("events", _event_words(run)),
        ]
    return [*rows, *(("turn", turn_words(turn)) for turn in view.turns)]


def turn_words(turn: Turn) -> str:
    """Return a line about a turn: outcome, job, time, memory, and its receipt or why it has none.

    ``peak`` is the child's memory, ``kept`` what the worker holds more than before the run.
    """
    peak = "–" if turn.memory is None else _mib(turn.memory.peak)
    memory = f"peak {peak}, kept {_mib(turn.kept)}"
    tail = turn.receipt_digest or turn.reason or ""
    return f"{turn.outcome:<8}  {short(turn.job_id)}  {turn.seconds:7.2f} s  {memory}  {tail}"


def _run_words(run: RunView) -> str:
    speed = "" if run.rate is None else f" at {run.rate:.1f} tokens/s"
    return (
        f"{short(run.job_id)}  {_doing(run)}  {run.tokens} tokens{speed}  "
        f"{_mib(run.rss)} (peak {_mib(run.peak)})  {run.dropped} events dropped"
    )


def _doing(run: RunView) -> str:
    words = _STAGES.get(run.doing) or work_words(run.doing)
    return words if run.share is None else f"{words} ({100 * run.share:.0f} %)"


def _event_words(run: RunView) -> str:
    kinds = ", ".join(f"{name} {count}" for name, count in run.events)
    lost = f"{run.dropped} dropped"
    if run.missed:
        lost += f", {run.missed} not seen here"
    return f"{lost}; {kinds}" if kinds else lost


def _queue_words(view: WorkerView) -> str:
    if view.counts is None:
        return "queue does not answer"
    return ", ".join(f"{count} {state}" for state, count in view.counts if count) or "empty"


def _mib(size: int) -> str:
    return f"{size / _MIB:.1f} MiB"
