"""The DDL fingerprint by a second implementation, and as the specification prints it."""

from __future__ import annotations

import re
import sqlite3
from hashlib import sha3_256
from importlib import resources
from pathlib import Path

from tallystick.store.state.schema import DDL_FINGERPRINT
from tests.golden.reference import framed

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spec" / "state-store.md"


def test_the_fingerprint() -> None:
    statements = resources.files("tallystick.store.state").joinpath("schema.sql").read_text()
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(statements)
        objects = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master")
        parts = [(text or "").encode() for row in sorted(objects) for text in row]
    finally:
        connection.close()

    assert len(parts) == 4 * 5  # two tables, three indexes that SQLite makes
    computed = sha3_256(framed("palw.state-ddl", 4, parts)).hexdigest()
    printed = re.findall(r"\| DDL fingerprint \| `([0-9a-f]{64})` \|", PAGE.read_text())
    assert [computed] == printed == [DDL_FINGERPRINT]


def test_the_printed_statements_give_the_fingerprint() -> None:
    (printed,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(printed)
        objects = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master")
        parts = [(text or "").encode() for row in sorted(objects) for text in row]
    finally:
        connection.close()

    assert sha3_256(framed("palw.state-ddl", 4, parts)).hexdigest() == DDL_FINGERPRINT
