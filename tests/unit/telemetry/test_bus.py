"""The bus of events: who publishes never waits, and who listens knows what it missed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from tallystick.telemetry.bus import EventBus, LocalBus, Subscriber
from tallystick.telemetry.events import Event
from tests.support.sets import make_events

EVENTS = make_events(20)


def received(subscriber: Subscriber) -> list[Event]:
    return list(iter(subscriber.try_recv, None))


@pytest.fixture(params=[LocalBus])
def bus(request: pytest.FixtureRequest) -> EventBus:
    """Every adapter of the port."""
    make: Callable[[], EventBus] = request.param
    return make()


def test_everybody_hears_all_that_comes_after_they_subscribed(bus: EventBus) -> None:
    bus.publish(EVENTS[0])
    first = bus.subscribe()
    bus.publish(EVENTS[1])
    second = bus.subscribe()
    bus.publish(EVENTS[2])
    assert first.drain() == (EVENTS[1], EVENTS[2])
    assert received(second) == [EVENTS[2]]
    assert (first.drain(), second.try_recv()) == ((), None)
    assert (first.dropped, second.dropped) == (0, 0)


def test_what_does_not_fit_is_lost_to_one_alone_and_counted(bus: EventBus) -> None:
    small, large = bus.subscribe(3), bus.subscribe()
    for event in EVENTS[:10]:
        bus.publish(event)
    assert small.dropped == 7
    assert small.try_recv() == EVENTS[0]
    bus.publish(EVENTS[10])
    # The oldest stay: the gap is where it happened, and shows in the numbers.
    assert small.drain() == (EVENTS[1], EVENTS[2], EVENTS[10])
    assert small.dropped == 7
    assert (large.drain(), large.dropped) == (tuple(EVENTS[:11]), 0)


def test_a_closed_subscriber_hears_nothing_more(bus: EventBus) -> None:
    one, other = bus.subscribe(), bus.subscribe()
    bus.publish(EVENTS[0])
    one.close()
    one.close()
    bus.publish(EVENTS[1])
    assert one.drain() == (EVENTS[0],)
    assert other.drain() == (EVENTS[0], EVENTS[1])
    assert one.dropped == 0


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_subscriber_has_room_for_something(bus: EventBus, capacity: int) -> None:
    with pytest.raises(ValueError, match="room"):
        bus.subscribe(capacity)


def test_nobody_who_publishes_waits_for_a_listener_that_does_not_listen(bus: EventBus) -> None:
    idle = bus.subscribe(1)
    started = time.monotonic()
    for _ in range(2000):
        for event in EVENTS:
            bus.publish(event)
    assert time.monotonic() - started < 30  # it takes some hundredths of a second
    assert idle.dropped == 2000 * len(EVENTS) - 1


def test_many_threads_lose_nothing_and_count_everything(bus: EventBus) -> None:
    rounds, threads = 300, 4
    bounded = bus.subscribe(50)
    heard: list[Event] = []
    whole = bus.subscribe(rounds * threads * len(EVENTS))
    over = threading.Event()

    def publish() -> None:
        for _ in range(rounds):
            for event in EVENTS:
                bus.publish(event)

    def listen() -> None:
        while not over.is_set():
            heard.extend(bounded.drain())
            bus.subscribe().close()

    listener = threading.Thread(target=listen)
    publishers = [threading.Thread(target=publish) for _ in range(threads)]
    for thread in (listener, *publishers):
        thread.start()
    for thread in publishers:
        thread.join()
    over.set()
    listener.join()
    heard.extend(bounded.drain())
    total = rounds * threads * len(EVENTS)
    assert len(whole.drain()) == total
    assert whole.dropped == 0
    assert len(heard) + bounded.dropped == total
