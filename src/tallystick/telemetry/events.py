"""The events of one run, stamped where they happen (docs/spec/telemetry.md)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class EventKind(StrEnum):
    """What happened. Events of a layer ring have reserved names in the spec only."""

    INIT = "Init"
    LOADING = "Loading"
    LOAD_COMPLETE = "LoadComplete"
    TOKEN_EMITTED = "TokenEmitted"  # noqa: S105 - a model's token, no password
    ARENA_RESET = "ArenaReset"
    SHUTDOWN_COMPLETE = "ShutdownComplete"


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its number in the run, two clocks in nanoseconds, resident memory in bytes.

    ``index`` counts generated tokens from 0 and is present exactly for TokenEmitted: a token's id
    or text is private and never an event.
    """

    kind: EventKind
    seq: int
    monotonic_ns: int
    wall_ns: int
    rss: int
    index: int | None = None

    def __post_init__(self) -> None:
        if (self.index is not None) != (self.kind is EventKind.TOKEN_EMITTED):
            raise ValueError("exactly a TokenEmitted event has an index")


class Stamper:
    """Makes numbered events at their source; ``rss`` returns resident bytes at the call."""

    __slots__ = ("_next", "_rss")

    def __init__(self, rss: Callable[[], int], *, first_seq: int = 0) -> None:
        self._rss = rss
        self._next = first_seq

    @property
    def next_seq(self) -> int:
        """The number that the next event gets."""
        return self._next

    def __call__(self, kind: EventKind, index: int | None = None) -> Event:
        """Return the next event, stamped now."""
        event = Event(
            kind=kind,
            seq=self._next,
            monotonic_ns=time.monotonic_ns(),
            wall_ns=time.time_ns(),
            rss=self._rss(),
            index=index,
        )
        self._next += 1
        return event
