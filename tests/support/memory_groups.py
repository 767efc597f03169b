"""A cgroup that bounds memory, of version 1 or 2, where this user may make one."""

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


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A cgroup; who is put into it may use so much memory and no more."""

    path: Path

    def take(self, pid: int) -> None:
        """Put a process into the group."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def kills(self) -> int:
        """Return how many processes the kernel killed for want of memory."""
        name = "memory.oom_control" if self.path.parent == _V1 else "memory.events"
        found = re.search(r"^oom_kill (\d+)$", (self.path / name).read_text(), re.MULTILINE)
        assert found is not None, "this kernel does not count its kills"
        return int(found.group(1))


@contextmanager
def memory_group(limit: int) -> Iterator[MemoryGroup]:
    """Make a group whose processes have ``limit`` bytes, without swap; skips where none can be."""
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
        end = time.monotonic() + 10
        while path.exists() and time.monotonic() < end:  # the kernel lets go of the dead in a while
            with contextlib.suppress(OSError):
                path.rmdir()
            time.sleep(0.05)


def _bound(path: Path, limit: int, *, first: bool) -> None:
    if not first:
        (path / "memory.max").write_text(str(limit))
        with contextlib.suppress(OSError):
            (path / "memory.swap.max").write_text("0")
        return
    (path / "memory.limit_in_bytes").write_text(str(limit))
    with contextlib.suppress(OSError):
        (path / "memory.swappiness").write_text("0")
