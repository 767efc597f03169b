"""A cgroup that bounds memory, page cache included: of version 1 or 2, where one may be made."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

_V1 = Path("/sys/fs/cgroup/memory")
_V2 = Path("/sys/fs/cgroup")
_PATIENCE = 20.0


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A cgroup; who is put into it may use so much memory and no more."""

    path: Path

    def take(self, pid: int) -> None:
        """Put a process into the group."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def enter(self, *words: str) -> list[str]:
        """Return the command that runs ``words`` in the group from its first page on."""
        procs = self.path / "cgroup.procs"
        return ["/bin/sh", "-c", f'echo $$ > {procs} && exec "$@"', "sh", *words]

    def kills(self) -> int:
        """Return how many processes the kernel killed for want of memory."""
        name = "memory.oom_control" if self.path.parent == _V1 else "memory.events"
        found = re.search(r"^oom_kill (\d+)$", (self.path / name).read_text(), re.MULTILINE)
        assert found is not None, "this kernel does not count its kills"
        return int(found.group(1))

    def peak(self) -> int:
        """Return the most bytes that were charged to it at a time."""
        first = self.path.parent == _V1
        name = "memory.max_usage_in_bytes" if first else "memory.peak"
        return int((self.path / name).read_text())


@contextmanager
def memory_group(limit: int) -> Iterator[MemoryGroup]:
    """Make a group whose processes have ``limit`` bytes, without swap; skips where none can be."""
    # Each skip is of a machine that cannot bound a group's memory: there is nothing to try there.
    if sys.platform != "linux":
        pytest.skip("cgroups are Linux's")
    first = (_V1 / "memory.limit_in_bytes").exists()
    path = (_V1 if first else _V2) / f"tallystick-test-{os.getpid()}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error.strerror}")
    try:
        try:
            _bound(path, limit, first=first)
        except OSError as error:
            pytest.skip(f"this cgroup does not bound memory: {error.strerror}")
        yield MemoryGroup(path)
    finally:
        _remove(path)


def _bound(path: Path, limit: int, *, first: bool) -> None:
    (path / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(limit))
    swap = path / ("memory.swappiness" if first else "memory.swap.max")
    if first:
        with contextlib.suppress(OSError):  # not every kernel lets a group choose
            swap.write_text("0")
    elif swap.exists():
        swap.write_text("0")


def _remove(path: Path) -> None:
    """Remove the group; the kernel lets go of the dead in a while."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            return path.rmdir()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
