"""What makes an SQLite file one of ours: marks, DDL fingerprint, first image."""

from __future__ import annotations

import contextlib
import functools
import itertools
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Final

from tallystick.errors import EvidenceError, UnavailableError
from tallystick.store.database.first_page import (
    JOURNAL_BYTES,
    PAGE_BYTES,
    WAL_MARK,
    read_first_page,
)

# Python cannot always decode the text of SQLite's error, which quotes the schema of the file.
DATABASE_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)
_OLDEST_SQLITE: Final = (3, 37, 0)  # STRICT tables
# More objects than any file of ours has: a hostile schema is not read to its end.
_MAX_OBJECTS: Final = 64
# Of SQLite's machine. Reading a schema of ours takes a few hundred; one of views takes more with
# each, and each makes all the others slower.
_CHECK_STEPS: Final = 20_000
_STEPS_A_CALL: Final = 1000
_OBJECTS: Final = (
    "SELECT CAST(type AS BLOB), CAST(name AS BLOB), CAST(tbl_name AS BLOB), CAST(sql AS BLOB) "
    "FROM sqlite_master ORDER BY type, name LIMIT ?"
)


@dataclass(frozen=True, slots=True)
class Marks:
    """What one kind of file is held to whenever it is opened.

    ``kind`` names it in errors ("state store"), ``letters`` spell ``application_id``,
    ``fingerprint`` computes the DDL fingerprint of :func:`schema_parts`, ``package`` has the
    ``schema.sql`` that gives ``ddl_fingerprint``.
    """

    kind: str
    letters: str
    application_id: int
    version: int
    package: str
    fingerprint: Callable[[Sequence[bytes]], str]
    ddl_fingerprint: str

    def ddl(self) -> str:
        """Return the statements that make the tables."""
        return resources.files(self.package).joinpath("schema.sql").read_text(encoding="utf-8")

    def image(self) -> bytes:
        """Return the bytes of a file without rows, in WAL mode."""
        connection = sqlite3.connect(":memory:", isolation_level=None)
        try:
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            connection.execute(f"PRAGMA application_id = {self.application_id}")
            connection.execute(f"PRAGMA user_version = {self.version}")
            connection.executescript(self.ddl())
            image = bytearray(connection.serialize())
        finally:
            connection.close()
        image[JOURNAL_BYTES] = WAL_MARK  # a database in memory has no WAL, so the mark is set here
        return bytes(image)

    def check(self, connection: sqlite3.Connection) -> None:
        """Check application id, schema version and DDL fingerprint of an open database.

        Raises EvidenceError when it is none of this kind and version, DATABASE_ERRORS when it
        cannot be read, or only with more work than any of ours takes.
        """
        with bounded(connection, _CHECK_STEPS):
            self._compare(
                pragma(connection, "application_id"),
                pragma(connection, "user_version"),
                lambda: schema_parts(connection),
            )

    def check_bytes(self, data: bytes) -> None:
        """Check the first page of the file with the bytes ``data``, before SQLite gets it.

        Raises EvidenceError when the file is none of this kind and version. What is behind the
        first page is not looked at.
        """
        page = read_first_page(data, kind=self.kind, max_objects=_MAX_OBJECTS)
        self._compare(page.application_id, page.user_version, lambda: page.objects)

    def _compare(
        self, application: int, version: int, objects: Callable[[], Sequence[bytes]]
    ) -> None:
        if application != self.application_id:
            raise EvidenceError(
                f"the file is no {self.kind}: it is marked as another application's",
                expected=f"application id 0x{self.application_id:08X} ({self.letters})",
                found=f"0x{application & 0xFFFFFFFF:08X}",
            )
        if version != self.version:
            raise EvidenceError(
                f"the {self.kind} has another schema version",
                expected=str(self.version),
                found=str(version),
                hint="use the version of tallystick that wrote it",
            )
        found = self.fingerprint(objects())
        if found != self.ddl_fingerprint:
            raise EvidenceError(
                f"the {self.kind}'s tables, indexes or triggers are not those of its version",
                expected=f"DDL fingerprint {self.ddl_fingerprint}",
                found=found,
                hint="somebody changed the schema: its rows prove nothing",
            )

    def require_library(self) -> None:
        """Raise UnavailableError unless the SQLite library of this Python can hold such a file."""
        capable = hasattr(sqlite3.Connection, "deserialize")
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE or not capable:
            raise UnavailableError(
                f"the SQLite library of this Python cannot hold a {self.kind}",
                expected="SQLite 3.37 or later, built with sqlite3_serialize",
                found=f"SQLite {sqlite3.sqlite_version}",
                hint="use a Python with a newer SQLite",
            )


@contextlib.contextmanager
def bounded(connection: sqlite3.Connection, steps: int) -> Iterator[None]:
    """End what SQLite does for the block after about ``steps`` of its machine, with an error.

    That is one of DATABASE_ERRORS, named SQLITE_INTERRUPT.
    """
    # All in C: an exception out of a handler in Python, such as a signal's, would be lost.
    calls = itertools.chain(itertools.repeat(0, steps // _STEPS_A_CALL), itertools.repeat(1))
    connection.set_progress_handler(functools.partial(next, calls), _STEPS_A_CALL)
    try:
        yield
    finally:
        connection.set_progress_handler(None, 0)


def schema_parts(connection: sqlite3.Connection) -> tuple[bytes, ...]:
    """Return type, name, table and SQL of each object of the schema. Raises DATABASE_ERRORS."""
    rows = connection.execute(_OBJECTS, (_MAX_OBJECTS,))
    return tuple(value if isinstance(value, bytes) else b"" for row in rows for value in row)


def error_name(error: Exception) -> str:
    """Return SQLite's name of an error; its text may quote a hostile file, so it is not shown."""
    return getattr(error, "sqlite_errorname", "SQLITE_CORRUPT")


def pragma(connection: sqlite3.Connection, name: str) -> int:
    """Return the number that ``PRAGMA name`` gives. Raises DATABASE_ERRORS."""
    (value,) = connection.execute(f"PRAGMA {name}").fetchone()
    assert isinstance(value, int)
    return value
