"""How a worker is told to stop: once to finish or release, twice to abort and release."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Self

from tallystick.errors import InterruptedRunError, RunFailedError

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSwitch:
    """Turns SIGTERM and SIGINT into an orderly stop; also keeps the deadline of the present run.

    Use it as a context manager in the main thread. The first signal lets the present run go on for
    ``grace_seconds``; then, or at the second signal, InterruptedRunError is raised in it.
    """

    def __init__(self, grace_seconds: float) -> None:
        self._grace = grace_seconds
        self._asked = threading.Event()
        self._running = False
        self._deadline: float | None = None
        self._stop_at: float | None = None
        self._before: list[tuple[int, object]] = []

    @property
    def asked(self) -> bool:
        """Whether the worker was told to stop."""
        return self._asked.is_set()

    def ask(self) -> None:
        """Tell the worker to stop, as the first signal does."""
        if not self.asked:
            self._stop_at = time.monotonic() + self._grace
            self._asked.set()
            self._arm()

    def wait(self, seconds: float) -> None:
        """Sleep until the worker is told to stop, at most ``seconds``."""
        self._asked.wait(seconds)

    def begin(self, run_seconds: float) -> None:
        """Say that a run begins; after ``run_seconds`` RunFailedError is raised in it."""
        self._running = True
        self._deadline = time.monotonic() + run_seconds
        self._arm()

    def end(self) -> None:
        """Say that the run is over."""
        self._running = False
        self._deadline = None
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _arm(self) -> None:
        if not self._running:
            return
        ends = [end for end in (self._deadline, self._stop_at) if end is not None]
        left = max(0.001, min(ends) - time.monotonic())
        signal.setitimer(signal.ITIMER_REAL, left, 1.0)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self.asked and self._running:
            raise InterruptedRunError("told to stop twice: the run was given up")
        self.ask()

    def _on_alarm(self, _number: int, _frame: FrameType | None) -> None:
        if not self._running:
            return
        now = time.monotonic()
        if self._stop_at is not None and now >= self._stop_at:
            raise InterruptedRunError("told to stop: the run did not end in time")
        if self._deadline is not None and now >= self._deadline:
            raise RunFailedError("the run did not end before its deadline")

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            self._before.append((number, signal.signal(number, self._on_signal)))
        self._before.append((signal.SIGALRM, signal.signal(signal.SIGALRM, self._on_alarm)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in reversed(self._before):
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before.clear()
