"""An SQLite file in its directory: created whole, followed nowhere, only its owner's.

Every check goes through a descriptor of the directory. The database file itself is never opened
here while SQLite has it open: closing a second descriptor would drop SQLite's locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tallystick.contracts.layout import PRIVATE_MODE
from tallystick.errors import EvidenceError, UnavailableError
from tallystick.store.files import exists, remove, write_new

# What SQLite keeps beside the database; with the last two the database alone is not the truth.
_SHARED_MEMORY: Final = "-shm"
PENDING_SUFFIXES: Final = ("-wal", "-journal")
_POLL_SECONDS: Final = 0.01
_DESCRIPTORS: Final = Path("/proc/self/fd")


def create_missing(
    directory: int, name: str, image: Callable[[], bytes], *, kind: str, wait_seconds: float
) -> None:
    """Make the file ``name`` of ``image`` in ``directory`` unless something has that name.

    ``kind`` is what the file is called in errors. It appears whole or not at all, once, however
    many processes come here at a time. Raises OSError and UnavailableError.
    """
    if exists(directory, name):
        return
    with locked(directory, wait_seconds, kind=kind):
        if exists(directory, name):
            return
        for suffix in PENDING_SUFFIXES:
            if exists(directory, name + suffix):
                raise UnavailableError(
                    f"{name}{suffix} is there without its {kind}",
                    hint=f"put the {kind} back beside it, or choose another place",
                )
        _remove_unfinished(directory, name)
        write_new(directory, name, image(), PRIVATE_MODE)
        os.fsync(directory)


def require_at_rest(directory: int, name: str) -> None:
    """Require that nothing of SQLite's stands beside the file ``name``, which is then the truth.

    Raises UnavailableError when a process has it open, or left off in the middle.
    """
    for suffix in (_SHARED_MEMORY, *PENDING_SUFFIXES):
        if exists(directory, name + suffix):
            raise UnavailableError(
                f"{name} is not at rest",
                expected="one file",
                found=f"a {name}{suffix} beside it",
                hint="wait for the process that has it open; if that was killed, open the file for "
                "writing once, which completes or undoes what it left",
            )


def check_files(directory: int, name: str) -> None:
    """Check the kind, owner, mode and links of the file and of what SQLite keeps beside it.

    Raises FileNotFoundError when there is none, EvidenceError when a file is not a plain one
    of ours, mode 0600, with one name.
    """
    check_file(name, os.stat(name, dir_fd=directory, follow_symlinks=False))
    for suffix in (_SHARED_MEMORY, *PENDING_SUFFIXES):
        with contextlib.suppress(FileNotFoundError):
            beside = name + suffix
            check_file(beside, os.stat(beside, dir_fd=directory, follow_symlinks=False))


def check_file(name: str, info: os.stat_result) -> None:
    """Raise EvidenceError unless ``info`` is of a plain file of ours, mode 0600, with one name."""
    if not stat.S_ISREG(info.st_mode):
        raise EvidenceError(
            f"{name} is not a regular file",
            expected="a regular file",
            found="a symbolic link" if stat.S_ISLNK(info.st_mode) else "another kind of file",
        )
    if info.st_uid != os.geteuid():
        raise EvidenceError(
            f"{name} belongs to another user",
            expected=f"owner {os.geteuid()}",
            found=f"owner {info.st_uid}",
        )
    mode = stat.S_IMODE(info.st_mode)
    if mode != PRIVATE_MODE:
        raise EvidenceError(
            f"{name} has another mode",
            expected=f"mode {PRIVATE_MODE:04o}",
            found=f"mode {mode:04o}",
        )
    if info.st_nlink != 1:
        raise EvidenceError(
            f"{name} has other names (hard links)",
            expected="1 link",
            found=f"{info.st_nlink} links",
        )


def database_path(directory: int, path: Path) -> bytes:
    """Return the path that SQLite is to open: through the descriptor where the system has that."""
    through = _DESCRIPTORS / str(directory)
    return os.fsencode((through if through.exists() else path.parent.absolute()) / path.name)


def require_opened(directory: int, name: str) -> None:
    """Check that what this process has opened is the file ``name`` of ``directory``.

    SQLite resolves every path to its real spelling and opens that, so a directory that was swapped
    in between would otherwise go unnoticed. Raises EvidenceError.
    """
    wanted = os.stat(name, dir_fd=directory, follow_symlinks=False)
    listing = _DESCRIPTORS if _DESCRIPTORS.exists() else Path("/dev/fd")
    for number in os.listdir(listing):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(int(number)), wanted):
                return
    raise EvidenceError(
        f"{name} was replaced while it was opened",
        expected="the file that was checked",
        found="another file",
    )


@contextlib.contextmanager
def locked(directory: int, wait_seconds: float, *, kind: str) -> Iterator[None]:
    """Hold the lock of ``directory``, where a ``kind`` is created and closed one at a time.

    Raises UnavailableError when it is not free within ``wait_seconds``.
    """
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"another process holds the {kind}'s directory",
                    expected=f"it to be released within {wait_seconds:g} s",
                    hint="wait for the other process, or end it",
                ) from None
            time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        fcntl.flock(directory, fcntl.LOCK_UN)


def _remove_unfinished(directory: int, name: str) -> None:
    """Remove what a process that was killed while it created the file left behind."""
    unfinished = re.compile(re.escape(f".{name}.") + "[0-9a-f]{16}")
    for other in os.listdir(directory):
        if unfinished.fullmatch(other):
            remove(directory, other)
