"""sha256 of model files, and a cache of it that is safe to delete and hard to fool.

A cached digest is found by device, inode, size, mtime and ctime in nanoseconds. It is stored only
when the file had been left alone for two seconds before the hash began: a later write within the
same tick of the file system's clock could not be told apart otherwise.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tallystick.errors import InputError, TallystickError
from tallystick.models.files import FileIdentity, Progress, silent
from tallystick.store.home import ensure_private_dir

_CHUNK: Final = 4 * 1024 * 1024
_REPORT_EVERY: Final = 64 * 1024 * 1024
_QUIET_NS: Final = 2_000_000_000
_BUSY_SECONDS: Final = 5.0
_PASSING: Final = frozenset(
    (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
    )
)
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS digests ("
    "device TEXT, inode TEXT, size TEXT, mtime_ns TEXT, ctime_ns TEXT, digest TEXT NOT NULL, "
    "PRIMARY KEY (device, inode)) WITHOUT ROWID"
)
_FIND: Final = (
    "SELECT digest FROM digests "
    "WHERE device = ? AND inode = ? AND size = ? AND mtime_ns = ? AND ctime_ns = ?"
)
_STORE: Final = "INSERT OR REPLACE INTO digests VALUES (?, ?, ?, ?, ?, ?)"


@dataclass(frozen=True, slots=True)
class HashedFile:
    """A file's digest and the identity it had all the while it was hashed."""

    digest: str
    identity: FileIdentity


def hash_descriptor(descriptor: int, *, progress: Progress = silent) -> HashedFile:
    """Return the sha256 of the file behind ``descriptor``, read from its start.

    A file that changes meanwhile is hashed a second time, then refused with InputError. So is an
    empty one. The descriptor's own position is neither used nor moved.
    """
    for _ in range(2):
        before = FileIdentity.of(descriptor)
        if before.size == 0:
            raise InputError("empty file", hint="download or copy the model again")
        digest = _hash_once(descriptor, before.size, progress)
        if FileIdentity.of(descriptor) == before:
            return HashedFile(digest, before)
    raise InputError(
        "the model file keeps changing while it is hashed",
        hint="wait until the copy or download is finished",
    )


def _hash_once(descriptor: int, size: int, progress: Progress) -> str:
    digest = hashlib.sha256()
    buffer = bytearray(_CHUNK)
    view = memoryview(buffer)
    done = reported = 0
    while count := os.preadv(descriptor, [buffer], done):
        digest.update(view[:count])
        done += count
        if done - reported >= _REPORT_EVERY:
            progress("hashing", done, size)
            reported = done
    progress("hashing", done, size)
    return f"sha256:{digest.hexdigest()}"


class DigestCache:
    """Digests of files that were hashed before, in one SQLite file that may vanish at any time."""

    def __init__(self, home: Path, *, clock: Callable[[], int] = time.time_ns) -> None:
        self._path = home / "cache" / "digests.sqlite3"
        self._clock = clock

    def digest_of(self, descriptor: int, *, progress: Progress = silent) -> HashedFile:
        """Return the digest of the file behind ``descriptor``, from the cache where it is safe.

        Raises InputError as :func:`hash_descriptor` does; trouble with the cache is no error.
        """
        identity = FileIdentity.of(descriptor)
        known = self._find(identity)
        if known is not None and identity.size:
            return HashedFile(known, identity)
        started = self._clock()
        hashed = hash_descriptor(descriptor, progress=progress)
        newest = max(hashed.identity.mtime_ns, hashed.identity.ctime_ns)
        if started - newest >= _QUIET_NS:
            self._store(hashed)
        return hashed

    def _find(self, identity: FileIdentity) -> str | None:
        if not self._path.exists():
            return None
        row = self._ask(_FIND, _key(identity))
        known = None if row is None else row[0]
        return known if isinstance(known, str) and _DIGEST.fullmatch(known) else None

    def _store(self, hashed: HashedFile) -> None:
        self._ask(_STORE, (*_key(hashed.identity), hashed.digest))

    def _ask(self, statement: str, values: tuple[str, ...]) -> tuple[object, ...] | None:
        """Run one statement and return its first row; None also when the cache is of no use.

        A file that is not a sound database is removed, so that the next use makes a new one.
        """
        try:
            ensure_private_dir(self._path.parent)
            database = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)
        except (TallystickError, OSError, sqlite3.Error):
            return None
        try:
            database.execute(_TABLE)
            row: tuple[object, ...] | None = database.execute(statement, values).fetchone()
        except sqlite3.DatabaseError as error:
            if not _passes(error):
                self._discard()
            return None
        finally:
            database.close()
        return row

    def _discard(self) -> None:
        for suffix in ("", "-journal", "-wal", "-shm"):
            with contextlib.suppress(OSError):
                os.unlink(f"{self._path}{suffix}")


def _passes(error: sqlite3.DatabaseError) -> bool:
    """Say whether the trouble is the moment's (busy, full, read-only), not the file's."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in _PASSING


def _key(identity: FileIdentity) -> tuple[str, ...]:
    # Texts: device and inode numbers may need 64 unsigned bits, SQLite's integers are signed.
    return (
        str(identity.device),
        str(identity.inode),
        str(identity.size),
        str(identity.mtime_ns),
        str(identity.ctime_ns),
    )
