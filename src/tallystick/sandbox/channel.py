"""The child's half of the pipe: one sealed request in, bounded messages out.

A message is a line of JSON; behind one of the kind ``data`` come as many bytes as it says.

A child program is a module whose ``main`` calls :func:`serve`. It holds no key, sees an
allow-listed environment, and tells its supervisor everything as messages; the supervisor
trusts the form of none of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tallystick.canonical.json import JSONValue, jcs, parse_strict
from tallystick.errors import RunFailedError, TallystickError
from tallystick.sandbox.messages import MAX_DATA

MAX_REQUEST = 64 * 1024 * 1024
#: Bytes that a child keeps for a supervisor that does not read, before it drops what may be lost.
MAX_KEPT = 64 * 1024
_CHUNK = 1 << 20
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_LAST_LOOK = 2000  # milliseconds
_BEAT_SHARE = 0.01


class Channel:
    """Writes messages to the supervisor, whole ones and in order, from any thread.

    What a reader has to get waits for room in the pipe (:meth:`send`, :meth:`send_data`) or is kept
    until there is some (:meth:`post`). What it may miss never waits (:meth:`offer`): a supervisor
    that does not read for a while holds no computation up.
    """

    def __init__(self, descriptor: int) -> None:
        # Not os.set_blocking, whose ioctl the sandbox does not allow.
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_NONBLOCK)
        self._descriptor = descriptor
        self._room = select.poll()
        self._room.register(descriptor, select.POLLOUT)
        self._lock = threading.Lock()
        self._kept = bytearray()  # of messages that are on their way

    @property
    def descriptor(self) -> int:
        """The descriptor that is written to."""
        return self._descriptor

    def send(self, kind: str, body: dict[str, JSONValue]) -> None:
        """Send one message; blocks while the pipe is full."""
        self._write(_line(kind, body))

    def send_data(self, data: bytes) -> None:
        """Send ``data``, up to MAX_DATA bytes, as they are: a message says how many follow."""
        if len(data) > MAX_DATA:
            raise ValueError("too much data for one message")
        self._write(_line("data", {"size": len(data)}) + data)

    def post(self, kind: str, body: dict[str, JSONValue]) -> None:
        """Send one message without waiting: what the pipe does not take is kept, all of it."""
        with self._lock:
            self._kept += _line(kind, body)
            self._push(wait=False)

    def offer(self, kind: str, body: dict[str, JSONValue]) -> bool:
        """Send one message without waiting, unless MAX_KEPT bytes are kept: then it is dropped.

        Returns whether it was taken.
        """
        with self._lock:
            self._push(wait=False)
            if len(self._kept) >= MAX_KEPT:
                return False
            self._kept += _line(kind, body)
            self._push(wait=False)
        return True

    def _write(self, message: bytes) -> None:
        with self._lock:
            self._kept += message
            self._push(wait=True)

    def _push(self, *, wait: bool) -> None:
        """Write what is kept; with ``wait`` all of it, else what the pipe has room for."""
        while self._kept:
            try:
                with memoryview(self._kept) as view:
                    written = os.write(self._descriptor, view[:_CHUNK])
            except BlockingIOError:
                if not wait:
                    return
                self._room.poll()  # also tells that nobody reads any more; the write then fails
                continue
            del self._kept[:written]

    def keep_alive(self, seconds: float) -> None:
        """From now on send ``alive`` every ``seconds`` in which this process computed.

        One call into the engine may take longer than a supervisor's patience. Where nothing is
        computed any more, a thread of its own that waits for ever say, silence tells.
        """

        def beat() -> None:
            spent = time.process_time()
            while True:
                time.sleep(seconds)
                now = time.process_time()
                # Less than that is what this thread itself needs.
                if now - spent >= _BEAT_SHARE * seconds:
                    # Out of memory, or nobody reads any more: not for this thread to report.
                    with contextlib.suppress(MemoryError, OSError):
                        self.offer("alive", {})
                spent = now

        threading.Thread(target=beat, daemon=True).start()

    def progress(self, what: str, done: int, total: int) -> None:
        """Report progress of long work (``total`` 0: unknown)."""
        self.offer("progress", {"what": what, "done": done, "total": total})


def _line(kind: str, body: dict[str, JSONValue]) -> bytes:
    return jcs({"kind": kind, "body": body}) + b"\n"


def keep_memory_private() -> None:
    """What this process works with is private: nobody shall find it in a core dump.

    The limit alone is no help where the kernel pipes dumps to a program. A process that is not
    dumpable leaves none at all, and no other process of the same user may read its memory.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux" and ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError("the kernel does not let this process be undumpable")


