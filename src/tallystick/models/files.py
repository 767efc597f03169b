"""Opening a model file without surprises, and telling whether it is still the same file."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tallystick.errors import InputError, UnavailableError

#: Called with what is being done, the bytes done so far, and the total (0: unknown).
Progress = Callable[[str, int, int], None]


def silent(what: str, done: int, total: int) -> None:
    """Ignore progress."""


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """What the kernel says about a file; any write to it changes at least one of these."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, descriptor: int) -> FileIdentity:
        """Return the identity of the file behind ``descriptor``, as it is now."""
        info = os.fstat(descriptor)
        return cls(info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    """Yield a read-only descriptor of the regular, non-empty file at ``path``; links are followed.

    Raises InputError for anything else: a FIFO or device is refused without waiting for it.
    """
    descriptor = _open(path)
    try:
        _require_regular(path, os.fstat(descriptor))
        yield descriptor
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            f"no such model file: {path}",
            hint="give the path of a .gguf file, or a name that `tallystick model ls` shows",
        ) from None
    except OSError as error:
        raise InputError(f"cannot open the model file {path}", found=error.strerror) from error
    except ValueError:  # a NUL character in the path
        raise InputError("the path of the model file is not usable") from None


def _require_regular(path: Path, info: os.stat_result) -> None:
    if stat.S_ISDIR(info.st_mode):
        raise InputError(
            f"{path} is a directory",
            expected="one .gguf file",
            hint="name the file in it; parts of a split model have to be joined first",
        )
    if not stat.S_ISREG(info.st_mode):
        raise InputError(f"{path} is not a regular file", expected="one .gguf file")
    if info.st_size == 0:
        raise InputError(
            f"{path} is an empty file", expected="a .gguf file", hint="download or copy it again"
        )


def sync_directory(path: Path) -> None:
    """Make renames and links within ``path`` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def move_into_place(partial: Path, final: Path) -> bool:
    """Give ``partial`` the name ``final`` unless something has that name; say whether it was done.

    Atomic, durable, never overwriting. Raises UnavailableError when the file system refuses.
    """
    try:
        _sync_file(partial)
        if not _link(partial, final):
            return False
        sync_directory(final.parent)
    except OSError as error:
        raise unavailable(final, error) from error
    return True


def _link(partial: Path, final: Path) -> bool:
    try:
        os.link(partial, final)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links: reserve the name, then replace our own file
        try:
            os.close(os.open(final, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            return False
        os.replace(partial, final)
        return True
    partial.unlink()
    return True


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unavailable(path: Path, error: OSError) -> UnavailableError:
    """Return the UnavailableError that says why ``path`` could not be written."""
    return UnavailableError(
        f"cannot write {path}",
        found=error.strerror or type(error).__name__,
        hint="make room and permission there, or set TALLYSTICK_HOME to another place",
    )
