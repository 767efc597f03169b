"""Small file operations relative to an open directory: nothing is followed, nothing overwritten."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from tallystick.errors import EvidenceError, InputError

#: What to do about a file that a user named and that cannot be opened.
CHECK_PATH = "check the path, and that you may read what is there"


@contextlib.contextmanager
def opened_directory(path: Path) -> Iterator[int]:
    """Yield a descriptor of the directory ``path``, which must not be a symlink itself."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def real_directory(path: Path) -> Path:
    """Return ``path`` with every symlink on the way resolved, as far as that is possible.

    Unlike ``Path.resolve`` it raises nothing: links in a circle stay, and opening them fails.
    """
    return Path(os.path.realpath(path))


def write_new(directory: int, name: str, data: bytes, mode: int) -> None:
    """Create ``name`` with exactly ``mode`` and ``data``, durably: temporary name, sync, rename.

    Raises OSError; then neither the file nor the temporary one is left.
    """
    temporary = f".{name}.{secrets.token_hex(8)}"
    try:
        _create(directory, temporary, data, mode)
        if exists(directory, name):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        remove(directory, temporary)
        raise


def _create(directory: int, name: str, data: bytes, mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o600, dir_fd=directory)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fchmod(descriptor, mode)  # exact, whatever the umask is
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def exists(directory: int, name: str) -> bool:
    """Say whether anything, a dangling symlink included, has this name."""
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def remove(directory: int, name: str) -> None:
    """Remove a file if it is there."""
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=directory)


def read_plain(directory: int, name: str, *, max_bytes: int) -> tuple[bytes, os.stat_result]:
    """Return the bytes and status of a regular file that has one name and is no symlink.

    Raises EvidenceError for another kind of file or one beyond ``max_bytes``; OSError when it
    cannot be opened.
    """
    # O_NONBLOCK: a FIFO put in place of a member must not hang the reader.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        # Looked at before too: opening a device may do something, and a socket has no opening.
        _require_plain(name, os.stat(name, dir_fd=directory, follow_symlinks=False))
        descriptor = os.open(name, flags, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise EvidenceError(f"{name} is a symbolic link", expected="a regular file") from error
        raise
    try:
        info = os.fstat(descriptor)
        _require_plain(name, info)
        return _read_bounded(descriptor, name, max_bytes), info
    finally:
        os.close(descriptor)


def read_given(
    path: Path,
    *,
    max_bytes: int,
    what: str,
    pipe: Literal["refuse", "wait"] = "refuse",
    hint: str | None = None,
) -> bytes:
    """Return the bytes of the file that a user named, and of a larger one ``max_bytes`` + 1.

    Symlinks are followed. Nothing but a regular file is waited for, unless ``pipe`` says that one
    is meant: then whoever writes to it decides how long that takes. Raises InputError that begins
    with ``what`` and ends with ``hint``.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        if pipe == "wait" and stat.S_ISFIFO(os.stat(path).st_mode):
            flags &= ~os.O_NONBLOCK
        descriptor = os.open(path, flags)
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode) and not (pipe == "wait" and stat.S_ISFIFO(mode)):
                raise InputError(
                    f"{what} is no regular file",
                    expected="a regular file" + (" or a pipe" if pipe == "wait" else ""),
                    found=str(path),
                    hint=hint or "write it to a file first, and name that",
                )
            with open(descriptor, "rb", closefd=False) as file:
                return file.read(max_bytes + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InputError(
            f"{what} cannot be read",
            found=f"{path}: {os.strerror(error.errno or 0)}",
            hint=hint or CHECK_PATH,
        ) from None


def _require_plain(name: str, info: os.stat_result) -> None:
    if stat.S_ISLNK(info.st_mode):
        raise EvidenceError(f"{name} is a symbolic link", expected="a regular file")
    if not stat.S_ISREG(info.st_mode):
        raise EvidenceError(f"{name} is not a regular file", expected="a regular file")
    if info.st_nlink != 1:
        raise EvidenceError(
            f"{name} has other names (hard links)",
            expected="1 link",
            found=f"{info.st_nlink} links",
            hint="copy the set, and verify the copy",
        )


def _read_bounded(descriptor: int, name: str, max_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while chunk := os.read(descriptor, min(1 << 20, max_bytes + 1 - size)):
        chunks.append(chunk)
        size += len(chunk)
        if size > max_bytes:
            raise EvidenceError(
                f"{name} is too large", expected=f"at most {max_bytes} B", found="more"
            )
    return b"".join(chunks)
