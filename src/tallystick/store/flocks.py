"""Locks that the kernel takes away with the process that held them, however it ended."""

from __future__ import annotations

import contextlib
import errno
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tallystick.store.files import opened_directory

# File systems over a network that cannot lock: what was left there stays.
_NO_LOCKS: Final = frozenset({errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS})


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[int]:
    """Yield a descriptor of ``folder`` while no other process has it this way. Raises OSError."""
    with opened_directory(folder) as descriptor:
        lock(descriptor, fcntl.LOCK_EX)  # others hold it for moments only
        yield descriptor  # closing it releases


def lock(descriptor: int, how: int) -> bool:
    """Lock; say whether this file system can. Raises BlockingIOError when another has it."""
    try:
        fcntl.flock(descriptor, how)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return False
        raise
    return True
