"""The events of one run, stamped where they happen (docs/spec/telemetry.md)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class EventKind(StrEnum):
    """What happened."""

    INIT = "Init"
    LOADING = "Loading"
    LOAD_COMPLETE = "LoadComplete"
    TOKEN_EMITTED = "TokenEmitted"  # noqa: S105 - a model's token, no password
    ARENA_RESET = "ArenaReset"
    SHUTDOWN_COMPLETE = "ShutdownComplete"
    PREFETCH_HIT = "PrefetchHit"
    PREFETCH_MISS = "PrefetchMiss"
    LAYER_INSTALLED = "LayerInstalled"
    LAYER_EVICTED = "LayerEvicted"


#: The events of a layer ring: each names its layer.
LAYER_EVENTS: Final = frozenset(
    {
        EventKind.PREFETCH_HIT,
        EventKind.PREFETCH_MISS,
        EventKind.LAYER_INSTALLED,
        EventKind.LAYER_EVICTED,
    }
)
#: So many of them are reported in one run; those that follow are counted in the receipt only.
MAX_LAYER_EVENTS: Final = 2048


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its number in the run, two clocks in nanoseconds, resident memory in bytes.

    ``index`` counts generated tokens from 0 and is present exactly for TokenEmitted: a token's id
    or text is private and never an event. ``layer`` is present exactly for the events of a ring.
    """

    kind: EventKind
    seq: int
    monotonic_ns: int
    wall_ns: int
    rss: int
    index: int | None = None
    layer: int | None = None

    def __post_init__(self) -> None:
        if (self.index is not None) != (self.kind is EventKind.TOKEN_EMITTED):
            raise ValueError("exactly a TokenEmitted event has an index")
        if (self.layer is not None) != (self.kind in LAYER_EVENTS):
            raise ValueError("exactly an event of a layer ring has a layer")


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

    def __call__(
        self, kind: EventKind, index: int | None = None, layer: int | None = None
    ) -> Event:
        """Return the next event, stamped now."""
        event = Event(
            kind=kind,
            seq=self._next,
            monotonic_ns=time.monotonic_ns(),
            wall_ns=time.time_ns(),
            rss=self._rss(),
            index=index,
            layer=layer,
        )
        self._next += 1
        return event
