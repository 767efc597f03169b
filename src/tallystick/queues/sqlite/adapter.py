"""Opening the embedded queue (docs/spec/queue.md#file)."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self
from urllib.parse import quote

from tallystick.errors import EvidenceError, UnavailableError
from tallystick.queues.clock import Clock, SystemClock
from tallystick.queues.core import JobQueue
from tallystick.queues.sqlite.commits import Commits
from tallystick.queues.sqlite.schema import MARKS, QUEUE_NAME, SETTINGS
from tallystick.store.database.failures import usable
from tallystick.store.database.place import (
    check_files,
    create_missing,
    database_path,
    locked,
    require_opened,
)
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
            connection = _connect(directory, path, wait_seconds)
            commits = Commits(path, connection)
        return SqliteQueue(path, directory, commits, wait_seconds, clock)
    except BaseException:
        os.close(directory)
        raise


class SqliteQueue(JobQueue):
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
        super().__init__(commits, clock or SystemClock())
        self._path = path
        self._directory = directory
        self._commits = commits
        self._wait_seconds = wait_seconds

    def close(self) -> None:
        """Close the queue. Raises UnavailableError; the queue then holds all the same."""
        try:
            # SQLite leaves its journal behind when two processes close at the same time.
            with (
                usable(MARKS.kind, self._path),
                locked(self._directory, self._wait_seconds, kind=MARKS.kind),
            ):
                self._commits.close()
        finally:
            self._commits.close()
            os.close(self._directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        with contextlib.suppress(UnavailableError):  # the first error says what is wrong
            self.close()


def _connect(directory: int, path: Path, wait_seconds: float) -> sqlite3.Connection:
    """Open the database, and check that it is a queue before anything could change it."""
    connection = sqlite3.connect(
        f"file:{quote(database_path(directory, path))}?mode=rw",
        uri=True,
        timeout=wait_seconds,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        MARKS.check(connection)
        require_opened(directory, path.name)
        (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
        if journal != "wal":
            raise EvidenceError("the queue has no WAL", expected="wal", found=str(journal))
        for setting in SETTINGS:
            connection.execute(setting)
        connection.row_factory = sqlite3.Row
    except BaseException:
        connection.close()
        raise
    return connection
