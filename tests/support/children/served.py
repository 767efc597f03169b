"""A child program that does what its request says, through the channel as it should."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tallystick import errors
from tallystick.canonical.json import JSONValue
from tallystick.sandbox.channel import Channel, serve
from tallystick.sandbox.limits import bounded_work


def seen() -> dict[str, JSONValue]:
    """What this process sees of the world."""
    stat = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return {
        "environment": dict(os.environ),
        "descriptors": [int(name) for name in os.listdir("/proc/self/fd")],
        "pid": os.getpid(),
        "session": os.getsid(0),
        "group": os.getpgrp(),
        "terminal": int(stat[4]),
        "interrupt_ignored": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
        "arguments": list(sys.argv),
    }


def result(request: Any, channel: Channel) -> None:
    channel.progress("counting", 1, 2)
    channel.send("text", {"n": 1})
    channel.send("result", {"echo": request})


def error(request: Any, _channel: Channel) -> None:
    kind = getattr(errors, request["type"])
    raise kind("what", expected="this", found="that", hint="so")


def surrogate(_request: Any, _channel: Channel) -> None:
    raise errors.InputError("a name \udcff", found="\ud800")


def traceback(_request: Any, _channel: Channel) -> None:
    raise ValueError("these are the last words")


def kill(request: Any, _channel: Channel) -> None:
    os.kill(os.getpid(), request["number"])


def look(_request: Any, channel: Channel) -> None:
    channel.send("result", seen())


def secrets(_request: Any, channel: Channel) -> None:
    """Tell what would become of this process's memory if it died, and wait to be looked at."""
    dumpable = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) if sys.platform == "linux" else 0
    core = resource.getrlimit(resource.RLIMIT_CORE)[0]
    channel.send("result", {"dumpable": dumpable, "core": core, "uid": os.getuid()})


def noise(request: Any, channel: Channel) -> None:
    for _ in range(300):
        sys.stderr.write("x" * 65536 + "\n")
    sys.stderr.write("the end\n")
    sys.stderr.flush()
    if request["fail"]:
        os._exit(9)
    channel.send("result", {})


def read(request: Any, channel: Channel) -> None:
    channel.send("result", {"data": os.read(request["descriptor"], 100).decode()})


def stuck(_request: Any, _channel: Channel) -> None:
    with bounded_work(seconds=0.2, memory=1 << 28):
        sum(range(10**15))  # one call, which looks at no signal


def sleep(_request: Any, channel: Channel) -> None:
    channel.send("progress", {"pid": os.getpid()})
    time.sleep(600)


def compute(request: Any, channel: Channel) -> None:
    """Compute without a word of its own."""
    channel.keep_alive(0.02)
    end = time.process_time() + request["seconds"]
    while time.process_time() < end:
        pass
    channel.send("result", {})


def wait(request: Any, channel: Channel) -> None:
    """Compute nothing, without a word."""
    channel.keep_alive(0.2)
    time.sleep(request["seconds"])
    channel.send("result", {})


def chorus(_request: Any, channel: Channel) -> None:
    """Speak from many threads at once, and more than a pipe takes whole."""

    def speak(number: int) -> None:
        for _ in range(5):
            channel.send("text", {"voice": str(number) * 100_000})
            channel.send_data(b"%d\n" % number * 100_000)

    threads = [threading.Thread(target=speak, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    channel.send("result", {})


def fork(request: Any, channel: Channel) -> None:
    """Leave a grandchild that holds every pipe and would outlive its parent."""
    if os.fork() == 0:
        time.sleep(600)
    sleep(request, channel)


def leave(request: Any, channel: Channel) -> None:
    """Be done in order, or die, and leave a grandchild that holds everything, or nothing, open."""
    started, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        if request["how"] == "new session":
            os.setsid()
        if request["closed"]:
            os.close(int(sys.argv[1]))
        os.write(tell, b"x")
        time.sleep(600)
    os.read(started, 1)
    channel.send("progress", {"pid": pid})
    if request["how"] == "dies":
        os._exit(3)
    channel.send("result", {})


WORK = (
    leave,
    result,
    error,
    surrogate,
    traceback,
    kill,
    look,
    secrets,
    noise,
    read,
    stuck,
    sleep,
    fork,
    compute,
    wait,
    chorus,
)


def work(request: Any, channel: Channel) -> None:
    next(do for do in WORK if do.__name__ == request["do"])(request, channel)


if __name__ == "__main__":
    serve(work)
