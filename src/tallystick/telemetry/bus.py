"""The bus that events go over: whoever publishes never waits for whoever listens.

Each subscriber has a bounded queue of its own. What does not fit is lost to that subscriber alone,
who is told how much that was (docs/spec/telemetry.md#bus).
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final, Protocol

from tallystick.telemetry.events import Event

#: Events that wait for a subscriber at most, unless it asks for another bound.
DEFAULT_CAPACITY: Final = 4096


class Subscriber(Protocol):
    """One listener's end. From any thread."""

    @property
    def dropped(self) -> int:
        """How many events were published and did not fit."""
        ...

    def try_recv(self) -> Event | None:
        """Return the event that has waited longest, None when none waits. Never waits itself."""
        ...

    def drain(self) -> tuple[Event, ...]:
        """Return all events that wait, oldest first. Never waits."""
        ...

    def close(self) -> None:
        """Hear nothing more. What waits can still be received."""
        ...


class EventBus(Protocol):
    """Where events are published. From any thread."""

    def publish(self, event: Event) -> None:
        """Hand ``event`` to everybody who is subscribed now. Never waits, never raises."""
        ...

    def subscribe(self, capacity: int = DEFAULT_CAPACITY) -> Subscriber:
        """Return a subscriber to all that is published from now on."""
        ...


class LocalBus:
    """The bus of one process."""

    __slots__ = ("_lock", "_subscribers")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscribers: tuple[LocalSubscriber, ...] = ()

    def publish(self, event: Event) -> None:
        """Hand ``event`` to everybody who is subscribed now."""
        for subscriber in self._subscribers:
            subscriber._put(event)

    def subscribe(self, capacity: int = DEFAULT_CAPACITY) -> LocalSubscriber:
        """Return a subscriber with room for ``capacity`` events that wait. ValueError for none."""
        if capacity < 1:
            raise ValueError("a subscriber needs room for an event")
        subscriber = LocalSubscriber(self, capacity)
        with self._lock:
            self._subscribers = (*self._subscribers, subscriber)
        return subscriber

    def _forget(self, subscriber: LocalSubscriber) -> None:
        with self._lock:
            self._subscribers = tuple(one for one in self._subscribers if one is not subscriber)


class LocalSubscriber:
    """A queue in memory behind :class:`Subscriber`."""

    __slots__ = ("_bus", "_capacity", "_dropped", "_lock", "_waiting")

    def __init__(self, bus: LocalBus, capacity: int) -> None:
        self._bus = bus
        self._capacity = capacity
        self._dropped = 0
        self._lock = threading.Lock()  # held for an append at most: nobody waits for a listener
        self._waiting: deque[Event] = deque()

    @property
    def dropped(self) -> int:
        """How many events were published and did not fit."""
        return self._dropped

    def try_recv(self) -> Event | None:
        """Return the event that has waited longest, None when none waits."""
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def drain(self) -> tuple[Event, ...]:
        """Return all events that wait, oldest first."""
        with self._lock:
            events = tuple(self._waiting)
            self._waiting.clear()
        return events

    def close(self) -> None:
        """Hear nothing more. What waits can still be received."""
        self._bus._forget(self)

    def _put(self, event: Event) -> None:
        with self._lock:
            if len(self._waiting) < self._capacity:
                self._waiting.append(event)
            else:
                self._dropped += 1
