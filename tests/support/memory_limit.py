"""Run a program under a limit on memory, page cache included: a control group of its own."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

_ROOT = Path("/sys/fs/cgroup")
_PATIENCE = 20.0


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A control group; ``peak`` is the file that tells the most memory that it ever held."""

    folder: Path
    peak_file: str

    def enter(self, *words: str) -> list[str]:
        """Return the command that runs ``words`` inside."""
        procs = self.folder / "cgroup.procs"
        return ["/bin/sh", "-c", f'echo $$ > {procs} && exec "$@"', "sh", *words]

    def peak(self) -> int:
        """Return the most bytes that were charged to it at a time."""
        return int((self.folder / self.peak_file).read_text())


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[MemoryGroup]:
    """Make a group with ``limit`` bytes of memory and no swap; skip where none can be made."""
    group = _make(limit)
    try:
        yield group
    finally:
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                group.folder.rmdir()
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)


def _make(limit: int) -> MemoryGroup:
    name = f"tallystick-test-{os.getpid()}"
    reasons = []
    for parent, settings, peak in (
        (
            _ROOT / "memory",
            {"memory.limit_in_bytes": limit},
            "memory.max_usage_in_bytes",
        ),
        (_ROOT, {"memory.max": limit, "memory.swap.max": 0}, "memory.peak"),
    ):
        folder = parent / name
        try:
            folder.mkdir()
            try:
                for setting, value in settings.items():
                    (folder / setting).write_text(str(value))
            except OSError:
                folder.rmdir()
                raise
        except OSError as error:
            reasons.append(f"{parent}: {error.strerror}")
            continue
        return MemoryGroup(folder, peak)
    pytest.skip(f"no control group can be made here: {'; '.join(reasons)}")
