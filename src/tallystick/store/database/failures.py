"""Why an SQLite file or its place cannot be used, in words; nothing of its content is shown."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tallystick.errors import EvidenceError, UnavailableError
from tallystick.store.database.marks import DATABASE_ERRORS, error_name

_FOREIGN: Final = "move that file away and keep it, or choose another place"
_REASONS: Final = {
    "SQLITE_BUSY": ("locked by another process", "wait for the other process, or end it"),
    "SQLITE_LOCKED": ("locked by another process", "wait for the other process, or end it"),
    "SQLITE_FULL": ("no room is left", "make room there"),
    "SQLITE_READONLY": ("it is read-only", "make it writable, or choose another place"),
    "SQLITE_CANTOPEN": ("it cannot be opened", "look at the modes and the room there"),
    "SQLITE_IOERR": ("reading or writing failed", "make room there, and check the disk"),
    "SQLITE_NOTADB": ("it is no SQLite database", _FOREIGN),
    "SQLITE_CORRUPT": ("it is damaged", _FOREIGN),
    "SQLITE_INTERRUPT": ("reading it takes more work than any of ours", _FOREIGN),
}


@contextlib.contextmanager
def usable(kind: str, path: Path) -> Iterator[None]:
    """Turn what makes the ``kind`` at ``path`` or its place unusable into UnavailableError."""
    try:
        yield
    except EvidenceError as error:
        raise UnavailableError(
            error.message, expected=error.expected, found=error.found, hint=error.hint or _FOREIGN
        ) from None
    except DATABASE_ERRORS as error:
        raise database_unavailable(kind, path, error) from None
    except OSError as error:
        raise UnavailableError(
            f"the {kind} {path} cannot be used",
            found=error.strerror or type(error).__name__,
            hint="choose another place, or make room and permission there",
        ) from None


def database_unavailable(kind: str, path: Path, error: Exception) -> UnavailableError:
    """Return the UnavailableError for one of DATABASE_ERRORS."""
    name = error_name(error)
    primary = "_".join(name.split("_")[:2])
    reason, hint = _REASONS.get(primary, ("SQLite refuses", "choose another place"))
    return UnavailableError(f"the {kind} {path} cannot be used: {reason}", found=name, hint=hint)
