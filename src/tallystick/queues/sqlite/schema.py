"""What makes an SQLite file a queue, and the statements that its rows are read and written by."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from types import MappingProxyType
from typing import Final

from tallystick.canonical.hashing import frame
from tallystick.store.database.marks import Marks

QUEUE_NAME: Final = "queue.sqlite3"
_NAMED: Final = re.compile(r"^-- name: (\w+)\n(.*?;)$", re.MULTILINE | re.DOTALL)


def fingerprint(parts: Sequence[bytes]) -> str:
    """Return the DDL fingerprint of a schema's objects: 64 hex digits."""
    return hashlib.sha3_256(frame("tallystick.queue-ddl", 1, parts)).hexdigest()


MARKS: Final = Marks(
    kind="queue",
    letters="TLYQ",
    application_id=0x544C5951,
    version=1,
    package=__package__,
    fingerprint=fingerprint,
    # Of schema.sql; a test recomputes it.
    ddl_fingerprint="a44d2f4b4479dcf79387faa7bdf75eb3faddb8bd2c94253f8fbd090da196a1a0",
)

SETTINGS: Final = (
    "PRAGMA foreign_keys = ON",
    "PRAGMA synchronous = FULL",
    "PRAGMA fullfsync = ON",
    "PRAGMA secure_delete = ON",
    "PRAGMA trusted_schema = OFF",
    "PRAGMA cell_size_check = ON",
)


def _queries() -> Mapping[str, str]:
    text = resources.files(__package__).joinpath("queries.sql").read_text(encoding="utf-8")
    return MappingProxyType(dict(_NAMED.findall(text)))


QUERIES: Final = _queries()
