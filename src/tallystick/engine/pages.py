"""The pages of a model file in this process's mapping of it: drop, fetch, and see what is there.

Only what the kernel documents: madvise(2), mincore(2), posix_fadvise(2), /proc/self/maps. No byte
of the mapping changes by any of it: the pages are clean, and a dropped one is read again.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from tallystick.errors import IncomparableError

_MADV_DONTNEED: Final = 4
_MAPS: Final = "/proc/self/maps"
#: The kernel cuts a request to read ahead to the device's window: this one fits the usual ones.
_WINDOW: Final = 128 * 1024
#: The largest block of pages that the page cache keeps as one.
_LARGEST_BLOCK: Final = 2 * 1024 * 1024
_HINT: Final = "run without a ring (--ring-depth 0): the kernel's own cache then decides"


@dataclass(frozen=True, slots=True)
class _Mapped:
    """``start``..``end`` of the file are mapped from ``address`` on."""

    start: int
    end: int
    address: int


@dataclass(frozen=True, slots=True)
class Span:
    """Whole pages of the file: ``size`` bytes from ``start`` on, mapped at ``address``.

    ``shares_before``: the range begins within the page before, which is mapped as well.
    """

    start: int
    size: int
    address: int
    shares_before: bool = False


class MappedFile:
    """The read-only mapping of the file behind ``descriptor`` in this process.

    Raises IncomparableError where the mapping cannot be found or its pages not be given up.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._page = os.sysconf("SC_PAGE_SIZE")
        if sys.platform != "linux":
            raise _unable("an operating system that gives up the pages of a mapping (Linux)")
        library = ctypes.CDLL(None, use_errno=True)
        self._madvise, self._mincore = library.madvise, library.mincore
        self._madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        self._mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
        self._mapped = _mappings(descriptor)

    def spans(self, start: int, end: int) -> tuple[Span, ...]:
        """Return the whole pages within ``start``..``end`` of the file.

        Pages that neighbours share are left out. Raises IncomparableError when a part of the range
        is not mapped.
        """
        found, covered = [], start
        for part in self._mapped:
            low, high = max(start, part.start), min(end, part.end)
            if low >= high:
                continue
            if low != covered:
                break
            covered = high
            first = -(-low // self._page) * self._page
            last = high // self._page * self._page
            if first < last:
                address = part.address + first - part.start
                found.append(Span(first, last - first, address, low < first and part.start < low))
        if covered != end:
            raise _unable("a mapping of every layer of the model", found="a layer without one")
        return tuple(found)

    def drop(self, spans: Iterable[Span]) -> None:
        """Take the pages out of this process and out of the page cache. Raises OSError.

        Pages that another process has mapped stay in the cache: they are its own.
        """
        for span in spans:
            # The cache keeps pages in blocks, and a block only leaves it as a whole, when no page
            # of it is mapped: so the page that is shared with what is before goes too, and
            # blocks that begin before are asked to go. Whatever of that is needed is read again.
            shared = self._page if span.shares_before else 0
            if self._madvise(span.address - shared, span.size + shared, _MADV_DONTNEED):
                number = ctypes.get_errno()
                raise OSError(number, f"madvise: {os.strerror(number)}")
            start = max(0, span.start - _LARGEST_BLOCK)
            size = span.start + span.size - start
            os.posix_fadvise(self._descriptor, start, size, os.POSIX_FADV_DONTNEED)

    def fetch(self, spans: Iterable[Span]) -> None:
        """Ask the kernel to read the pages; it goes on reading after the return. Raises OSError."""
        for span in spans:
            end = span.start + span.size
            for start in range(span.start, end, _WINDOW):
                size = min(_WINDOW, end - start)
                os.posix_fadvise(self._descriptor, start, size, os.POSIX_FADV_WILLNEED)

    def absent(self, spans: Iterable[Span]) -> int:
        """Return how many of the pages are not in memory, as far as the kernel says. OSError.

        Who neither owns the file nor may write it is told that every page is there.
        """
        return sum(map(self._absent, spans))

    def _absent(self, span: Span) -> int:
        pages = span.size // self._page
        seen = np.empty(pages, np.uint8)
        if self._mincore(span.address, span.size, seen.ctypes.data):
            number = ctypes.get_errno()
            raise OSError(number, f"mincore: {os.strerror(number)}")
        return pages - int(np.count_nonzero(seen & 1))


def _unable(expected: str, found: str | None = None) -> IncomparableError:
    return IncomparableError(
        "a layer ring is not possible here", expected=expected, found=found, hint=_HINT
    )


def _mappings(descriptor: int) -> tuple[_Mapped, ...]:
    """Return this process's mappings of the file, in the order of the file, neighbours joined."""
    state = os.fstat(descriptor)
    name = None
    with contextlib.suppress(OSError):  # a sandbox has no such folder
        name = os.fsencode(os.readlink(f"/proc/self/fd/{descriptor}"))
    try:
        with open(_MAPS, "rb") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise _unable(f"a readable {_MAPS}", found=error.strerror) from None
    joined: list[_Mapped] = []
    for part in sorted(_of_file(lines, state, name), key=lambda part: (part.start, part.address)):
        last = joined[-1] if joined else None
        if last and (part.start, part.address) == (last.end, last.address + last.end - last.start):
            joined[-1] = _Mapped(last.start, part.end, last.address)
        else:
            joined.append(part)
    if not joined:
        raise _unable("the model's mapping in /proc/self/maps", found="none of this file")
    return tuple(joined)


def _of_file(
    lines: Iterable[bytes], state: os.stat_result, name: bytes | None
) -> Iterator[_Mapped]:
    """Yield the mappings of the file; stacked file systems show its name and another device."""
    for line in lines:
        places, rights, offset, device, inode, *path = line.split(maxsplit=5)
        major, minor = (int(part, 16) for part in device.split(b":"))
        same = (os.makedev(major, minor), int(inode)) == (state.st_dev, state.st_ino)
        if not same and (name is None or path != [name]):
            continue
        if b"w" in rights:
            raise _unable("a read-only mapping of the model", found=rights.decode("ascii"))
        low, high = (int(place, 16) for place in places.split(b"-"))
        start = int(offset, 16)
        yield _Mapped(start, start + high - low, low)
