"""Namespaces of a child's own, with and without root (docs/spec/sandbox.md#namespaces)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import warnings
from collections.abc import Callable
from typing import Final, NoReturn

from tallystick.sandbox import kernel
from tallystick.sandbox.privileges import close_descriptors, die_with_parent

NEWNS: Final = 0x00020000
NEWCGROUP: Final = 0x02000000
NEWUTS: Final = 0x04000000
NEWIPC: Final = 0x08000000
NEWUSER: Final = 0x10000000
NEWPID: Final = 0x20000000
NEWNET: Final = 0x40000000
#: All but the user namespace, which comes before them without root, and after them with it.
OTHERS: Final = NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWPID | NEWNET
#: Who a child of root is: nobody. A constant, since every child has a user namespace of its own.
NOBODY: Final = 65534
_INSIDE: Final = 1000
_HOST_NAME: Final = b"sandbox"


def unshare(flags: int) -> None:
    """Leave the namespaces of ``flags`` for new ones. Raises OSError."""
    kernel.function("unshare", ctypes.c_int(flags))


def enter_as_user() -> None:
    """Make all namespaces as an ordinary user, who is user 1000 inside.

    The process has to have one thread. Its next child is the first process of the new ones.
    """
    uid, gid = os.geteuid(), os.getegid()
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # or its own maps belong to root
    unshare(NEWUSER)
    _write("/proc/self/setgroups", b"deny")
    _write("/proc/self/uid_map", b"%d %d 1" % (_INSIDE, uid))
    _write("/proc/self/gid_map", b"%d %d 1" % (_INSIDE, gid))
    unshare(OTHERS)


def enter_as_root() -> None:
    """Make all namespaces but that of users, as root: the mounts may need root's eyes."""
    unshare(OTHERS)


def leave_root() -> None:
    """Become nobody, in a user namespace that knows no user at all.

    It owns none of the other namespaces, so not even its own capabilities count there.
    """
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # so that the supervisor's read-back needs no rights
    unshare(NEWUSER)


def name_host() -> None:
    """Hide the machine's name."""
    kernel.function("sethostname", _HOST_NAME, ctypes.c_size_t(len(_HOST_NAME)))
    kernel.function("setdomainname", b"", ctypes.c_size_t(0))


def fork_and_wait(prepare: Callable[[], None] | None = None) -> None:
    """Go on in a child; the caller only waits for it, and ends as it ends.

    The waiting process keeps nothing open but its standard streams. ``prepare`` is called in it
    before.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child has one thread: its own
        pid = os.fork()
    if pid == 0:
        die_with_parent()
        return
    if prepare is not None:
        prepare()
    _wait_for(pid)


def _wait_for(pid: int) -> NoReturn:
    close_descriptors((1, 2))
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        killer = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # SIGKILL has no handler to reset
            signal.signal(killer, signal.SIG_DFL)
        os.kill(os.getpid(), killer)
        os._exit(128 + killer)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _write(path: str, text: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text)
    except OSError as error:
        raise OSError(error.errno, f"{path}: {error.strerror}") from None
    finally:
        os.close(descriptor)
