"""The time that leases run by: never the wall clock, which people and daemons set.

On one machine all processes share a clock that no one sets: the time since boot. A moment is that
time together with the boot's own id. A lease of an earlier boot has no holder any more, whatever
its time says.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from tallystick.errors import UnavailableError

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_OFFSETS: Final = Path("/proc/self/timens_offsets")
_SESSION: Final = ("/usr/sbin/sysctl", "-n", "kern.bootsessionuuid")


@dataclass(frozen=True, slots=True)
class Moment:
    """Milliseconds since the boot that ``boot`` names."""

    boot: str
    ms: int

    def after(self, seconds: float) -> Moment:
        """Return the moment ``seconds`` later, to the millisecond, rounded up."""
        return Moment(self.boot, self.ms - int(-seconds * 1000 // 1))

    def reached(self, now: Moment) -> bool:
        """Say whether it is this moment or later; of another boot, every moment is past."""
        return self.boot != now.boot or self.ms <= now.ms


ALWAYS: Final = Moment("", 0)  # of no boot: it is past at any time


class Clock(Protocol):
    """Where a queue gets its time from."""

    def now(self) -> Moment:
        """Return the present moment. Of two calls in one boot, the later is never earlier."""
        ...

    def wall_ms(self) -> int:
        """Return the wall clock in milliseconds since 1970: for people to read, never compared."""
        ...


class SystemClock:
    """The machine's time since boot, sleep included. Raises UnavailableError without a boot id."""

    def __init__(self) -> None:
        self._boot = _boot_id()
        self._offset_ns = _namespace_offset_ns()

    def now(self) -> Moment:
        """Return the present moment, equal in all processes of the machine."""
        number = time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC
        return Moment(self._boot, (time.clock_gettime_ns(number) - self._offset_ns) // 1_000_000)

    def wall_ms(self) -> int:
        """Return the wall clock in milliseconds since 1970."""
        return time.time_ns() // 1_000_000


def _boot_id() -> str:
    try:
        if sys.platform == "linux":
            found = _BOOT_ID.read_text(encoding="ascii").strip()
        else:
            found = subprocess.run(_SESSION, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise UnavailableError(
            "the system does not say which boot this is, so leases cannot be timed",
            expected=str(_BOOT_ID) if sys.platform == "linux" else " ".join(_SESSION),
            found=type(error).__name__,
        ) from None
    return found.strip()


def _namespace_offset_ns() -> int:
    """Return how far this process's time namespace moves the time since boot."""
    try:
        lines = _OFFSETS.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0  # a kernel without time namespaces
    for line in lines:
        name, seconds, nanoseconds = line.split()
        if name == "boottime":
            return int(seconds) * 1_000_000_000 + int(nanoseconds)
    return 0
