"""Reading many files at once, each hashed as it was from its first byte to its last.

Hashing releases the interpreter's lock, so threads share the cores; what is left to Python for
each file is kept small (bench/bundle.py).
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Final, NamedTuple, Self

from tallystick.bundles.tree import (
    CHANGED,
    FILE_FLAGS,
    Listing,
    TreeProblemError,
    opened_below,
    require_plain,
    require_unchanged,
    why_unreadable,
)

BUFFER_BYTES: Final = 128 * 1024  # stays in a core's own cache between reading and hashing
MAX_THREADS: Final = 16
_EXECUTE: Final = 0o7111  # set-id, sticky, and anybody's right to execute
_BATCH: Final = 64  # files to a piece of work: small enough to share out, large enough to amortise
#: Called with each piece of a file, which it must not keep.
Sink = Callable[[memoryview], None]


class Content(NamedTuple):
    """What a file holds: the number of its bytes, and their sha256 in hex."""

    size: int
    sha256: str


class ReadFile(NamedTuple):
    """What was read of a file, and its mode."""

    content: Content
    mode: int


def usable_threads() -> int:
    """Return how many threads share the work: one for each core that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return min(cores, MAX_THREADS)


def read_content(
    descriptor: int, path: str, buffer: bytearray, sink: Sink | None = None
) -> ReadFile:
    """Hash the plain file behind ``descriptor``, from its start, and hand each piece to ``sink``.

    Raises TreeProblemError when it is not plain, or changes meanwhile; OSError.
    """
    before = os.fstat(descriptor)
    require_plain(before, path)
    left = size = before.st_size
    digest = hashlib.sha256()
    room = len(buffer)
    with memoryview(buffer) as view:
        while left:
            count = os.readv(descriptor, (buffer if left >= room else view[:left],))
            if not count:
                raise TreeProblemError(path, CHANGED)
            digest.update(view[:count])
            if sink is not None:
                sink(view[:count])
            left -= count
    after = os.fstat(descriptor)
    # The change time moves with every write, and with every change of mode and links.
    if (
        after.st_ctime_ns != before.st_ctime_ns
        or after.st_mtime_ns != before.st_mtime_ns
        or after.st_size != size
    ):
        raise TreeProblemError(path, CHANGED, hint="wait until nobody writes there")
    return ReadFile(Content(size, digest.hexdigest()), before.st_mode)


class HashedTree:
    """The files of a tree, being hashed by threads from the moment it is made.

    A context manager: leaving it stops what is not needed any more. So hashing goes on while the
    caller reads what the files should be, and ends when that turns out to be nothing.
    """

    def __init__(self, root: int, tree: Sequence[Listing]) -> None:
        self._root = root
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(usable_threads())
        self._work = [
            self._pool.submit(self._read, listing, start)
            for listing in tree
            for start in range(0, max(1, len(listing.files)), _BATCH)
        ]

    def require(self, declared: Mapping[str, Content]) -> None:
        """Hold every file to what ``declared`` says of its path.

        Raises TreeProblemError for the first in the order of the tree that differs, is executable,
        or changed, or whose directory changed since it was listed.
        """
        for work in self._work:
            done, problem = work.result()
            for path, (content, mode) in done:
                if mode & _EXECUTE:
                    raise TreeProblemError(
                        path,
                        f"it is executable, or has special bits (mode {mode & 0o7777:04o})",
                        hint="no file of a bundle is a program: chmod 644",
                    )
                if content != declared[path]:
                    raise TreeProblemError(path, _difference(content, declared[path]))
            if problem is not None:
                raise problem

    def _read(
        self, listing: Listing, start: int
    ) -> tuple[list[tuple[str, ReadFile]], TreeProblemError | None]:
        """Read a batch of a directory's files; return what was read before the first problem."""
        done: list[tuple[str, ReadFile]] = []
        prefix = f"{listing.path}/" if listing.path else ""
        buffer = bytearray(BUFFER_BYTES)
        try:
            with opened_below(self._root, listing.path) as directory:
                for name in listing.files[start : start + _BATCH]:
                    path = prefix + name
                    done.append((path, self._read_file(directory, name, path, buffer)))
                require_unchanged(directory, listing)
        except TreeProblemError as problem:
            return done, problem
        return done, None

    def _read_file(self, directory: int, name: str, path: str, buffer: bytearray) -> ReadFile:
        # One call for each file, without context managers: this is what a small file costs.
        try:
            descriptor = os.open(name.encode(), FILE_FLAGS, dir_fd=directory)
        except OSError as error:
            raise TreeProblemError(path, why_unreadable(error)) from error
        try:
            return read_content(descriptor, path, buffer, self._stop_check)
        except OSError as error:
            raise TreeProblemError(path, why_unreadable(error)) from error
        finally:
            os.close(descriptor)

    def _stop_check(self, piece: memoryview) -> None:
        if self._stopped.is_set():
            raise TreeProblemError("", "the reading was stopped")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._pool.shutdown(wait=True, cancel_futures=True)


def _difference(found: Content, wanted: Content) -> str:
    if found.size != wanted.size:
        return f"it has {found.size} bytes, and {wanted.size} are declared"
    return f"its sha256 is {found.sha256}, and {wanted.sha256} is declared"
