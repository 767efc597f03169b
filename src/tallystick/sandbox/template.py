"""The supervisor's half of a template: a process that has loaded everything, and forks children.

A child that is forked has paid for its imports already. The template itself never sees a request
of a run, a model or a key; each child locks itself, and is audited, as one that was started afresh.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from tallystick.canonical.json import JSONValue, jcs
from tallystick.errors import RunFailedError
from tallystick.sandbox.messages import CHILD_ERRORS, Message, error_from, parse_message
from tallystick.sandbox.programs import Process, spawn
from tallystick.sandbox.sealed import sealed

# It imports and loads, and the machine may be busy.
_PATIENCE: Final = 300.0
_FORKING: Final = 60.0
_REAPING: Final = 60.0
_GRACE: Final = 5.0
_MAX_PACKET: Final = 64 * 1024
_MAX_WORDS: Final = 16 * 1024
#: The one answer to a template's report that a child has ended: the process may be forgotten now.
REAP: Final = b"r"


def are_supported() -> bool:
    """Say whether children can be forked from templates on this system."""
    return sys.platform == "linux"


class Template:
    """A running template of ``program``, a module that calls ``serve_template``.

    ``request`` says what it has to load, ``environment`` is what its children have. One child at a
    time. Raises what the program reports, and RunFailedError when it dies on the way.
    """

    def __init__(
        self, program: str, request: JSONValue, environment: Mapping[str, str] | None = None
    ) -> None:
        self._said = os.memfd_create("said", os.MFD_CLOEXEC)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            stdin = sealed(request)
            try:
                self._process = spawn(
                    program,
                    [str(theirs.fileno())],
                    environment=environment or {},
                    stdin=stdin,
                    stderr=self._said,
                    pass_fds=(theirs.fileno(),),
                )
            finally:
                os.close(stdin)
        except BaseException:
            os.close(self._said)
            self._control.close()
            raise
        finally:
            theirs.close()
        try:
            self._next("ready", _PATIENCE)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Process id of the template itself."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can still fork."""
        return self._control.fileno() >= 0 and self._process.poll() is None

    def fork(self, descriptors: Mapping[int, int], words: Sequence[int]) -> Process | None:
        """Fork a child that has ``descriptors`` (its numbers to ours) and nothing else open.

        ``words`` are what a started program has as its arguments. Returns None when the template is
        gone or stuck, and then ends it: there is no child.
        """
        order: JSONValue = {"places": list(descriptors), "words": list(words)}
        try:
            socket.send_fds(self._control, [jcs(order)], list(descriptors.values()))
            pid = self._next("forked", _FORKING).body.get("pid")
        except (OSError, RunFailedError):
            pid = None
        if type(pid) is not int or pid < 2:
            self.close()
            return None
        return _Forked(self, pid)

    def ended(self, timeout: float | None) -> int | None:
        """Return how the present child ended, as Popen has it; None when it did not in time.

        It is killed with its template, when that is gone.
        """
        try:
            message = self._receive(timeout)
        except TimeoutError:
            return None
        code = message.body.get("code") if message is not None and message.kind == "ended" else None
        if type(code) is not int:
            self.close()
            return -signal.SIGKILL
        with contextlib.suppress(OSError):
            self._control.send(REAP)
        return code

    def _receive(self, timeout: float | None) -> Message | None:
        """Return the template's next word, None when it is gone. Raises TimeoutError.

        Not by a MessageReader, in which a worker may be told to give up: the end of a child is
        waited for in clean-ups too.
        """
        poll = select.poll()
        try:
            poll.register(self._control, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1000):
                raise TimeoutError
            packet = self._control.recv(_MAX_PACKET)
        except TimeoutError:
            raise
        except (OSError, ValueError):  # it was closed, at one end or the other
            return None
        return parse_message(packet) if packet else None

    def _next(self, kind: str, patience: float) -> Message:
        try:
            message = self._receive(patience)
        except TimeoutError:
            raise RunFailedError("the template made no progress") from None
        if message is None:
            said = os.pread(self._said, _MAX_WORDS, 0).decode("utf-8", "replace").splitlines()
            raise RunFailedError("the template died", found=" | ".join(said[-3:]) or None)
        if message.kind == "error":
            raise error_from(message.body, CHILD_ERRORS)
        if message.kind != kind:
            raise RunFailedError("the template spoke out of order")
        return message

    def close(self) -> None:
        """End the template, and a child that still runs with it."""
        if self._control.fileno() >= 0:
            os.close(self._said)
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=0 if self._process.poll() is None else _GRACE)
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()


class _Forked:
    """A child of a template: to be killed and waited for like one of our own.

    The template keeps the ended process until it was told that we know: till then its number is no
    other's.
    """

    def __init__(self, template: Template, pid: int) -> None:
        self._template = template
        self.pid = pid
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Without a ``timeout``, which is after a kill, a stuck template is ended too.
        """
        if self.returncode is None:
            self.returncode = self._template.ended(_REAPING if timeout is None else timeout)
        if self.returncode is None and timeout is None:
            self._template.close()
            self.returncode = -signal.SIGKILL
        if self.returncode is None:
            raise subprocess.TimeoutExpired("child", timeout or 0)
        return self.returncode
