"""How a worker is told to stop: once to finish or release, twice to abort and release.

An abort comes to a run only where that is safe: while it waits for its child, or where it asks.
Raised anywhere else, it could come between the start of a child and the note of it, or into the
middle of a clean-up, and leave something behind.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Final, Self

from tallystick.errors import InterruptedRunError, RunFailedError, TallystickError
from tallystick.sandbox import messages

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_TICK_SECONDS: Final = 0.25
_SLICE_SECONDS: Final = 0.1


def no_tick() -> None:
    """Do nothing."""


class StopSwitch:
    """Turns signals into an orderly stop; also keeps the deadline of the present run.

    Use it as a context manager in the main thread. The first signal lets the present run go on for
    ``grace_seconds``; then, or at the second signal, InterruptedRunError is raised in it, in code
    of the module ``waits`` only. ``on_tick`` is called some times a second from the main thread, as
    long as that is not stuck: in the midst of anything, so it must be short and raise nothing.
    """

    def __init__(
        self,
        grace_seconds: float,
        *,
        waits: str = messages.__name__,
        on_tick: Callable[[], None] = no_tick,
    ) -> None:
        self._grace = grace_seconds
        self._waits = waits
        self._on_tick = on_tick
        self._stop_at: float | None = None
        self._running = False
        self._deadline: float | None = None
        self._abort: TallystickError | None = None
        self._before: list[tuple[int, object]] = []

    @property
    def asked(self) -> bool:
        """Whether the worker was told to stop."""
        return self._stop_at is not None

    @property
    def overdue(self) -> bool:
        """Whether what still goes on is to be given up: the grace is over."""
        return self._stop_at is not None and time.monotonic() >= self._stop_at

    def ask(self) -> None:
        """Tell the worker to stop, as a signal does; the second time, at once."""
        self._stop_at = time.monotonic() + (0 if self.asked else self._grace)

    def wait(self, seconds: float) -> None:
        """Sleep until the worker is told to stop, at most ``seconds``."""
        # In slices: no lock that a signal's handler may take wakes a sleeper safely.
        end = time.monotonic() + seconds
        while not self.asked and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _SLICE_SECONDS))

    def begin(self, run_seconds: float) -> None:
        """Say that a run begins; after ``run_seconds`` RunFailedError is raised in it."""
        self._abort = None
        self._deadline = time.monotonic() + run_seconds
        self._running = True

    def end(self) -> None:
        """Say that the run is over."""
        self._running = False

    def abort(self, error: TallystickError) -> None:
        """Have ``error`` raised in the present run. From any thread."""
        self._abort = error

    def check(self) -> None:
        """Raise what the present run is to be given up for, if there is anything."""
        if self._running and (error := self._due()) is not None:
            raise error

    def _due(self) -> TallystickError | None:
        if self._abort is not None:
            return self._abort
        if self.overdue:
            return InterruptedRunError("the worker was told to stop, and the run did not end")
        if self._deadline is not None and time.monotonic() >= self._deadline:
            return RunFailedError("the run did not end before its deadline")
        return None

    def _on_signal(self, _number: int, frame: FrameType | None) -> None:
        self.ask()
        self._check_at(frame)

    def _on_alarm(self, _number: int, frame: FrameType | None) -> None:
        self._on_tick()
        self._check_at(frame)

    def _check_at(self, frame: FrameType | None) -> None:
        """Check, if that is safe where this thread is; else one of the next ticks will."""
        if frame is not None and frame.f_globals.get("__name__") == self._waits:
            self.check()

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            # Who started us may have others ignore it: nohup, say.
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before.append((number, signal.signal(number, self._on_signal)))
        self._before.append((signal.SIGALRM, signal.signal(signal.SIGALRM, self._on_alarm)))
        signal.setitimer(signal.ITIMER_REAL, _TICK_SECONDS, _TICK_SECONDS)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in reversed(self._before):
            with contextlib.suppress(TypeError):  # a handler that no Python code had set
                # None, of which the type checker warns, is the TypeError that is expected here.
                signal.signal(number, handler)  # type: ignore[arg-type]
        self._before.clear()
