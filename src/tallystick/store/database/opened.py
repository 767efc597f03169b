"""A database that is open: closed alone, and as a context manager."""

from __future__ import annotations

import abc
import contextlib
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import quote

from tallystick.errors import EvidenceError, UnavailableError
from tallystick.store.database.failures import usable
from tallystick.store.database.marks import Marks
from tallystick.store.database.place import database_path, locked, require_opened


def connect(
    marks: Marks,
    directory: int,
    path: Path,
    *,
    settings: Sequence[str],
    wait_seconds: float,
    threads: Literal["one", "many"] = "one",
) -> sqlite3.Connection:
    """Connect to the file ``path`` in ``directory``, once it is seen to be what ``marks`` say.

    Nothing is changed before that. ``settings`` are statements. Raises EvidenceError when it is
    another application's, UnavailableError when another file took its name, and sqlite3.Error.
    """
    connection = sqlite3.connect(
        f"file:{quote(database_path(directory, path))}?mode=rw",
        uri=True,
        timeout=wait_seconds,
        isolation_level=None,
        check_same_thread=threads == "one",
    )
    try:
        marks.check(connection)
        require_opened(directory, path.name)
        (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
        if journal != "wal":
            raise EvidenceError(f"the {marks.kind} has no WAL", expected="wal", found=str(journal))
        for setting in settings:
            connection.execute(setting)
    except BaseException:
        connection.close()
        raise
    return connection


class OpenDatabase(abc.ABC):
    """The file ``path`` in the open ``directory``, which is closed with it.

    ``kind`` names it in errors; ``wait_seconds`` bounds the wait for processes that close at the
    same time.
    """

    def __init__(self, kind: str, path: Path, directory: int, wait_seconds: float) -> None:
        self._kind = kind
        self._path = path
        self._directory = directory
        self._wait_seconds = wait_seconds

    @abc.abstractmethod
    def _finish(self) -> None:
        """Write down what is left, and close the connection. May raise sqlite3.Error, OSError."""

    @abc.abstractmethod
    def _disconnect(self) -> None:
        """Close the connection, whatever happened to it, if it is still open."""

    def close(self) -> None:
        """Close it. Raises UnavailableError; what was recorded is there all the same."""
        try:
            # SQLite leaves its journal behind when two processes close at the same time.
            with (
                usable(self._kind, self._path),
                locked(self._directory, self._wait_seconds, kind=self._kind),
            ):
                self._finish()
        finally:
            self._disconnect()
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
