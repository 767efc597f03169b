"""Directories of sets that are not complete yet: held while their process lives, else swept.

Who makes one holds an exclusive flock on it, which the kernel takes away with the process. So a
lock that can be had proves that nobody works there any more, wherever that process was and however
it ended. Making and sweeping take turns, by a lock on the folder that holds them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import Final

from tallystick.store.flocks import alone, lock
from tallystick.store.home import make_private_dirs, unavailable

_PREFIX: Final = ".pending-"
_NAME: Final = re.compile(re.escape(_PREFIX) + "[0-9a-f]{16}")


def pending_path(parent: Path) -> Path:
    """Return a new name for a pending directory in ``parent``."""
    return parent / f"{_PREFIX}{secrets.token_hex(8)}"


def make_pending(directory: Path) -> tuple[tuple[Path, ...], int]:
    """Create the pending ``directory``, and its parents; return what was created, and its lock.

    The lock is a descriptor, for the caller to close. Raises OSError; then nothing is left.
    """
    parents = make_private_dirs(directory.parent)
    try:
        with alone(directory.parent):
            created = make_private_dirs(directory)
            return (*parents, *created), _held(directory)
    except OSError:
        for path in reversed((*parents, directory)):
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


def sweep(parent: Path) -> int:
    """Remove the pending directories of processes that are gone; return how many.

    Raises UnavailableError when ``parent`` is there and cannot be looked at.
    """
    swept = 0
    try:
        with alone(parent) as folder:
            for name in os.listdir(folder):
                if _NAME.fullmatch(name) and _is_left(folder, name):
                    shutil.rmtree(name, dir_fd=folder)
                    swept += 1
    except FileNotFoundError:
        pass
    except OSError as error:
        raise unavailable(parent, error) from error
    return swept


def _held(directory: Path) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(directory, flags)
    try:
        lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _is_left(folder: int, name: str) -> bool:
    """Say whether nobody holds the pending directory ``name``."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=folder)
    except OSError:
        return False  # no directory of ours
    try:
        return lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
