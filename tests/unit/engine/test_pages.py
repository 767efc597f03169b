"""Real pages of a real file in this process."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallystick.engine.pages import MappedFile, Span
from tallystick.errors import IncomparableError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="mappings are given up on Linux")

PAGE = mmap.PAGESIZE
PAGES = 64


@pytest.fixture
def mapped(tmp_path: Path) -> Iterator[tuple[mmap.mmap, int]]:
    """A file of PAGES pages and a half, on the disk, mapped and read."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(PAGES * PAGE + PAGE // 2))
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    # What was written as one is cached as one block, which would leave as a whole or not at all.
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED) as mapping:
        sum(mapping[::PAGE])
        yield mapping, descriptor
    os.close(descriptor)


def file_system_of(path: Path) -> str:
    device = path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    kinds = [line.split(" - ")[1].split()[0] for line in lines if line.split()[2] == number]
    return kinds[0] if kinds else "unknown"


def test_spans_are_whole_pages_within_the_range(mapped: tuple[mmap.mmap, int]) -> None:
    file = MappedFile(mapped[1])
    (whole,) = file.spans(0, 4 * PAGE)
    assert (whole.start, whole.size) == (0, 4 * PAGE)
    (inward,) = file.spans(1, 4 * PAGE + 1)
    assert inward == Span(PAGE, 3 * PAGE, whole.address + PAGE, shares_before=True)
    assert not whole.shares_before
    assert file.spans(1, PAGE) == ()
    assert file.spans(PAGE + 1, 3 * PAGE - 1) == ()
    with pytest.raises(IncomparableError, match="ring"):
        file.spans(0, (PAGES + 2) * PAGE)


def test_pages_go_and_come_with_equal_bytes(mapped: tuple[mmap.mmap, int], tmp_path: Path) -> None:
    # Pages of such a file system are the file itself: nothing can be given up and read again.
    if file_system_of(tmp_path) in ("tmpfs", "ramfs"):
        pytest.skip("a file system in memory keeps its pages")
    mapping, descriptor = mapped
    file = MappedFile(descriptor)
    spans = file.spans(PAGE, 33 * PAGE)
    before = mapping[:]
    assert file.absent(spans) == 0
    file.drop(spans)
    gone = file.absent(spans)
    assert gone > 16  # a block of pages that reaches out of the range may stay
    assert file.absent(file.spans(0, PAGE)) == 0
    assert mapping[:] == before
    file.drop(spans)
    file.fetch(spans)
    sum(mapping[::PAGE])
    assert file.absent(spans) == 0


def test_a_file_that_is_not_mapped(tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(bytes(PAGE))
    with path.open("rb") as stream, pytest.raises(IncomparableError) as caught:
        MappedFile(stream.fileno())
    assert caught.value.found == "none of this file"


def test_a_writable_mapping_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "writable"
    path.write_bytes(bytes(PAGE))
    with (
        path.open("r+b") as stream,
        mmap.mmap(stream.fileno(), 0),
        pytest.raises(IncomparableError) as caught,
    ):
        MappedFile(stream.fileno())
    assert caught.value.found is not None
    assert "w" in caught.value.found


def test_another_system_is_refused(
    mapped: tuple[mmap.mmap, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(IncomparableError, match="not possible here"):
        MappedFile(mapped[1])


def test_without_proc_it_is_refused(
    mapped: tuple[mmap.mmap, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallystick.engine.pages._MAPS", "/nonexistent/maps")
    with pytest.raises(IncomparableError) as caught:
        MappedFile(mapped[1])
    assert caught.value.expected == "a readable /nonexistent/maps"
