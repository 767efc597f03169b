"""Reading many files at once, each hashed as it was from its first byte to its last.

Hashing releases the interpreter's lock, so threads share the cores; what is left to Python for
each file is kept small (bench/bundle.py).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from tallystick.bundles.tree import (
    CHANGED,
    Listing,
    TreeProblemError,
    opened_below,
    opened_file,
    require_plain,
    require_unchanged,
)

BUFFER_BYTES: Final = 256 * 1024
MAX_THREADS: Final = 16
_EXECUTE: Final = 0o7111  # set-id, sticky, and anybody's right to execute
_BATCH: Final = 64  # files to a piece of work: small enough to share out, large enough to amortise
#: Called with each piece of a file, which it must not keep.
Sink = Callable[[memoryview], None]


@dataclass(frozen=True, slots=True)
class Content:
    """What a file holds: the number of its bytes, and their sha256 in hex."""

    size: int
    sha256: str


def usable_threads() -> int:
    """Return how many threads share the work: one for each core that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return min(cores, MAX_THREADS)


def read_content(
    descriptor: int, path: str, buffer: bytearray, sink: Sink | None = None
) -> tuple[Content, os.stat_result]:
    """Hash the plain file behind ``descriptor``, from its start, and hand each piece to ``sink``.

    Returns its content and status. Raises TreeProblemError when it is not plain, or changes.
    """
    before = os.fstat(descriptor)
    require_plain(before, path)
    left = size = before.st_size
    digest = hashlib.sha256()
    view = memoryview(buffer)
    while left:
        count = os.readv(descriptor, (buffer if left >= len(buffer) else view[:left],))
        if not count:
            raise TreeProblemError(path, CHANGED)
        digest.update(view[:count])
        if sink is not None:
            sink(view[:count])
        left -= count
    after = os.fstat(descriptor)
    # The change time moves with every write, and with every change of mode and links.
    if (after.st_size, after.st_mtime_ns, after.st_ctime_ns) != (
        size,
        before.st_mtime_ns,
        before.st_ctime_ns,
    ):
        raise TreeProblemError(path, CHANGED, hint="wait until nobody writes there")
    return Content(size, digest.hexdigest()), before


def compare_files(root: int, tree: Sequence[Listing], declared: dict[str, Content]) -> None:
    """Hold every file of ``tree`` below ``root`` to what ``declared`` says of its path.

    Raises TreeProblemError for the first in the order of ``tree`` that differs, is executable, or
    changed, or whose directory changed since it was listed.
    """
    work = (
        (listing, listing.files[start : start + _BATCH])
        for listing in tree
        for start in range(0, max(1, len(listing.files)), _BATCH)
    )
    with ThreadPoolExecutor(usable_threads()) as pool:
        _first_problem(pool, (pool.submit(_compare, root, *item, declared) for item in work))


def _first_problem(pool: ThreadPoolExecutor, futures: Iterator[Future[None]]) -> None:
    pending = list(futures)
    try:
        for future in pending:
            future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _compare(
    root: int, listing: Listing, names: Iterable[str], declared: dict[str, Content]
) -> None:
    buffer = bytearray(BUFFER_BYTES)
    prefix = f"{listing.path}/" if listing.path else ""
    with opened_below(root, listing.path) as directory:
        for name in names:
            path = prefix + name
            with opened_file(directory, name, path) as descriptor:
                content, info = read_content(descriptor, path, buffer)
            if info.st_mode & _EXECUTE:
                raise TreeProblemError(
                    path,
                    f"it is executable, or has special bits (mode {info.st_mode & 0o7777:04o})",
                    hint="no file of a bundle is a program: chmod 644",
                )
            wanted = declared[path]
            if content != wanted:
                raise TreeProblemError(path, _difference(content, wanted))
        require_unchanged(directory, listing)


def _difference(found: Content, wanted: Content) -> str:
    if found.size != wanted.size:
        return f"it has {found.size} bytes, and {wanted.size} are declared"
    return f"its sha256 is {found.sha256}, and {wanted.sha256} is declared"
