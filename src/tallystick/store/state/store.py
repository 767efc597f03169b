"""Accepting receipts: each once, each execution once, each slot once (docs/spec/state-store.md)."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Final

from tallystick.errors import EvidenceError
from tallystick.store.database.failures import database_unavailable, usable
from tallystick.store.database.marks import DATABASE_ERRORS
from tallystick.store.database.opened import OpenDatabase, connect
from tallystick.store.database.place import check_files, create_missing
from tallystick.store.home import require_private
from tallystick.store.state import sql
from tallystick.store.state.entry import StateEntry
from tallystick.store.state.schema import MARKS

_WAIT_SECONDS: Final = 10.0


def open_state(path: Path, *, wait_seconds: float = _WAIT_SECONDS) -> StateStore:
    """Open the state store at ``path`` for accepting; an empty one is created when none is there.

    The directory exists, is ours, closed to others and no symlink. What a process that was killed
    left behind is recovered. ``wait_seconds`` bounds each wait for other processes. Raises
    UnavailableError when the place or the file cannot be used, or is no state store.
    """
    MARKS.require_library()
    with usable(MARKS.kind, path):
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        directory = os.open(path.parent, flags)
    try:
        with usable(MARKS.kind, path):
            require_private(path.parent, os.fstat(directory))
            create_missing(
                directory, path.name, MARKS.image, kind=MARKS.kind, wait_seconds=wait_seconds
            )
            check_files(directory, path.name)
            connection = connect(
                MARKS, directory, path, settings=sql.SETTINGS, wait_seconds=wait_seconds
            )
        return StateStore(path, directory, connection, wait_seconds)
    except BaseException:
        os.close(directory)
        raise


class StateStore(OpenDatabase):
    """An open state store; see :func:`open_state`. Use it as a context manager, in one thread.

    Leaving it writes everything into the one file. Once no process has the store open, that file
    is alone and can be hashed.
    """

    def __init__(
        self, path: Path, directory: int, connection: sqlite3.Connection, wait_seconds: float
    ) -> None:
        super().__init__(MARKS.kind, path, directory, wait_seconds)
        self._connection = connection

    def accept(self, entry: StateEntry) -> None:
        """Record a receipt that the caller has verified; when this returns it is durable.

        Raises EvidenceError when the receipt or its execution is recorded already, its slot is
        filled, or its job is recorded with another class or request; UnavailableError when the
        store cannot be used. Then nothing is recorded.
        """
        with self._transaction():
            with usable(MARKS.kind, self._path):
                MARKS.check(self._connection)
            values = _values(entry)
            self._refuse_repeated(values)
            self._join_job(entry, values)
            self._connection.execute(sql.INSERT_RECEIPT, values)

    def _finish(self) -> None:
        # Busy readers or writers make it do less; the last to close does the rest.
        self._connection.execute(sql.CHECKPOINT).fetchall()
        self._connection.close()
        os.fsync(self._directory)

    def _disconnect(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._connection.execute(sql.BEGIN)
            try:
                yield
                self._connection.execute(sql.COMMIT)
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute(sql.ROLLBACK)
                raise
        except sqlite3.IntegrityError as error:
            raise EvidenceError(
                "the state store's own rules refuse the receipt", found=error.sqlite_errorname
            ) from None
        except DATABASE_ERRORS as error:
            raise database_unavailable(MARKS.kind, self._path, error) from None

    def _refuse_repeated(self, values: Mapping[str, bytes | int]) -> None:
        if self._connection.execute(sql.FIND_RECEIPT, values).fetchone():
            raise _refused("this receipt was accepted before", "receipt_id", values)
        if self._connection.execute(sql.FIND_EXECUTION, values).fetchone():
            raise _refused(
                "a receipt of this execution was accepted before", "execution_nullifier", values
            )

    def _join_job(self, entry: StateEntry, values: Mapping[str, bytes | int]) -> None:
        """Record the job of a first receipt; hold a further one to what is recorded."""
        job = self._connection.execute(sql.FIND_JOB, values).fetchone()
        if job is None:
            self._connection.execute(sql.INSERT_JOB, values)
            return
        request, job_class = job
        if job_class != entry.job_class:
            raise EvidenceError(
                "the job was accepted with another job class",
                expected=str(job_class),
                found=str(int(entry.job_class)),
            )
        if request != entry.request_commitment:
            raise EvidenceError(
                "the job was accepted with another request commitment",
                expected=request.hex(),
                found=entry.request_commitment.hex(),
            )
        if self._connection.execute(sql.FIND_SLOT, values).fetchone():
            raise EvidenceError(
                "the slot of the job is filled by another receipt",
                expected="a free slot",
                found=f"replica_slot {entry.replica_slot} of job {entry.job_nullifier.hex()}",
            )


def _values(entry: StateEntry) -> Mapping[str, bytes | int]:
    values = {field.name: getattr(entry, field.name) for field in fields(entry)}
    return {**values, "job_class": int(entry.job_class), "slots": entry.job_class.slots}


def _refused(message: str, name: str, values: Mapping[str, bytes | int]) -> EvidenceError:
    value = values[name]
    assert isinstance(value, bytes)
    return EvidenceError(
        message,
        expected=f"a {name} that the state store does not hold",
        found=value.hex(),
        hint="a repeated receipt counts once",
    )
