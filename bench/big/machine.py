"""What the machine has: disk and memory before, resident memory of processes meanwhile."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.big.geometry import Scale

_FIELDS: Final = re.compile(r"^(VmHWM|RssAnon):\s+(\d+) kB$", re.MULTILINE)


def missing(scale: Scale, folder: Path, *, disk: int) -> tuple[str, ...]:
    """Return what is missing for ``scale``, in words; ``disk`` is what is needed in ``folder``."""
    free = shutil.disk_usage(folder).free
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return tuple(
        f"{what}: {needed / 1e9:.1f} GB are needed, there are {found / 1e9:.1f}"
        for what, needed, found in (
            (f"free disk in {folder}", disk, free),
            ("memory", scale.memory, memory),
        )
        if found < needed
    )


@dataclass(frozen=True, slots=True)
class Resident:
    """Peaks of resident memory in bytes: all of it, and what is not a mapped file."""

    peak: int = 0
    anonymous: int = 0

    def with_process(self, pid: int) -> Resident:
        """Return the peaks after another look at the process ``pid``."""
        try:
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
        except OSError:  # gone, or no such place on this system
            return self
        found = {name: int(kib) * 1024 for name, kib in _FIELDS.findall(status)}
        return Resident(
            max(self.peak, found.get("VmHWM", 0)),
            max(self.anonymous, found.get("RssAnon", 0)),
        )


def children(pid: int) -> tuple[int, ...]:
    """Return the processes that the main thread of ``pid`` started and that still run."""
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except OSError:
        return ()
    return tuple(map(int, listed.split()))
