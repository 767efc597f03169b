"""Opening the embedded queue (docs/spec/queue.md#file)."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final, Literal

from tallystick.errors import UnavailableError
from tallystick.queues.clock import Clock, SystemClock
from tallystick.queues.core import JobQueue
from tallystick.queues.sqlite.commits import Commits
from tallystick.queues.sqlite.schema import MARKS, QUEUE_NAME, SETTINGS
from tallystick.store.database.failures import usable
from tallystick.store.database.opened import OpenDatabase, connect
from tallystick.store.database.place import check_files, create_missing
from tallystick.store.files import exists
from tallystick.store.home import ensure_private_dir, require_private

_WAIT_SECONDS: Final = 10.0


def queue_path(home: Path) -> Path:
    """Return where the queue of a data folder is."""
    return home / QUEUE_NAME


def open_queue(
    path: Path,
    *,
    missing: Literal["create", "refuse"] = "create",
    wait_seconds: float = _WAIT_SECONDS,
    clock: Clock | None = None,
) -> SqliteQueue:
    """Open the queue at ``path``; an empty one, and its directory, are created where there is none.

    The directory is ours, closed to others and no symlink; with ``missing`` "refuse" nothing is
    created. What a process that was killed left behind is recovered. ``wait_seconds`` bounds each
    wait for other processes. Raises UnavailableError when the place or the file cannot be used, is
    no queue, or is not there.
    """
    MARKS.require_library()
    if missing == "create":
        ensure_private_dir(path.parent)
    elif not os.path.lexists(path):
        raise UnavailableError(
            f"there is no queue at {path}", hint="tallystick submit makes one, or name another"
        )
    with usable(MARKS.kind, path):
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        directory = os.open(path.parent, flags)
    try:
        with usable(MARKS.kind, path):
            require_private(path.parent, os.fstat(directory))
            if missing == "create" or exists(directory, path.name):
                create_missing(
                    directory,
                    path.name,
                    MARKS.image,
                    kind=MARKS.kind,
                    wait_seconds=wait_seconds,
                )
            check_files(directory, path.name)
            connection = connect(
                MARKS,
                directory,
                path,
                settings=SETTINGS,
                wait_seconds=wait_seconds,
                threads="many",
            )
            connection.row_factory = sqlite3.Row
            commits = Commits(path, connection)
        return SqliteQueue(path, directory, commits, wait_seconds, clock)
    except BaseException:
        os.close(directory)
        raise


class SqliteQueue(OpenDatabase, JobQueue):
    """An open embedded queue; see :func:`open_queue`. Use it as a context manager.

    Any number of threads may use it, and any number of processes may have the file open; a forked
    child opens it anew.
    """

    def __init__(
        self,
        path: Path,
        directory: int,
        commits: Commits,
        wait_seconds: float,
        clock: Clock | None,
    ) -> None:
        OpenDatabase.__init__(self, MARKS.kind, path, directory, wait_seconds)
        JobQueue.__init__(self, commits, clock or SystemClock())
        self._commits = commits

    def _finish(self) -> None:
        self._commits.close()

    def _disconnect(self) -> None:
        self._commits.close()
