"""Bounds on one piece of work inside a child: time and memory, whatever the work is."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType


@contextlib.contextmanager
def bounded_work(*, seconds: float, memory: int) -> Iterator[None]:
    """Run the body with at most ``seconds`` of computing and ``memory`` more bytes.

    Raises TimeoutError in the body when its time is over. Work that sits in one C call, and so
    cannot be interrupted, ends the process after twice the time. Beyond the memory an allocation
    raises MemoryError. Main thread only; the clock is the processor's, so a busy or suspended
    machine takes nothing away. Where the system cannot bound memory, time still is.
    """

    def over(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, over)
    final = signal.signal(signal.SIGPROF, signal.SIG_DFL)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    try:
        _limit_memory(memory, limits[1])
        # Again and again: a handler somewhere inside may have swallowed the first.
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 0.1)
        signal.setitimer(signal.ITIMER_PROF, 2 * seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGVTALRM, before)
        signal.signal(signal.SIGPROF, final)


def _limit_memory(more: int, hard: int) -> None:
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[0])
    except OSError:
        return
    ceiling = pages * os.sysconf("SC_PAGE_SIZE") + more
    if hard != resource.RLIM_INFINITY:
        ceiling = min(ceiling, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (ceiling, hard))
