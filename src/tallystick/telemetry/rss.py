"""Resident memory of this process, cheap enough to ask for at every token."""

from __future__ import annotations

import ctypes
import os
import sys

_RUSAGE_INFO_V0 = 0


class _DarwinUsage(ctypes.Structure):
    # struct rusage_info_v0 of <sys/resource.h>
    _fields_ = [
        ("uuid", ctypes.c_uint8 * 16),
        ("user_time", ctypes.c_uint64),
        ("system_time", ctypes.c_uint64),
        ("package_idle_wakeups", ctypes.c_uint64),
        ("interrupt_wakeups", ctypes.c_uint64),
        ("pageins", ctypes.c_uint64),
        ("wired_size", ctypes.c_uint64),
        ("resident_size", ctypes.c_uint64),
        ("phys_footprint", ctypes.c_uint64),
        ("start_abstime", ctypes.c_uint64),
        ("exit_abstime", ctypes.c_uint64),
    ]


def resident_bytes() -> int:
    """Return the resident set of this process in bytes, or 0 where it cannot be asked for."""
    if sys.platform == "darwin":
        usage = _DarwinUsage()
        failed = ctypes.CDLL(None).proc_pid_rusage(
            os.getpid(), _RUSAGE_INFO_V0, ctypes.byref(usage)
        )
        return 0 if failed else int(usage.resident_size)
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            pages = int(file.read(256).split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
