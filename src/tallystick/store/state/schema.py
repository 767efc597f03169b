"""What makes an SQLite file a state store: marks, fingerprint, first image."""

from __future__ import annotations

import hashlib
import sqlite3
from importlib import resources
from typing import Final

from tallystick.canonical.hashing import frame
from tallystick.contracts.layout import STATE
from tallystick.errors import EvidenceError, UnavailableError

STATE_NAME: Final = STATE.name("")  # of no set in particular
APPLICATION_ID: Final = 0x50414C57  # "PALW"
SCHEMA_VERSION: Final = 4
# SHA3-256 of the framed objects of schema.sql; a test recomputes it.
DDL_FINGERPRINT: Final = "35f60d10a3a4aadbe27baa38bd21762d3a0a6d8577cd38ea6b8b535ffc8f5a08"
HEADER_MAGIC: Final = b"SQLite format 3\0"
# Where the file header says how the file is written and read: 1 rollback journal, 2 WAL.
JOURNAL_BYTES: Final = slice(18, 20)
WAL_MARK: Final = b"\x02\x02"
ROLLBACK_MARK: Final = b"\x01\x01"
# Python cannot always decode the text of SQLite's error, which quotes the schema of the file.
DATABASE_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)
_PAGE_BYTES: Final = 4096
_OLDEST_SQLITE: Final = (3, 37, 0)  # STRICT tables
# More objects than any state store has: a hostile schema is not read to its end.
_MAX_OBJECTS: Final = 64
_OBJECTS: Final = (
    "SELECT CAST(type AS BLOB), CAST(name AS BLOB), CAST(tbl_name AS BLOB), CAST(sql AS BLOB) "
    "FROM sqlite_master ORDER BY type, name LIMIT ?"
)


def error_name(error: Exception) -> str:
    """Return SQLite's name of an error; its text may quote a hostile file, so it is not shown."""
    return getattr(error, "sqlite_errorname", "SQLITE_CORRUPT")


def require_library() -> None:
    """Raise UnavailableError unless the SQLite library of this Python can hold a state store."""
    capable = hasattr(sqlite3.Connection, "deserialize")
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE or not capable:
        raise UnavailableError(
            "the SQLite library of this Python cannot hold a state store",
            expected="SQLite 3.37 or later, built with sqlite3_serialize",
            found=f"SQLite {sqlite3.sqlite_version}",
            hint="use a Python with a newer SQLite",
        )


def ddl() -> str:
    """Return the statements that make the tables."""
    return resources.files(__package__).joinpath("schema.sql").read_text(encoding="utf-8")


def first_image() -> bytes:
    """Return the bytes of a state store without rows, in WAL mode."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.executescript(ddl())
        image = bytearray(connection.serialize())
    finally:
        connection.close()
    image[JOURNAL_BYTES] = WAL_MARK  # a database in memory has no WAL, so the mark is set here
    return bytes(image)


def fingerprint(connection: sqlite3.Connection) -> str:
    """Return the DDL fingerprint of an open database: 64 hex digits. Raises DATABASE_ERRORS."""
    parts: list[bytes] = []
    for row in connection.execute(_OBJECTS, (_MAX_OBJECTS,)):
        parts += (value if isinstance(value, bytes) else b"" for value in row)
    return hashlib.sha3_256(frame("palw.state-ddl", 4, parts)).hexdigest()


def check_identity(connection: sqlite3.Connection) -> None:
    """Check application id, schema version and DDL fingerprint of an open database.

    Raises EvidenceError when it is not a state store of this version, DATABASE_ERRORS when it
    cannot be read.
    """
    application = _pragma(connection, "application_id")
    if application != APPLICATION_ID:
        raise EvidenceError(
            "the file is no state store: it is marked as another application's",
            expected=f"application id 0x{APPLICATION_ID:08X} (PALW)",
            found=f"0x{application & 0xFFFFFFFF:08X}",
        )
    version = _pragma(connection, "user_version")
    if version != SCHEMA_VERSION:
        raise EvidenceError(
            "the state store has another schema version",
            expected=str(SCHEMA_VERSION),
            found=str(version),
            hint="use the version of tallystick that wrote it",
        )
    found = fingerprint(connection)
    if found != DDL_FINGERPRINT:
        raise EvidenceError(
            "the state store's tables, indexes or triggers are not those of its version",
            expected=f"DDL fingerprint {DDL_FINGERPRINT}",
            found=found,
            hint="somebody changed the schema: its rows prove nothing",
        )


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    (value,) = connection.execute(f"PRAGMA {name}").fetchone()
    assert isinstance(value, int)
    return value
