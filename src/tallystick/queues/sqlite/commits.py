"""Transactions of several threads, committed together.

A durable commit waits for the disk, some milliseconds, and while one thread waits others arrive.
Whoever is first takes all that wait into one transaction, each behind a savepoint of its own, and
one wait makes all of them durable.
"""

from __future__ import annotations

import contextlib
import copy
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from tallystick.errors import TallystickError, UnavailableError
from tallystick.queues.core import Records
from tallystick.queues.sqlite.records import SqliteRecords
from tallystick.queues.sqlite.schema import MARKS
from tallystick.store.database.failures import database_unavailable, usable
from tallystick.store.database.marks import DATABASE_ERRORS, pragma

T = TypeVar("T")

_SAVEPOINT: Final = "SAVEPOINT piece"
_KEEP: Final = "RELEASE piece"
_UNDO: Final = "ROLLBACK TO piece"


class Commits:
    """The transactions of one connection, for any number of threads."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        self._records = SqliteRecords(connection)
        self._schema_version = pragma(connection, "schema_version")
        # Pieces that wait, and the one whose thread does, or is to do, the next commit.
        self._queue: list[_Piece[Any]] = []
        self._leader: _Piece[Any] | None = None
        self._queue_lock = threading.Lock()
        self._turn = threading.Lock()
        self._closed = False

    def write(self, work: Callable[[Records], T]) -> T:
        """Do ``work`` in a transaction, perhaps together with that of other threads.

        Raises what ``work`` raises, which undoes what it did, or UnavailableError: then the queue
        is as before.
        """
        piece = _Piece(work)
        try:
            with self._queue_lock:
                self._queue.append(piece)
                self._leader = self._leader or piece
            if self._leader is not piece:
                piece.wake.wait()  # until another thread has done it, or leaves it to this one
            if not piece.settled:
                with self._turn:
                    self._commit(self._take_all())
        finally:
            self._leave(piece)
        return piece.outcome()

    def read(self, work: Callable[[Records], T]) -> T:
        """Do ``work``, which writes nothing, on one state of the database."""
        with self._turn, usable(MARKS.kind, self._path), self._transaction("BEGIN"):
            return work(self._records)

    def close(self) -> None:
        """Close the connection once no thread is using it; later calls are refused."""
        with self._turn:
            self._closed = True
            self._connection.close()

    def _take_all(self) -> Sequence[_Piece[Any]]:
        with self._queue_lock:
            pieces, self._queue = self._queue, []
        return pieces

    def _leave(self, piece: _Piece[Any]) -> None:
        """Forget a piece, which an interruption may have left waiting; pass its lead on."""
        with self._queue_lock:
            if piece in self._queue:
                self._queue.remove(piece)
            if self._leader is piece:
                self._leader = self._queue[0] if self._queue else None
                if self._leader is not None:
                    self._leader.wake.set()

    def _commit(self, pieces: Sequence[_Piece[Any]]) -> None:
        try:
            with self._transaction("BEGIN IMMEDIATE"):
                for piece in pieces:
                    self._try(piece)
        except DATABASE_ERRORS as error:
            for piece in pieces:
                piece.refuse(database_unavailable(MARKS.kind, self._path, error))
        except UnavailableError as error:
            for piece in pieces:
                piece.refuse(copy.copy(error))
        except BaseException:
            words = "the commit of the queue was interrupted"
            for piece in pieces:
                piece.refuse(UnavailableError(words, hint="repeat the call"))
            raise
        finally:
            for piece in pieces:
                piece.wake.set()

    def _try(self, piece: _Piece[Any]) -> None:
        self._connection.execute(_SAVEPOINT)
        try:
            piece.do(self._records)
        except sqlite3.IntegrityError as error:
            piece.refuse(database_unavailable(MARKS.kind, self._path, error))
        except TallystickError as error:
            piece.refuse(error)
        else:
            self._connection.execute(_KEEP)
            return
        self._connection.execute(_UNDO)
        self._connection.execute(_KEEP)

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[None]:
        if self._closed:
            raise UnavailableError(f"the queue {self._path} is closed", hint="open it again")
        self._connection.execute(begin)
        try:
            self._check_schema()
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                with contextlib.suppress(*DATABASE_ERRORS):
                    self._connection.execute("ROLLBACK")
            raise

    def _check_schema(self) -> None:
        """Hold the file to its marks again once anybody has changed its schema."""
        version = pragma(self._connection, "schema_version")
        if version != self._schema_version:
            with usable(MARKS.kind, self._path):
                MARKS.check(self._connection)
            self._schema_version = version


class _Piece(Generic[T]):
    """The work of one thread, and what came of it."""

    def __init__(self, work: Callable[[Records], T]) -> None:
        self.wake = threading.Event()
        self._work = work
        self._values: list[T] = []
        self._error: BaseException | None = None

    @property
    def settled(self) -> bool:
        return bool(self._values) or self._error is not None

    def do(self, records: Records) -> None:
        self._values = [self._work(records)]

    def refuse(self, error: BaseException) -> None:
        self._values = []
        self._error = error

    def outcome(self) -> T:
        if self._error is not None:
            raise self._error
        return self._values[0]
