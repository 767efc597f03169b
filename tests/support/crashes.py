"""Processes that are killed at a chosen point of what they do."""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
from collections.abc import Callable
from typing import Any

_INSTRUCTIONS = 10
_CALLS = ("open", "write", "fchmod", "fsync", "rename", "unlink", "close")


class Countdown:
    """Kills this process at the given point; a point is any call of it."""

    def __init__(self, points: int) -> None:
        self.left = points

    def __call__(self, *_: object) -> int:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1
        return 0


def killed_in(body: Callable[[], None]) -> bool:
    """Run ``body`` in a forked child; say whether it was killed, and raise if it failed."""
    child = os.fork()
    if child == 0:
        try:
            body()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def watch(watcher: Callable[[sqlite3.Connection], object]) -> None:
    """Show every connection of this process, as soon as it is made, to ``watcher``."""
    connect = sqlite3.connect

    def watched(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        watcher(connection)
        return connection

    sqlite3.connect = watched  # type: ignore[assignment]


def before_each_statement_and_call(countdown: Countdown) -> None:
    watch(lambda connection: connection.set_trace_callback(countdown))
    for name in _CALLS:
        call = getattr(os, name)

        def counted(*arguments: Any, _call: Any = call, **options: Any) -> Any:
            countdown()
            return _call(*arguments, **options)

        setattr(os, name, counted)


def before_some_instructions(countdown: Countdown) -> None:
    # Of SQLite's virtual machine: in the middle of statements.
    class Counted(sqlite3.Connection):
        """The program's own handlers, which bound what only reads, count on top of ours."""

        def set_progress_handler(self, handler: Callable[[], int | None] | None, n: int) -> None:
            turns = itertools.count(1)

            def both() -> int | None:
                countdown()
                if handler is None or next(turns) % max(1, n // _INSTRUCTIONS):
                    return 0
                return handler()

            super().set_progress_handler(both, _INSTRUCTIONS)

    connect = sqlite3.connect

    def counted(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, factory=Counted, **options)
        connection.set_progress_handler(None, 0)
        return connection

    sqlite3.connect = counted  # type: ignore[assignment]
