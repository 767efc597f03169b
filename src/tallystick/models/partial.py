"""The unfinished file of a download or transform: locked, resumable, moved when it is right."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Self

from tallystick.errors import UnavailableError
from tallystick.models.files import unavailable
from tallystick.store.home import ensure_private_dir

_ATTEMPTS = 5


class PartialFile:
    """``<final>.partial``, held under an exclusive lock while it is in use.

    As a context manager it opens or creates the file; what is in it stays there when the block is
    left, unless :meth:`remove` was called. Writing errors (a full disk) are UnavailableErrors.
    """

    def __init__(self, final: Path) -> None:
        self.path = final.with_name(final.name + ".partial")
        self.fd = -1

    def __enter__(self) -> Self:
        ensure_private_dir(self.path.parent)
        for _ in range(_ATTEMPTS):
            self.fd = self._open()
            if self._still_named():
                return self
            self._close()  # its former holder moved it away between our open and our lock
        raise UnavailableError(f"{self.path} keeps being moved", hint="try again")

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(self.path, flags, 0o600)
        except OSError as error:
            raise unavailable(self.path, error) from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UnavailableError(f"{self.path} is not a regular file", hint="remove it")
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise UnavailableError(
                f"{self.path} is being written by another process",
                hint="wait until it is done, then try again",
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _still_named(self) -> bool:
        try:
            named = os.stat(self.path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        held = os.fstat(self.fd)
        return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)

    @property
    def size(self) -> int:
        """Bytes in the file now."""
        return os.fstat(self.fd).st_size

    def append(self, data: bytes) -> None:
        """Write ``data`` at the end."""
        position = self.size
        view = memoryview(data)
        try:
            while view:
                written = os.pwrite(self.fd, view, position)
                position += written
                view = view[written:]
        except OSError as error:
            raise unavailable(self.path, error) from error

    def clear(self) -> None:
        """Make the file empty."""
        os.ftruncate(self.fd, 0)

    def remove(self) -> None:
        """Take the name away; the lock holds until the block is left."""
        self.path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self.fd >= 0 and self.size == 0 and self._still_named():
                self.remove()  # nothing to resume
        finally:
            self._close()
