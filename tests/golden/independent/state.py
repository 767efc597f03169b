"""The state store and the state tree. From docs/spec/{state-store,state-tree}.md."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from hashlib import sha3_256, sha256
from typing import Any

from blake3 import blake3

from tests.golden.independent.basics import framed, merkle_root, require, same, u32, u64

FINGERPRINT = "35f60d10a3a4aadbe27baa38bd21762d3a0a6d8577cd38ea6b8b535ffc8f5a08"
JOB = ("network_id", "job_nullifier", "request_commitment", "job_class", "slots")
RECEIPT = (
    "receipt_id", "network_id", "job_nullifier", "replica_slot", "execution_nullifier",
    "signed_receipt", "bundle_id", "timestamp_ms", "issued_epoch", "expires_epoch",
    "verification_epoch",
)  # fmt: skip


def restore(data: bytes, expected: dict[str, Any]) -> None:
    """Restoring: the store accepted exactly this receipt."""
    require(data[:16] == b"SQLite format 3\0" and data[18:20] == b"\2\2", "state store: header")
    connection = sqlite3.connect(":memory:")
    try:
        # A database in memory has no WAL, and a store at rest has nothing in one.
        connection.deserialize(data[:18] + b"\1\1" + data[20:])
        _check_identity(connection, len(data))
        _check_row(connection, "receipts", RECEIPT, "receipt_id", expected)
        _check_row(connection, "jobs", JOB, "job_nullifier", expected)
    except (sqlite3.Error, UnicodeDecodeError):
        require(False, "state store: damaged")
    finally:
        connection.close()


def _check_identity(connection: sqlite3.Connection, size: int) -> None:
    def pragma(name: str) -> Any:
        return connection.execute(f"PRAGMA {name}").fetchone()

    marks = [pragma(name)[0] for name in ("application_id", "user_version", "encoding")]
    same("state store: marks", [0x50414C57, 4, "UTF-8"], marks)
    parts: list[bytes] = []
    rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY 1, 2")
    for row in rows:
        parts += [b"" if value is None else value.encode() for value in row]
    found = sha3_256(framed("palw.state-ddl", 4, parts)).hexdigest()
    same("state store: DDL fingerprint", FINGERPRINT, found)
    same("state store: pages", size, pragma("page_count")[0] * pragma("page_size")[0])
    same("state store: integrity", "ok", pragma("integrity_check")[0])
    require(pragma("foreign_key_check") is None, "state store: a receipt without its job")


def _check_row(
    connection: sqlite3.Connection,
    table: str,
    columns: tuple[str, ...],
    key: str,
    expected: dict[str, Any],
) -> None:
    query = f"SELECT {', '.join(columns)} FROM {table} WHERE {key} = ?"
    row = connection.execute(query, (expected[key],)).fetchone()
    require(row is not None, f"state store: no row in {table}")
    for column, value in zip(columns, row, strict=True):
        same(f"state store: {column}", expected[column], value)


def leaves(
    blind: bytes,
    shape: tuple[int, int, int],
    row: Callable[[int, int], bytes],
    credential: bytes = b"",
) -> list[bytes]:
    """State tree: the leaves of ``shape`` = prompt tokens, sampled tokens, layers."""
    prompt, sampled, layers = shape
    found = []
    for position in range(prompt + sampled - 1):
        for layer in range(layers + 1 if position >= prompt - 1 else layers - 1):
            salt = blake3(u32(layer) + u64(position) + credential, key=blind).digest()
            parts = [salt, u32(layer), u64(position), blake3(row(layer, position)).digest()]
            leaf = b"\0" + framed("tallystick.state-leaf", 1, parts)
            found.append(sha256(leaf).digest())
    return found


def leaf_count(prompt: int, sampled: int, layers: int) -> int:
    return (prompt - 1) * (layers - 1) + sampled * (layers + 1)


__all__ = ["leaf_count", "leaves", "merkle_root", "restore"]
