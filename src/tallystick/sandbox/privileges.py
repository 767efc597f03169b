"""What every level from ``process`` on takes from a process: descriptors, capabilities, limits."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from tallystick.contracts.sandbox_profile import SandboxLimits
from tallystick.sandbox import kernel

_CAPABILITY_VERSION_3: Final = 0x20080522
_LAST_CAPABILITY: Final = Path("/proc/sys/kernel/cap_last_cap")
_CAP_SETGID, _CAP_SETUID, _CAP_SYS_ADMIN = 6, 7, 21
# SECBIT_NOROOT, NO_SETUID_FIXUP and KEEP_CAPS' lock, the first two locked as well.
_SECURE_BITS: Final = 0x2F
_PENDING_SIGNALS: Final = 64
_ZERO_LIMITS: Final = ("CORE", "FSIZE", "MEMLOCK", "MSGQUEUE", "NICE", "RTPRIO")


def effective_capabilities() -> int:
    """Return this process's effective capabilities as a bit mask, 0 where they are unknown."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("CapEff:"):
                return int(line.split()[1], 16)
    return 0


def may_administer(other: int) -> bool:
    """Say whether this process may make namespaces and mounts, and become the user ``other``."""
    held = effective_capabilities()
    wanted = all(
        held >> capability & 1 for capability in (_CAP_SETGID, _CAP_SETUID, _CAP_SYS_ADMIN)
    )
    return os.geteuid() == 0 and wanted and all(map(_knows(other), ("uid_map", "gid_map")))


def _knows(number: int) -> Callable[[str], bool]:
    """Return whether a map of this user namespace has ``number``: there is no other user in it."""

    def knows(name: str) -> bool:
        try:
            lines = Path(f"/proc/self/{name}").read_text(encoding="ascii").splitlines()
        except OSError:
            return False
        ranges = [(int(first), int(count)) for first, _, count in map(str.split, lines)]
        return any(first <= number < first + count for first, count in ranges)

    return knows


def last_capability() -> int:
    """Return the number of the kernel's last capability; to be asked before /proc is gone."""
    try:
        return int(_LAST_CAPABILITY.read_bytes())
    except (OSError, ValueError):
        return 63


def drop_capabilities(last: int) -> None:
    """Give up every capability for good, the bounding set as far as this process may."""
    for capability in range(last + 1):
        with contextlib.suppress(OSError):  # without CAP_SETPCAP: no_new_privs makes it moot
            kernel.prctl(kernel.PR_CAPBSET_DROP, capability)
    with contextlib.suppress(OSError):
        kernel.prctl(kernel.PR_CAP_AMBIENT, kernel.PR_CAP_AMBIENT_CLEAR_ALL)
    with contextlib.suppress(OSError):
        kernel.prctl(kernel.PR_SET_SECUREBITS, _SECURE_BITS)
    header = struct.pack("<Ii", _CAPABILITY_VERSION_3, 0)
    kernel.function("capset", header, bytes(24))


def no_new_privileges() -> None:
    """No program that this process executes shall have more rights than it."""
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent dies.

    To be called again after a change of user, which clears it.
    """
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)


def close_descriptors(keep: Iterable[int]) -> None:
    """Close every descriptor that is not in ``keep``."""
    low = 0
    for descriptor in sorted(set(keep)):
        if low < descriptor:  # an empty range would be read as an endless one
            os.closerange(low, descriptor)
        low = descriptor + 1
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.closerange(low, 1 << 20 if hard == resource.RLIM_INFINITY else max(hard, low))


def apply_limits(limits: SandboxLimits, *, own_count: bool, model_size: int, writes: bool) -> None:
    """Set the limits, hard ones included.

    With ``own_count`` the kernel counts this user's processes in a namespace of its own, so they
    can be bounded. Without ``writes`` no file can grow. ``model_size`` is added to the bound on
    address space, in bytes.
    """
    zero = [name for name in _ZERO_LIMITS if not (writes and name == "FSIZE")]
    wanted = [(getattr(resource, f"RLIMIT_{name}", None), 0) for name in zero]
    wanted.append((getattr(resource, "RLIMIT_SIGPENDING", None), _PENDING_SIGNALS))
    wanted.append((resource.RLIMIT_NOFILE, limits.open_files))
    if own_count:
        wanted.append((resource.RLIMIT_NPROC, limits.processes))
    if limits.memory_bytes is not None:
        used = _mapped_bytes() + model_size
        wanted.append((resource.RLIMIT_AS, used + limits.memory_bytes))
    for which, value in wanted:
        if which is not None:
            _limit(which, value, value)
    if limits.cpu_seconds is not None:
        # The soft limit's signal does nothing to the first process of a namespace.
        _limit(resource.RLIMIT_CPU, limits.cpu_seconds, limits.cpu_seconds + 1)


def _limit(which: int, soft: int, hard: int) -> None:
    _, highest = resource.getrlimit(which)
    if highest != resource.RLIM_INFINITY:
        soft, hard = min(soft, highest), min(hard, highest)
    resource.setrlimit(which, (soft, hard))


def _mapped_bytes() -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_bytes().split()[0])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 1 << 32
