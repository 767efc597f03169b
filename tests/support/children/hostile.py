"""A child that does its worst once it is locked, and reports which attempts went through."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from tallystick.canonical.json import JSONValue
from tallystick.sandbox.channel import Channel, serve

_EXECUTABLE: Final = "/bin/sh"


def _write(path: str) -> None:
    with open(path, "wb") as file:
        file.write(b"x" * (1 << 20))


def _fill_shared_memory() -> None:
    os.write(os.memfd_create("x"), b"x" * (1 << 20))


def _raise_limit() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (100_000, 100_000))


def _dumpable() -> None:
    if ctypes.CDLL(None).prctl(4, 1, 0, 0, 0):
        raise OSError("not dumpable")


def _mount() -> None:
    if ctypes.CDLL(None, use_errno=True).mount(b"none", b"/", b"tmpfs", 0, None):
        raise OSError(ctypes.get_errno(), "mount")


def _capability() -> None:
    os.setuid(0)
    os.chown("/", 0, 0)


def _spare_descriptors(result: int) -> None:
    found = []
    for number in range(3, 4096):
        try:
            os.fstat(number)
        except OSError:
            continue
        found.append(number)
    if found == [result]:
        raise OSError("none but the result")


def _bomb() -> None:
    """Fork without end, bounded only by what bounds it; the forked ones end at once."""
    for _ in range(3):
        if os.fork() == 0:
            os._exit(0)


def _threads() -> None:
    """Start threads until the kernel refuses."""
    gate = threading.Event()
    try:
        for _ in range(2000):
            threading.Thread(target=gate.wait, daemon=True).start()
    finally:
        gate.set()


def _socket_pair() -> None:
    for end in socket.socketpair():
        end.close()


def _kill_everybody() -> None:
    os.kill(-1, signal.SIGKILL)


def _change_runtime() -> None:
    _write(threading.__file__)


def attempts(request: Any, result: int) -> dict[str, Callable[[], object]]:
    """Return the attempts by name; ``result`` is the descriptor that is open by right."""
    return {
        "write to /": lambda: _write("/x"),
        "write to a folder outside": lambda: _write(request["folder"] + "/x"),
        "change the runtime": _change_runtime,
        "write to the model": lambda: os.write(request["model"], b"x"),
        "fill shared memory": _fill_shared_memory,
        "fork": _bomb,
        "execute": lambda: os.execv(_EXECUTABLE, [_EXECUTABLE]),
        "raise a limit": _raise_limit,
        "be dumped": _dumpable,
        "mount": _mount,
        "use a capability": _capability,
        "use another descriptor": lambda: _spare_descriptors(result),
        "start threads without end": _threads,
        "socket pair": _socket_pair,
        "kill everybody": _kill_everybody,
        "signal the supervisor": lambda: os.kill(request["parent"], signal.SIGTERM),
        "read the supervisor's memory": lambda: open(f"/proc/{request['parent']}/mem", "rb"),
        "read a key": lambda: open(request["folder"] + "/key", "rb"),
        "ask for the environment": lambda: open("/proc/self/environ", "rb"),
        "list processes": lambda: os.listdir("/proc/1"),
    }


def work(request: Any, channel: Channel) -> None:
    """Try what ``request`` names, or all; report what went through."""
    if request.get("lie"):
        channel.send(request["lie"], {"size": 1 << 40} if request["lie"] == "data" else {})
        return
    if request.get("abort"):
        os.abort()
    if request.get("crash"):
        ctypes.string_at(0)
    if request.get("wait"):
        channel.send("progress", {})
        time.sleep(600)
    went: list[JSONValue] = []
    for name, attempt in attempts(request, channel.descriptor).items():
        if name in request.get("skip", ()):
            continue
        try:
            attempt()
        except (OSError, RuntimeError, ValueError):
            continue
        went.append(name)
    channel.send("result", {"went": went})


if __name__ == "__main__":
    serve(work)
