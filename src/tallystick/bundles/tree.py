"""A directory tree as it is on disk, without following anything (docs/spec/bundles.md#tree).

Names are bytes on disk and are opened as such: the process's locale has no say.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tallystick.contracts.dataset import MAX_FILES
from tallystick.contracts.paths import path_problem, show_path
from tallystick.models.files import FileIdentity

_DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a FIFO that took a file's place must not hang the reader.
FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
#: Manifest, model reference, and as many other files and directories as a manifest may declare.
MAX_ENTRIES: Final = 2 * MAX_FILES
CHANGED: Final = "it changed while it was read"


class TreeProblemError(Exception):
    """Something on disk that no bundle has; the caller says whose fault that is.

    ``path`` is the place from the root, "" for the root itself.
    """

    def __init__(self, path: str, problem: str, *, hint: str | None = None) -> None:
        super().__init__(problem)
        self.path = path
        self.problem = problem
        self.hint = hint

    @property
    def message(self) -> str:
        """Say which place it is, escaped."""
        return f"{show_path(self.path) if self.path else 'the directory'}: {self.problem}"


@dataclass(frozen=True, slots=True)
class Listing:
    """One directory: its path ("" for the root), who it was, the names of its files, sorted."""

    path: str
    identity: FileIdentity
    files: tuple[str, ...]

    def paths(self) -> Iterator[str]:
        """Yield the path of each file from the root."""
        for name in self.files:
            yield f"{self.path}/{name}" if self.path else name


@contextlib.contextmanager
def opened_root(path: Path) -> Iterator[int]:
    """Yield a descriptor of the directory ``path``, which is no symlink itself. Raises OSError."""
    descriptor = os.open(path, _DIRECTORY_FLAGS)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def opened_below(root: int, path: str) -> Iterator[int]:
    """Yield a descriptor of the directory ``path`` below ``root``; no component is followed."""
    descriptor = os.dup(root)
    try:
        for name in path.split("/") if path else ():
            inner = os.open(name.encode("utf-8"), _DIRECTORY_FLAGS, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    except OSError as error:
        raise TreeProblemError(path, why_unreadable(error)) from error
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def opened_file(directory: int, name: str, path: str) -> Iterator[int]:
    """Yield a descriptor of the plain file ``name`` in ``directory``; ``path`` is for errors."""
    try:
        descriptor = os.open(name.encode("utf-8"), FILE_FLAGS, dir_fd=directory)
    except OSError as error:
        raise TreeProblemError(path, why_unreadable(error)) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def require_plain(info: os.stat_result, path: str) -> None:
    """Raise TreeProblemError unless ``info`` is of a regular file with one name."""
    if not stat.S_ISREG(info.st_mode):
        raise TreeProblemError(path, "it is not a regular file")
    if info.st_nlink != 1:
        raise TreeProblemError(
            path,
            f"it has {info.st_nlink} names (hard links)",
            hint="copy the directory without links, and use the copy",
        )


def list_tree(root: int, skip: frozenset[str] = frozenset()) -> tuple[Listing, ...]:
    """Return every directory below ``root``, the root first, then depth first by name.

    Only directories and regular files are accepted, under paths that a bundle may have. ``skip``
    names what is not looked at in the root. Raises TreeProblemError.
    """
    found: list[Listing] = []
    entries = 0
    waiting = [""]
    while waiting:
        path = waiting.pop()
        with opened_below(root, path) as directory:
            listing, below = _list(directory, path, skip if not path else frozenset())
        entries += len(listing.files) + len(below)
        if entries > MAX_ENTRIES:
            raise TreeProblemError("", f"it has more than {MAX_ENTRIES} files and directories")
        found.append(listing)
        waiting += reversed(below)
    return tuple(found)


def _list(directory: int, path: str, skip: frozenset[str]) -> tuple[Listing, list[str]]:
    identity = FileIdentity.of(directory)
    files: list[str] = []
    below: list[str] = []
    with os.scandir(directory) as entries:
        for count, entry in enumerate(entries):
            if count > MAX_ENTRIES:
                raise TreeProblemError(path, f"it has more than {MAX_ENTRIES} entries")
            name = os.fsencode(entry.name).decode("utf-8", "surrogateescape")
            if name in skip:
                continue
            inner = f"{path}/{name}" if path else name
            problem = path_problem(inner)
            if problem is not None:
                raise TreeProblemError(inner, problem, hint="rename it")
            if entry.is_dir(follow_symlinks=False):
                below.append(inner)
            elif entry.is_file(follow_symlinks=False):
                files.append(name)
            else:
                raise TreeProblemError(inner, _other_kind(entry))
    return Listing(path, identity, tuple(sorted(files))), sorted(below)


def _other_kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "it is a symbolic link"
    mode = entry.stat(follow_symlinks=False).st_mode
    kinds = ((stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"), (stat.S_ISBLK, "a device"))
    return f"it is {next((name for is_kind, name in kinds if is_kind(mode)), 'a device')}"


def require_unchanged(directory: int, listing: Listing) -> None:
    """Raise TreeProblemError when a directory is not as it was listed."""
    if FileIdentity.of(directory) != listing.identity:
        raise TreeProblemError(listing.path, CHANGED, hint="wait until nobody writes there")


def why_unreadable(error: OSError) -> str:
    """Say why something could not be opened or read."""
    if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENOTDIR):
        return "it is a symbolic link, or lies behind one"
    if error.errno == errno.ENOENT:
        return "it is missing"
    return f"it cannot be read ({error.strerror})"
