"""Reading the state store back: nothing on disk is touched (docs/spec/state-store.md).

The database is read from bytes in memory, so that no journal can appear beside the file, no link
or rename can interfere, and the bytes that were hashed are the bytes that are read.
"""

from __future__ import annotations

import sqlite3
from dataclasses import fields
from typing import Final

from tallystick.errors import EvidenceError
from tallystick.store.database.first_page import JOURNAL_BYTES, PAGE_BYTES, ROLLBACK_MARK, damaged
from tallystick.store.database.marks import DATABASE_ERRORS, bounded, error_name
from tallystick.store.state import sql
from tallystick.store.state.entry import StateEntry
from tallystick.store.state.schema import MARKS

_LARGEST_VALUE: Final = 1024 * 1024  # bytes of one text, blob or row
_STEPS_A_PAGE: Final = 2000  # of SQLite's machine; a page full of rows takes half as many


def restore_accepted(data: bytes, entry: StateEntry) -> None:
    """Check that the store in ``data`` accepted the receipt, with exactly the values of ``entry``.

    ``data`` has the bytes of the file, ``entry`` what the verified receipt and bundle say. Raises
    EvidenceError when ``data`` is no undamaged state store, holds no such receipt, or holds it with
    another value, which is named.
    """
    MARKS.require_library()
    MARKS.check_bytes(data)
    connection = _open_bytes(data)
    try:
        MARKS.check(connection)
        with bounded(connection, _STEPS_A_PAGE * (len(data) // PAGE_BYTES)):
            _require_sound(connection)
            row = connection.execute(sql.RESTORE, (entry.receipt_id,)).fetchone()
    except DATABASE_ERRORS as error:
        raise _damaged(error_name(error)) from None
    finally:
        connection.close()
    if row is None:
        raise EvidenceError(
            "the state store has not accepted this receipt",
            expected=f"receipt_id {entry.receipt_id.hex()}",
            found="no such row",
        )
    for field, stored in zip(fields(entry), row, strict=True):
        value = getattr(entry, field.name)
        if stored != value:
            raise EvidenceError(
                f"the state store holds another {field.name}",
                expected=_shown(value),
                found=_shown(stored),
            )


def _open_bytes(data: bytes) -> sqlite3.Connection:
    # A database in memory cannot have a WAL, and a store at rest has nothing in one.
    image = b"".join((data[: JOURNAL_BYTES.start], ROLLBACK_MARK, data[JOURNAL_BYTES.stop :]))
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_VALUE)
        connection.deserialize(image)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute("PRAGMA query_only = ON")
    except DATABASE_ERRORS as error:
        connection.close()
        raise _damaged(error_name(error)) from None
    return connection


def _require_sound(connection: sqlite3.Connection) -> None:
    verdict = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if verdict != ("ok",):
        raise _damaged("pages that contradict each other")
    if connection.execute("PRAGMA foreign_key_check").fetchone() is not None:
        raise _damaged("a receipt without its job")


def _damaged(found: str) -> EvidenceError:
    return damaged(MARKS.kind, found)


def _shown(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex() if len(value) <= 32 else f"{len(value)} bytes that differ"
    return str(int(value)) if isinstance(value, int) else type(value).__name__
