"""The supervisor's half: start one child per piece of work, read its messages, see it gone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tallystick.canonical.json import JSONValue
from tallystick.contracts.egress import EgressReport
from tallystick.errors import RunFailedError
from tallystick.sandbox.audit import require_passed
from tallystick.sandbox.cage_spec import Refusal
from tallystick.sandbox.confinement import (
    Confinement,
    Held,
    await_lock,
    prepared,
    refused,
    release,
    require_held,
)
from tallystick.sandbox.messages import (
    CHILD_ERRORS,
    ErrorClasses,
    Message,
    MessageReader,
    error_from,
)
from tallystick.sandbox.programs import Process, Start, spawn
from tallystick.sandbox.sealed import sealed
from tallystick.sandbox.template import Template

_PEAK = re.compile(rb"^VmHWM:\s+(\d+) kB$", re.MULTILINE)
_STDERR_TAIL = 16 * 1024
_GRACE = 5.0  # seconds for a child that has nothing left to do
_PIPE_BYTES = 1024 * 1024  # what anybody may ask for
# Kinds of messages that come once a token: too many to look at the child's memory at each.
_FREQUENT = ("event", "text", "data")


def _widen(pipe: int) -> None:
    """Let a child go on computing while what it sent is looked at, where the system can."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


class Child:
    """A running child program. Use as a context manager: leaving it means the child is gone.

    ``program`` is a module that calls :func:`tallystick.sandbox.channel.serve`; ``request`` is a
    JSON value; ``pass_fds`` stay open in the child under the same numbers.

    With a ``template``, which has to be of the same program and environment, it is forked by that;
    without one, or when that is gone, it is started afresh.

    With a ``confinement`` the child locks itself and is looked at before it gets to its work.
    Raises SandboxError then, when no acceptable level can be enforced, or a channel is open that
    the level promises closed; ``audit`` is the report on the sandbox.

    ``peak_rss`` is the child's peak resident memory as far as the kernel has told it, in bytes;
    ``peak_is_final`` says that it was told when the child had done its work.
    """

    def __init__(
        self,
        program: str,
        request: JSONValue,
        *,
        environment: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        confinement: Confinement | None = None,
        template: Template | None = None,
    ) -> None:
        self.peak_rss = 0
        self._template = template
        self.peak_is_final = False
        self._done = False
        self._held: Held | None = None
        start = Start(program, request, environment or {}, tuple(pass_fds))
        if confinement is None:
            self._start(start)
        else:
            self._start_held(start, confinement)

    def _start(self, start: Start, spec: int | None = None, given: Sequence[int] = ()) -> None:
        """Start the program; ``spec`` describes its cage, for which it is ``given`` descriptors."""
        self._tail = bytearray()
        with contextlib.ExitStack() as theirs:
            stdin = sealed(start.request)
            theirs.callback(os.close, stdin)
            self._read, write = os.pipe()
            theirs.callback(os.close, write)
            said, stderr = os.pipe()
            theirs.callback(os.close, stderr)
            _widen(self._read)
            words = [write] if spec is None else [write, spec]
            passed = (write, *start.pass_fds, *given)
            try:
                forked = None
                if self._template is not None:
                    places = {0: stdin, 2: stderr, **{number: number for number in passed}}
                    forked = self._template.fork(places, words)
                self._process: Process = forked or spawn(
                    start.program,
                    [str(word) for word in words],
                    environment=start.environment,
                    stdin=stdin,
                    stderr=stderr,
                    pass_fds=passed,
                )
            except BaseException:
                os.close(self._read)
                os.close(said)
                raise
        self._reader = MessageReader(self._read)
        self._drain = threading.Thread(target=self._drain_stderr, args=(said,), daemon=True)
        self._drain.start()

    def _start_held(self, start: Start, confinement: Confinement) -> None:
        """Start the program locked, at the highest acceptable level that can be enforced."""
        lowered: list[str] = []
        *others, lowest = confinement.profile.levels()
        for level in others:
            refusal = self._start_at(start, confinement, level, lowered)
            if refusal is None:
                return
            lowered.append(f"{level}: {refusal.step}: {refusal.text}")
        if (refusal := self._start_at(start, confinement, lowest, lowered)) is not None:
            raise refused(refusal, confinement.profile, lowest)

    def _start_at(
        self, start: Start, confinement: Confinement, level: str, lowered: Sequence[str]
    ) -> Refusal | None:
        with prepared(confinement, level, start.pass_fds) as ends:
            self._start(start, ends.spec, ends.given)
            try:
                held = await_lock(ends, self._process.pid, confinement, level, lowered)
                if held is None:
                    raise self._death()
                if isinstance(held, Refusal):
                    self.close()
                    return held
                self._held = held
                if confinement.on_open == "refuse":
                    require_passed(held.report)
                release(ends)
            except BaseException:
                self.close()
                raise
        return None

    @property
    def audit(self) -> EgressReport | None:
        """The report on the child's sandbox, None without one."""
        return None if self._held is None else self._held.report

    @property
    def pid(self) -> int:
        """Process id of the child, from outside: of its locked self, if it is held."""
        return self._process.pid if self._held is None else self._held.pid

    def _drain_stderr(self, said: int) -> None:
        with open(said, "rb", buffering=0) as stream:
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
            seen = message.kind not in _FREQUENT and self._sample_peak()
            if message.kind == "done":
                self.peak_is_final = seen
                if self._held is not None:
                    require_held(self._held)
                self._done = True
                return
            if message.kind == "error":
                raise error_from(message.body, errors)
            yield message

    def _death(self) -> RunFailedError:
        ended = self._await_exit(_GRACE)
        self._kill_group()
        if not ended:
            self._process.wait()
            how = "it closed its pipe and went on"
        elif (code := self._process.returncode or 0) < 0:
            how = f"killed by {_signal_name(-code)}"
        else:
            how = f"exit status {code}"
        self._drain.join(timeout=_GRACE)
        said = bytes(self._tail).decode("utf-8", "replace")[-2000:].splitlines()
        words = " | ".join(line for line in said if line.strip())
        return RunFailedError(
            "the child process ended before its work was done",
            found=how + (f"; its last words: {words}" if words else ""),
            hint="if it was killed by SIGKILL, the machine probably ran out of memory",
        )

    def _sample_peak(self) -> bool:
        """Note the child's peak resident memory so far; say whether it could be seen.

        Not from getrusage: its maximum begins with what the parent had when it forked.
        """
        try:
            status = Path(f"/proc/{self.pid}/status").read_bytes()
        except OSError:
            return False
        found = _PEAK.search(status)
        if found is not None:
            self.peak_rss = max(self.peak_rss, int(found.group(1)) * 1024)
        return found is not None

    def close(self) -> None:
        """End the child if it still runs, and release everything."""
        if self._read >= 0:
            os.close(self._read)  # a child that is done waits for this
            self._read = -1
        if self._process.returncode is None:
            if self._done and self._await_exit(_GRACE):
                self._kill_group()  # what it may have started
            else:
                self._kill()
        # Its standard error closes with the last process that holds it.
        self._drain.join(timeout=_GRACE)

    def _kill(self) -> None:
        self._kill_group()
        self._process.wait()

    def _kill_group(self) -> None:
        """Kill the child and what it started in its session, if it is only just over."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody of ours is left
            os.killpg(self._process.pid, signal.SIGKILL)

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
    confinement: Confinement | None = None,
) -> dict[str, Any]:
    """Run a child program to its end and return the body of its one ``result`` message."""
    result: dict[str, Any] | None = None
    with Child(
        program, request, environment=environment, pass_fds=pass_fds, confinement=confinement
    ) as child:
        for message in child.messages(idle_timeout=idle_timeout):
            if message.kind == "result":
                result = message.body
    if result is None:
        raise RunFailedError("the child ended without a result")
    return result
