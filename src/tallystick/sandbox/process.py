"""The supervisor's half: start one child per piece of work, read its messages, see it gone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import site
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tallystick.canonical.json import JSONValue, jcs
from tallystick.errors import RunFailedError
from tallystick.sandbox.messages import (
    CHILD_ERRORS,
    ErrorClasses,
    Message,
    MessageReader,
    error_from,
)

_PEAK = re.compile(rb"^VmHWM:\s+(\d+) kB$", re.MULTILINE)
_STDERR_TAIL = 16 * 1024
_GRACE = 5.0  # seconds for a child that has nothing left to do
_PIPE_BYTES = 1024 * 1024  # what anybody may ask for
# Kinds of messages that come once a token: too many to look at the child's memory at each.
_FREQUENT = ("event", "text", "data")
# The child's whole environment; callers add what the engine reads when it is loaded.
_BASE_ENVIRONMENT = {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin", "TZ": "UTC"}


def _python_flags() -> list[str]:
    """Imports come from where this process's come from, and never from the current directory."""
    flags = ["-P", "-X", "utf8"]
    return flags if site.ENABLE_USER_SITE else ["-s", *flags]


def _import_environment() -> dict[str, str]:
    """Return the variables without which an install outside the interpreter is not found."""
    found = {}
    if not sys.flags.ignore_environment and (path := os.environ.get("PYTHONPATH")):
        found["PYTHONPATH"] = path
    if site.ENABLE_USER_SITE:
        found["PYTHONUSERBASE"] = site.getuserbase()
    return found


def _sealed(data: bytes) -> int:
    """Return a descriptor, at offset 0, of a read-only copy of ``data``."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("request", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        _write_all(descriptor, data)
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
        _write_all(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _widen(pipe: int) -> None:
    """Let a child go on computing while what it sent is looked at, where the system can."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


class Child:
    """A running child program. Use as a context manager: leaving it means the child is gone.

    ``program`` is a module that calls :func:`tallystick.sandbox.channel.serve`; ``request`` is a
    JSON value; ``pass_fds`` stay open in the child under the same numbers.
    """

    def __init__(
        self,
        program: str,
        request: JSONValue,
        *,
        environment: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.peak_rss = 0
        self._tail = bytearray()
        self._done = False
        stdin = _sealed(jcs(request))
        self._read, write = os.pipe()
        _widen(self._read)
        try:
            self._process = subprocess.Popen(
                [sys.executable, *_python_flags(), "-m", program, str(write)],
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(write, *pass_fds),
                env={**_BASE_ENVIRONMENT, **_import_environment(), **(environment or {})},
                start_new_session=True,
            )
        except BaseException:
            os.close(self._read)
            raise
        finally:
            os.close(stdin)
            os.close(write)
        self._reader = MessageReader(self._read)
        self._drain = threading.Thread(target=self._drain_stderr, daemon=True)
        self._drain.start()

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._process.pid

    def _drain_stderr(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            while chunk := os.read(stream.fileno(), 65536):
                self._tail += chunk
                del self._tail[:-_STDERR_TAIL]

    def messages(
        self, *, idle_timeout: float | None = None, errors: ErrorClasses = CHILD_ERRORS
    ) -> Iterator[Message]:
        """Yield messages until the child says it is done.

        Raises the error the child reported, if it is one of ``errors``, or RunFailedError when it
        reported another, died, spoke out of form, or said nothing for ``idle_timeout`` seconds.
        """
        while True:
            message = self._reader.next(idle_timeout)
            if message is None:
                raise self._death()
            if message.kind not in _FREQUENT:
                self._sample_peak()
            if message.kind == "done":
                self._done = True
                return
            if message.kind == "error":
                raise error_from(message.body, errors)
            yield message

    def _death(self) -> RunFailedError:
        if not self._await_exit(_GRACE):
            self._kill()
            how = "it closed its pipe and went on"
        elif (code := self._process.returncode) < 0:
            how = f"killed by {_signal_name(-code)}"
        else:
            how = f"exit status {code}"
        self._drain.join(timeout=_GRACE)
        text = bytes(self._tail).decode("utf-8", "replace").strip()
        return RunFailedError(
            "the child process ended before its work was done",
            found=how + (f"; its last words:\n{text[-2000:]}" if text else ""),
            hint="if it was killed by SIGKILL, the machine probably ran out of memory",
        )

    def _sample_peak(self) -> None:
        """Note the child's peak resident memory so far.

        Not from getrusage: its maximum begins with what the parent had when it forked.
        """
        try:
            status = Path(f"/proc/{self.pid}/status").read_bytes()
        except OSError:
            return
        found = _PEAK.search(status)
        if found is not None:
            self.peak_rss = max(self.peak_rss, int(found.group(1)) * 1024)

    def close(self) -> None:
        """End the child if it still runs, and release everything."""
        if self._read >= 0:
            os.close(self._read)  # a child that is done waits for this
            self._read = -1
        if self._process.returncode is None and not (self._done and self._await_exit(_GRACE)):
            self._kill()
        # Its standard error closes with the last process that holds it.
        self._drain.join(timeout=_GRACE)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _await_exit(self, seconds: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=seconds)
        return self._process.returncode is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def run_child(
    program: str,
    request: JSONValue,
    *,
    environment: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    idle_timeout: float | None = None,
) -> dict[str, Any]:
    """Run a child program to its end and return the body of its one ``result`` message."""
    result: dict[str, Any] | None = None
    with Child(program, request, environment=environment, pass_fds=pass_fds) as child:
        for message in child.messages(idle_timeout=idle_timeout):
            if message.kind == "result":
                result = message.body
    if result is None:
        raise RunFailedError("the child ended without a result")
    return result
