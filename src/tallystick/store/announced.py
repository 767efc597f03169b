"""Notes that outlive the process that wrote them, of what it was about to do.

A note is held, by an exclusive flock, as long as its process lives. So a lock that can be had
proves that nobody will do any more what the note says (docs/spec/artifact-set.md#writing).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tallystick.contracts.layout import PRIVATE_MODE
from tallystick.errors import EvidenceError
from tallystick.store.files import read_plain, write_new
from tallystick.store.flocks import alone, lock
from tallystick.store.home import ensure_private_dir, unavailable

FOLDER: Final = ".publishing"
MAX_NOTE: Final = 4096
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Note:
    """A note that this process holds; leaving it as a context manager lets go of it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor: int | None = descriptor

    @property
    def name(self) -> str:
        """The name of the note."""
        return self._path.name

    def withdraw(self) -> None:
        """Remove the note: what it says was done, or never will be. Raises UnavailableError."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise unavailable(self._path, error) from error
        finally:
            self.leave()

    def leave(self) -> None:
        """Let go of the note, if that has not been done: others may find it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.leave()


def announce(parent: Path, name: str, data: bytes) -> Note:
    """Write a note of at most 4096 bytes for all who look into ``parent``, durably, and hold it.

    Raises UnavailableError; then there is no note.
    """
    folder = ensure_private_dir(parent / FOLDER)
    path = folder / name
    try:
        # Alone: nobody sees the note before it is held.
        with alone(folder) as directory:
            write_new(directory, name, data, PRIVATE_MODE)
            descriptor = os.open(name, _FLAGS, dir_fd=directory)
            lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fsync(directory)
        return Note(path, descriptor)
    except OSError as error:
        raise unavailable(path, error) from error


def left(parent: Path) -> Iterator[tuple[Note, bytes]]:
    """Yield, and hold, each note in ``parent`` whose process is gone; each once, in no order.

    A file that is no note has no bytes. Raises UnavailableError when ``parent`` cannot be looked
    at.
    """
    folder = parent / FOLDER
    try:
        with alone(folder) as directory:
            names = os.listdir(directory)
            for name in names:
                if name.startswith("."):  # half written: notes are made under this lock
                    os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        return
    except OSError as error:
        raise unavailable(folder, error) from error
    for name in names:
        if (note := _held(folder, name)) is not None:
            with note:
                yield note, _data(folder, name)


def _held(folder: Path, name: str) -> Note | None:
    """Return the note, now ours; None when its process lives, or it is gone."""
    try:
        descriptor = os.open(folder / name, _FLAGS)
    except OSError:
        return None
    try:
        # A file without a name was withdrawn between these two calls.
        if lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB) and os.fstat(descriptor).st_nlink:
            return Note(folder / name, descriptor)
    except BlockingIOError:
        pass
    os.close(descriptor)
    return None


def _data(folder: Path, name: str) -> bytes:
    try:
        with alone(folder) as directory:
            return read_plain(directory, name, max_bytes=MAX_NOTE)[0]
    except (OSError, EvidenceError):
        return b""
