"""The template's own half: load everything once, then fork a child for each order.

What it forks is as a program that was just started: the descriptors it was given and no other, its
own process group, nothing of another child. It holds no key and reads no request of a run. Nothing
may ever be computed here: the engine's threads would be missing in what is forked.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import signal
import socket
import warnings
from collections.abc import Callable
from typing import Any, Final

from tallystick.canonical.json import JSONValue, jcs, parse_strict
from tallystick.errors import RunFailedError, TallystickError
from tallystick.sandbox import kernel
from tallystick.sandbox.channel import (
    Handler,
    as_error,
    keep_memory_private,
    read_request,
    unforeseen,
    work,
)
from tallystick.sandbox.privileges import close_descriptors, die_with_parent

_MAX_ORDER: Final = 4096
_MAX_DESCRIPTORS: Final = 64
_STDOUT: Final = 1


def serve_template(descriptor: int, prepare: Callable[[Any], None], handler: Handler) -> None:
    """Run as a template: ``prepare(request)``, then fork a child with ``handler`` for each order.

    ``descriptor`` is that of a socket to the supervisor; its end is the template's. A child works
    as under :func:`tallystick.sandbox.channel.serve`.
    """
    keep_memory_private()
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=descriptor)
    try:
        prepare(read_request())
    except TallystickError as error:
        _tell(control, "error", as_error(error))
        return
    except Exception as error:
        _tell(control, "error", unforeseen(error))
        return
    gc.collect()
    gc.freeze()  # what never changes is not copied for a child's sake
    _tell(control, "ready", {})
    with contextlib.suppress(ConnectionError):
        while _serve_one(control, handler):
            pass


def _tell(control: socket.socket, kind: str, body: JSONValue) -> None:
    control.send(jcs({"kind": kind, "body": body}))


def _serve_one(control: socket.socket, handler: Handler) -> bool:
    """Fork one child and wait for its end. Says whether there may be another order."""
    packet, descriptors, _flags, _address = socket.recv_fds(control, _MAX_ORDER, _MAX_DESCRIPTORS)
    if not packet:
        return False
    order: Any = parse_strict(packet, max_bytes=_MAX_ORDER)
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, of which it has none
        pid = os.fork()
    if pid == 0:
        control.detach()
        _become(order["places"], descriptors, parent)
        work(handler, order["words"])
    for descriptor in descriptors:
        os.close(descriptor)
    with contextlib.suppress(OSError):  # it has done so itself, or is gone
        os.setpgid(pid, pid)
    _tell(control, "forked", {"pid": pid})
    # It stays a zombie, and its number its own, until the supervisor knows.
    info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert info is not None
    killed = info.si_code != os.CLD_EXITED
    _tell(control, "ended", {"code": -info.si_status if killed else info.si_status})
    known = control.recv(1)
    os.waitpid(pid, 0)
    return bool(known)


def _become(places: list[int], descriptors: list[int], parent: int) -> None:
    """Make this forked process what a program is that was just started."""
    die_with_parent()
    if os.getppid() != parent:
        os._exit(RunFailedError.exit_code)
    os.setpgid(0, 0)
    # A child that locks itself is looked at until it is locked; another hides itself at once.
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    free = max(places) + 1
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, free) for descriptor in descriptors]
    close_descriptors((_STDOUT, *moved))
    for source, place in zip(moved, places, strict=True):
        os.dup2(source, place, inheritable=False)
        os.close(source)
