"""Reading many files at once, each hashed as it was from its first byte to its last.

Hashing releases the interpreter's lock, so threads share the cores: as many as there are cores,
the caller's among them, for each one more takes the lock from the others (bench/bundle.py).
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
_BATCH: Final = 64  # files to a piece of work at most: more would not amortise better
_PIECES: Final = 8  # pieces of work for each thread at least, so that all end together
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


@dataclass(slots=True)
class _Work:
    """Some files of a directory: what was read of them before the first problem, once it was."""

    listing: Listing
    names: Sequence[str]
    done: list[tuple[str, ReadFile]] = field(default_factory=list)
    problem: BaseException | None = None
    finished: threading.Event = field(default_factory=threading.Event)


class HashedTree:
    """The files of a tree, being hashed by threads from the moment it is made.

    A context manager: leaving it stops what is not needed any more. So hashing goes on while the
    caller reads what the files should be, and ends when that turns out to be nothing.
    """

    def __init__(self, root: int, tree: Sequence[Listing]) -> None:
        threads = usable_threads()
        files = sum(len(listing.files) for listing in tree)
        size = max(1, min(_BATCH, files // (threads * _PIECES)))
        self._root = root
        self._stopped = threading.Event()
        self._work = [
            _Work(listing, listing.files[start : start + size])
            for listing in tree
            for start in range(0, max(1, len(listing.files)), size)
        ]
        self._waiting = deque(self._work)
        # The caller is the last one: until it asks for files() it has other work.
        self._threads = [
            threading.Thread(target=self._read_all, daemon=True) for _ in range(threads - 1)
        ]
        for thread in self._threads:
            thread.start()

    def require(self, declared: Mapping[str, Content]) -> None:
        """Hold every file to what ``declared`` says of its path.

        Raises TreeProblemError for the first in the order of the tree that differs, is executable,
        or changed, or whose directory changed since it was listed.
        """
        for path, (content, mode) in self.files():
            if mode & _EXECUTE:
                raise TreeProblemError(
                    path,
                    f"it is executable, or has special bits (mode {mode & 0o7777:04o})",
                    hint="no file of a bundle is a program: chmod 644",
                )
            if content != declared[path]:
                raise TreeProblemError(path, _difference(content, declared[path]))

    def files(self) -> Iterator[tuple[str, ReadFile]]:
        """Yield every file by its path, in the order of the tree; read what nobody reads yet.

        Raises TreeProblemError for the first that changed, or whose directory did since it was
        listed.
        """
        buffer = bytearray(BUFFER_BYTES)
        for work in self._work:
            while not work.finished.is_set() and self._read_next(buffer):
                pass
            work.finished.wait()
            yield from work.done
            if work.problem is not None:
                raise work.problem

    def _read_all(self) -> None:
        buffer = bytearray(BUFFER_BYTES)
        while not self._stopped.is_set() and self._read_next(buffer):
            pass

    def _read_next(self, buffer: bytearray) -> bool:
        """Read files that nobody has begun; False when there are none."""
        try:
            work = self._waiting.popleft()
        except IndexError:
            return False
        try:
            self._read(work, buffer)
        except BaseException as problem:
            work.problem = problem  # whichever thread it is, files() raises it
            if not isinstance(problem, Exception):
                raise
        finally:
            work.finished.set()
        return True

    def _read(self, work: _Work, buffer: bytearray) -> None:
        listing = work.listing
        prefix = f"{listing.path}/" if listing.path else ""
        with opened_below(self._root, listing.path) as directory:
            for name in work.names:
                path = prefix + name
                work.done.append((path, self._read_file(directory, name, path, buffer)))
            require_unchanged(directory, listing)

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
        for thread in self._threads:
            thread.join()


def _difference(found: Content, wanted: Content) -> str:
    if found.size != wanted.size:
        return f"it has {found.size} bytes, and {wanted.size} are declared"
    return f"its sha256 is {found.sha256}, and {wanted.sha256} is declared"
