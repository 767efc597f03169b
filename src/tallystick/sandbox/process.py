"""The supervisor's half: start one child per piece of work, read its messages, see it gone."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import tallystick.errors as errors
from tallystick.canonical.json import JSONValue, jcs, parse_strict
from tallystick.errors import RunFailedError, TallystickError

MAX_MESSAGE = 32 * 1024 * 1024
_PEAK = re.compile(rb"^VmHWM:\s+(\d+) kB$", re.MULTILINE)
_STDERR_TAIL = 16 * 1024
# Kinds of messages that come once a token: too many to look at the child's memory at each.
_FREQUENT = ("event", "text")
# The child's whole environment; callers add what the engine reads when it is loaded.
_BASE_ENVIRONMENT = {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"}


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a child: ``kind`` and a JSON object."""

    kind: str
    body: dict[str, Any]


def _sealed(data: bytes) -> int:
    """Return a descriptor, at offset 0, of a read-only copy of ``data``."""
    if hasattr(os, "memfd_create"):
        import fcntl

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
        self._buffer = bytearray()
        self._tail = bytearray()
        self._done = False
        stdin = _sealed(jcs(request))
        self._read, write = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-X", "utf8", "-m", program, str(write)],
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(write, *pass_fds),
                env={**_BASE_ENVIRONMENT, **(environment or {})},
                start_new_session=True,
            )
        except BaseException:
            os.close(self._read)
            raise
        finally:
            os.close(stdin)
            os.close(write)
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

    def messages(self, *, idle_timeout: float | None = None) -> Iterator[Message]:
        """Yield messages until the child says it is done.

        Raises the error the child reported, or RunFailedError when it died, spoke out of form, or
        said nothing for ``idle_timeout`` seconds.
        """
        while True:
            end = self._buffer.find(b"\n")
            if end < 0:
                if len(self._buffer) > MAX_MESSAGE:
                    raise RunFailedError(
                        "the child sent an oversized message", expected=f"at most {MAX_MESSAGE} B"
                    )
                if not self._fill(idle_timeout):
                    raise self._death()
                continue
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            message = _parse_message(line)
            if message.kind not in _FREQUENT:
                self._sample_peak()
            if message.kind == "done":
                self._done = True
                return
            if message.kind == "error":
                raise _error_from(message.body)
            yield message

    def _fill(self, idle_timeout: float | None) -> bool:
        ready, _, _ = select.select([self._read], [], [], idle_timeout)
        if not ready:
            raise RunFailedError(
                "the child made no progress",
                expected=f"a message every {idle_timeout:.0f} s",
                hint="try again on a less busy machine, or raise the deadline",
            )
        chunk = os.read(self._read, 1 << 20)
        self._buffer += chunk
        return bool(chunk)

    def _death(self) -> RunFailedError:
        code = self._wait()
        text = bytes(self._tail).decode("utf-8", "replace").strip()
        if code is not None and code < 0:
            how = f"killed by {signal.Signals(-code).name}"
        else:
            how = f"exit status {code}"
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

    def _wait(self) -> int | None:
        """Reap the child."""
        code = self._process.wait()
        self._drain.join(timeout=5)
        return code

    def close(self) -> None:
        """End the child if it still runs, and release everything."""
        if self._process.returncode is None:
            if self._done:
                self._await_exit(5.0)
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._wait()
        if self._read >= 0:
            os.close(self._read)
            self._read = -1

    def _await_exit(self, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _parse_message(line: bytes) -> Message:
    try:
        value = parse_strict(line, max_bytes=MAX_MESSAGE)
    except TallystickError as error:
        raise RunFailedError("the child sent something that is not JSON") from error
    if (
        not isinstance(value, dict)
        or set(value) != {"kind", "body"}
        or not isinstance(value["kind"], str)
        or not isinstance(value["body"], dict)
    ):
        raise RunFailedError("the child sent a message of unknown form")
    return Message(kind=value["kind"], body=value["body"])


def _error_from(body: dict[str, Any]) -> TallystickError:
    kind = getattr(errors, str(body.get("type")), None)
    if not (isinstance(kind, type) and issubclass(kind, TallystickError)):
        kind = RunFailedError

    def text(name: str) -> str | None:
        value = body.get(name)
        return value[:4000] if isinstance(value, str) else None

    return kind(
        text("message") or "the child failed",
        expected=text("expected"),
        found=text("found"),
        hint=text("hint"),
    )


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
