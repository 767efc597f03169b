"""The few calls into the Linux kernel that a sandbox needs and Python does not have."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
from typing import Any, Final

# Numbers of <asm/unistd.h>: what the lock and the probes call by number.
_NUMBERS: Final = {
    "x86_64": {
        "ptrace": 101, "pivot_root": 155, "keyctl": 250, "unshare": 272, "process_vm_readv": 310,
        "seccomp": 317, "userfaultfd": 323, "io_uring_setup": 425, "pidfd_open": 434,
        "mount_setattr": 442, "landlock_create_ruleset": 444,
    },
    "aarch64": {
        "pivot_root": 41, "unshare": 97, "ptrace": 117, "keyctl": 219, "process_vm_readv": 270,
        "seccomp": 277, "userfaultfd": 282, "io_uring_setup": 425, "pidfd_open": 434,
        "mount_setattr": 442, "landlock_create_ruleset": 444,
    },
}  # fmt: skip

PR_SET_PDEATHSIG: Final = 1
PR_SET_DUMPABLE: Final = 4
PR_CAPBSET_DROP: Final = 24
PR_SET_SECUREBITS: Final = 28
PR_SET_NO_NEW_PRIVS: Final = 38
PR_CAP_AMBIENT: Final = 47
PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
_LANDLOCK_CREATE_RULESET_VERSION: Final = 1


def _library() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    return library


def number_of(name: str) -> int:
    """Return a system call's number on this machine. OSError (ENOSYS) where it is not known."""
    numbers = _NUMBERS.get(platform.machine())
    if numbers is None or sys.platform != "linux":
        raise OSError(errno.ENOSYS, f"{name}: unknown on this kind of machine")
    return numbers[name]


def call(name: str | int, *arguments: Any) -> int:
    """Make a system call and return its result; bytes become pointers. Raises OSError."""
    number = number_of(name) if isinstance(name, str) else name
    words = [
        ctypes.c_long(word) if isinstance(word, int) else word for word in (number, *arguments)
    ]
    result: int = _library().syscall(*words)
    if result < 0:
        raise _last_error(str(name))
    return result


def function(name: str, *arguments: Any) -> int:
    """Call a function of the C library that returns -1 and sets errno. Raises OSError."""
    called = getattr(_library(), name, None)
    if called is None:
        raise OSError(errno.ENOSYS, f"{name}: not in this system's C library")
    result: int = called(*arguments)
    if result < 0:
        raise _last_error(name)
    return result


def prctl(option: int, *arguments: int) -> int:
    """Call prctl; missing arguments are zero. Raises OSError."""
    words = [ctypes.c_ulong(word) for word in (*arguments, 0, 0, 0, 0)[:4]]
    return function("prctl", ctypes.c_int(option), *words)


def landlock_abi() -> int:
    """Return the version of Landlock that this kernel offers, 0 without it."""
    try:
        return call("landlock_create_ruleset", None, 0, _LANDLOCK_CREATE_RULESET_VERSION)
    except OSError:
        return 0


def _last_error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")
