"""The supervisor's ear for a child's events: in form, in order, no more than its job has.

What a child says of itself is held against what the supervisor knows
(docs/spec/telemetry.md#from-the-child-to-the-file).
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Final, Self

from tallystick.errors import RunFailedError
from tallystick.telemetry.bus import EventBus
from tallystick.telemetry.events import LAYER_EVENTS, Event, EventKind

_U32: Final = 2**32
_U64: Final = 2**64
# The kernel counts resident pages for each processor and adds them up late.
_RSS_SLACK: Final = 16 * 1024 * 1024


class Hearing:
    """Publishes the events of one child on ``bus``, and collects them from there.

    It is subscribed as soon as it is made, which is before there is a child: none can be missed.
    ``most`` is how many events the child's job has at most.
    """

    def __init__(self, bus: EventBus, most: int) -> None:
        self._bus = bus
        self._most = most
        self._subscriber = bus.subscribe()
        self._next = 0
        self._events: list[Event] = []

    def take(self, body: dict[str, Any]) -> None:
        """Publish the event in ``body``. Raises RunFailedError for one that cannot be."""
        event = _event(body)
        if event.seq < self._next:
            raise RunFailedError(
                "the child sent an event out of order",
                expected=f"number {self._next} or a later one",
                found=str(event.seq),
            )
        if event.seq >= self._most:
            raise RunFailedError(
                "the child sent more events than its job has", expected=f"at most {self._most}"
            )
        self._next = event.seq + 1
        self._bus.publish(event)

    def collect(self) -> None:
        """Take over what waits on the bus; to be called with every message."""
        self._events += self._subscriber.drain()

    def events(self) -> tuple[Event, ...]:
        """Return what was collected."""
        self.collect()
        return tuple(self._events)

    def count(self, body: dict[str, Any]) -> int:
        """Return how many events the child says it had, dropped ones included.

        ``body`` is that of a result, whose own "events" may be of another kind. Raises
        RunFailedError when that cannot be.
        """
        said = counted(body, "events_told") if "events_told" in body else self._next
        if not self._next <= said <= self._most:
            raise RunFailedError(
                "the child had another number of events than it says",
                expected=f"{self._next} to {self._most}",
                found=str(said),
            )
        return said

    def peak(self, seen: int, *, final: bool) -> int:
        """Return the child's peak resident memory in bytes; ``seen`` is what the kernel said.

        ``final``: it said so when the child had done its work, and so it is the truth. Raises
        RunFailedError when an event has told of more. Else, what the child told of itself is a
        lower bound.
        """
        told = max((event.rss for event in self._events), default=0)
        if not final:
            return max(seen, told)
        if told > seen + _RSS_SLACK:
            raise RunFailedError(
                "the child told of more memory than it had",
                expected=f"at most {seen} B resident",
                found=f"{told} B",
            )
        return seen

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._subscriber.close()


def counted(body: dict[str, Any], name: str, below: int = _U64) -> int:
    """Return the number ``name`` of a message. Raises RunFailedError for anything else."""
    value = body.get(name)
    if type(value) is not int or not 0 <= value < below:
        raise RunFailedError("the child sent a malformed number", found=name)
    return value


def _big(body: dict[str, Any], name: str) -> int:
    text = body.get(name)
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 21:
        value = int(text)
        if value < _U64:
            return value
    raise RunFailedError("the child sent a malformed event", found=name)


def _event(body: dict[str, Any]) -> Event:
    try:
        kind = EventKind(str(body.get("event")))
        return Event(
            kind=kind,
            seq=counted(body, "seq", _U32),
            monotonic_ns=_big(body, "monotonic_ns"),
            wall_ns=_big(body, "wall_ns"),
            rss=_big(body, "rss"),
            index=counted(body, "index", _U32) if kind is EventKind.TOKEN_EMITTED else None,
            layer=counted(body, "layer", _U32) if kind in LAYER_EVENTS else None,
        )
    except ValueError:
        raise RunFailedError("the child sent an unknown event") from None
