"""What a worker does right now, for whoever looks: pieced together from what it tells.

Told by the worker's thread, asked by another: nothing here waits for either, and nothing private
comes this way (docs/spec/worker.md#live-view).
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tallystick.errors import TallystickError
from tallystick.queues.port import JobState, Queue
from tallystick.telemetry.bus import EventBus
from tallystick.telemetry.events import Event, EventKind
from tallystick.telemetry.rss import resident_bytes
from tallystick.worker.turns import Turn

_TURNS: Final = 8
_RATE_TOKENS: Final = 64  # the latest ones that tell the speed
_COUNT_NS: Final = 1_000_000_000
#: Events that begin a stage of a run; the others happen within one.
_STAGES: Final = frozenset(
    {
        EventKind.INIT,
        EventKind.LOADING,
        EventKind.LOAD_COMPLETE,
        EventKind.TOKEN_EMITTED,
        EventKind.ARENA_RESET,
        EventKind.SHUTDOWN_COMPLETE,
    }
)


@dataclass(frozen=True, slots=True)
class RunView:
    """The present run. ``doing`` is the name of an event or of work whose progress is told.

    ``share`` (0..1) is how far that work is, None where nobody knows. ``rate`` is in tokens a
    second over the latest tokens, None before the second. ``rss`` and ``peak`` are bytes of the
    process that stamped the events. ``dropped`` counts events that the child dropped so far;
    ``missed`` those that were lost to this view alone.
    """

    job_id: str
    doing: str
    share: float | None
    seconds: float
    tokens: int
    rate: float | None
    rss: int
    peak: int
    events: tuple[tuple[str, int], ...]
    dropped: int
    missed: int


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker at one moment: its run, None when it is idle; its last turns, newest last.

    ``counts`` of the queue are None while that does not answer. ``rss`` is the worker's own.
    """

    run: RunView | None
    turns: tuple[Turn, ...]
    done: int
    counts: tuple[tuple[JobState, int], ...] | None
    rss: int


@dataclass(slots=True)
class _Run:
    """What is known of the present run, as it is being pieced together."""

    job_id: str
    began_ns: int
    missed_before: int
    doing: str = "begun"
    doing_ns: int = 0
    share: float | None = None
    tokens: int = 0
    stamps: deque[int] = field(default_factory=lambda: deque(maxlen=_RATE_TOKENS))
    rss: int = 0
    peak: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    numbered: int = 0

    def add(self, event: Event) -> None:
        """Take an event into account."""
        self.kinds[event.kind] += 1
        self.numbered = event.seq + 1
        if event.index is not None:
            self.tokens = event.index + 1
            self.stamps.append(event.monotonic_ns)
        if event.kind is not EventKind.SHUTDOWN_COMPLETE:  # the supervisor's own memory
            self.rss = event.rss
            self.peak = max(self.peak, event.rss)
        if event.kind in _STAGES:
            self.set_doing(event.kind, event.monotonic_ns)

    def set_doing(self, what: str, stamp_ns: int, share: float | None = None) -> None:
        """Note what it does, unless something later is known."""
        if stamp_ns >= self.doing_ns:
            self.doing, self.doing_ns, self.share = what, stamp_ns, share

    def view(self, missed: int) -> RunView:
        """Return it for showing; ``missed`` are the subscriber's losses so far."""
        stamps = self.stamps
        spent = stamps[-1] - stamps[0] if len(stamps) > 1 else 0
        missed -= self.missed_before
        lost = self.numbered - self.kinds.total() - missed
        return RunView(
            job_id=self.job_id,
            doing=self.doing,
            share=self.share,
            seconds=(time.monotonic_ns() - self.began_ns) / 1e9,
            tokens=self.tokens,
            rate=(len(stamps) - 1) * 1e9 / spent if spent > 0 else None,
            rss=self.rss,
            peak=self.peak,
            events=tuple(self.kinds.items()),
            dropped=max(0, lost),
            missed=missed,
        )


class Watch:
    """Pieces together a :class:`WorkerView`. Subscribed to ``bus`` from when it is made.

    ``begin``, ``progress`` and ``turn`` are for a worker's Listener.
    """

    def __init__(self, bus: EventBus, queue: Queue) -> None:
        self._subscriber = bus.subscribe()
        self._queue = queue
        self._lock = threading.Lock()
        self._run: _Run | None = None
        self._turns: deque[Turn] = deque(maxlen=_TURNS)
        self._done = 0
        self._counts: tuple[tuple[JobState, int], ...] | None = None
        self._counted_ns = 0

    def begin(self, job_id: str) -> None:
        """Note that a run begins."""
        with self._lock:
            self._run = _Run(job_id, time.monotonic_ns(), self._subscriber.dropped)

    def progress(self, what: str, done: int, total: int) -> None:
        """Note how far the present run's work is."""
        share = done / total if total else None
        with self._lock:
            if self._run is not None:
                self._run.set_doing(what, time.monotonic_ns(), share)

    def turn(self, turn: Turn) -> None:
        """Note that the present run is over."""
        with self._lock:
            self._run = None
            self._turns.append(turn)
            self._done += 1
            self._counted_ns = 0  # the queue has changed

    def view(self) -> WorkerView:
        """Return how things stand: everything that waits on the bus is taken into account.

        Asks the queue once a second at most, and after each turn. For one thread, which is not the
        worker's.
        """
        events = self._subscriber.drain()
        self._count()
        with self._lock:
            run = self._run
            if run is not None:
                for event in self._of(run, events):
                    run.add(event)
            return WorkerView(
                run=None if run is None else run.view(self._subscriber.dropped),
                turns=tuple(self._turns),
                done=self._done,
                counts=self._counts,
                rss=resident_bytes(),
            )

    @staticmethod
    def _of(run: _Run, events: tuple[Event, ...]) -> Iterator[Event]:
        """Yield the events of ``run``; those that came before it began are another's."""
        return (event for event in events if event.monotonic_ns >= run.began_ns)

    def _count(self) -> None:
        now = time.monotonic_ns()
        with self._lock:
            if self._counted_ns and now - self._counted_ns < _COUNT_NS:
                return
            self._counted_ns = now
        try:
            self._counts = self._queue.counts()
        except TallystickError:
            self._counts = None

    def close(self) -> None:
        """Hear nothing more."""
        self._subscriber.close()