def _die_with_parent(descriptor: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have died before: then nobody reads the pipe.
    if _unread(descriptor, milliseconds=0):
        os._exit(RunFailedError.exit_code)


def _unread(descriptor: int, *, milliseconds: int) -> bool:
    """Wait until nobody reads the pipe; tell whether that came to be."""
    poll = select.poll()
    poll.register(descriptor, 0)  # POLLERR is always reported
    return bool(poll.poll(milliseconds))


def _leave(descriptor: int, code: int) -> NoReturn:
    """End this process, once the supervisor has had its look at it: memory shows no longer then.

    Interpreter teardown is skipped: the kernel releases the model mapping at once.
    """
    sys.stderr.flush()
    _unread(descriptor, milliseconds=_LAST_LOOK)
    os._exit(code)


def read_request(descriptor: int = 0) -> JSONValue:
    """Return the request that the supervisor sealed into standard input."""
    chunks: list[bytes] = []
    size = 0
    while chunk := os.read(descriptor, 1 << 20):
        size += len(chunk)
        if size > MAX_REQUEST:
            raise RunFailedError("the request is too large", expected=f"at most {MAX_REQUEST} B")
        chunks.append(chunk)
    return parse_strict(b"".join(chunks), max_bytes=MAX_REQUEST)


def unforeseen(error: Exception) -> dict[str, JSONValue]:
    """Describe an exception that nobody expected, without its text."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return {
        "type": RunFailedError.__name__,
        "message": "the child process failed in a way that was not foreseen",
        "expected": None,
        "found": f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}",
        "hint": "this is a defect of the program: please report it with this line",
    }


def as_error(error: TallystickError) -> dict[str, JSONValue]:
    """Return the body of the message that reports ``error``."""
    return {
        "type": type(error).__name__,
        "message": _plain(error.message),
        "expected": _plain(error.expected),
        "found": _plain(error.found),
        "hint": _plain(error.hint),
    }


Handler = Callable[[Any, Channel], None]


def serve(handler: Handler) -> None:
    """Run ``handler(request, channel)`` as the body of a child program.

    The descriptor to write to is the program's first argument; a second one is that of the
    description of its sandbox, in which it locks itself before anything else. A TallystickError
    becomes an ``error`` message. Any other exception becomes one that names its type and place,
    not its text: that may quote what the child was working on, which is private.
    """
    work(handler, [int(word) for word in sys.argv[1:]])


def work(handler: Handler, words: Sequence[int]) -> NoReturn:
    """Do what :func:`serve` does, with the numbers ``words`` as the program's arguments."""
    descriptor = words[0]
    _die_with_parent(descriptor)
    if len(words) > 1:
        from tallystick.sandbox.cage import enter  # most children are not locked

        enter(words[1], result=descriptor)
    keep_memory_private()  # what locks itself has to be looked at until then
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor decides
    channel = Channel(descriptor)
    try:
        handler(read_request(), channel)
    except TallystickError as error:
        channel.send("error", as_error(error))
        _leave(descriptor, error.exit_code)
    except Exception as error:
        channel.send("error", unforeseen(error))
        _leave(descriptor, RunFailedError.exit_code)
    channel.send("done", {})
    _leave(descriptor, 0)


def _plain(text: str | None) -> str | None:
    """Return ``text`` without what JSON cannot carry: lone surrogates, of file names say."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()
