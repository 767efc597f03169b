"""The stop switch: what it raises, and where alone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tallystick.errors import InterruptedRunError, LostLeaseError, RunFailedError
from tallystick.worker.stopping import StopSwitch
from tests.support import workers
from tests.support.workers import LONG, wait

WAITS = workers.__name__


SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.fixture(autouse=True)
def _survivor() -> Iterator[None]:
    """A signal outside of a switch does nothing here, whatever the tests were started by."""
    before = [signal.signal(number, lambda *_: None) for number in SIGNALS]
    yield
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_signals_are_handled_inside_only() -> None:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM)
    before = [signal.getsignal(number) for number in numbers]
    with StopSwitch(1):
        assert all(
            signal.getsignal(number) != handler
            for number, handler in zip(numbers, before, strict=True)
        )
        assert signal.getitimer(signal.ITIMER_REAL)[1] > 0
    assert [signal.getsignal(number) for number in numbers] == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_a_signal_that_is_to_be_ignored_is() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopSwitch(LONG) as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert not stop.asked
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.mark.parametrize("number", SIGNALS)
def test_one_signal_asks_and_two_are_overdue(number: signal.Signals) -> None:
    with StopSwitch(LONG) as stop:
        assert (stop.asked, stop.overdue) == (False, False)
        os.kill(os.getpid(), number)
        assert (stop.asked, stop.overdue) == (True, False)
        os.kill(os.getpid(), number)
        assert (stop.asked, stop.overdue) == (True, True)


def test_nothing_is_raised_where_no_run_is() -> None:
    with StopSwitch(0, waits=WAITS) as stop:
        terminate()
        terminate()
        wait(0.6)
        stop.check()
        stop.begin(LONG)
        stop.end()
        wait(0.6)


def test_nothing_is_raised_but_where_a_run_waits() -> None:
    with StopSwitch(0, waits=WAITS) as stop:
        stop.begin(LONG)
        terminate()
        terminate()
        end = time.monotonic() + 0.6
        while time.monotonic() < end:  # this module is none in which a run waits
            time.sleep(0.01)
        with pytest.raises(InterruptedRunError):
            wait()
        with pytest.raises(InterruptedRunError):  # and again, should the first have been swallowed
            wait()
        with pytest.raises(InterruptedRunError):
            stop.check()
        stop.end()


def test_a_deadline_is_of_one_run() -> None:
    with StopSwitch(LONG, waits=WAITS) as stop:
        stop.begin(0.3)
        with pytest.raises(RunFailedError, match="deadline"):
            wait()
        stop.end()
        stop.begin(LONG)
        wait(0.6)
        stop.end()


def test_an_abort_is_of_one_run() -> None:
    with StopSwitch(LONG, waits=WAITS) as stop:
        stop.begin(LONG)
        stop.abort(LostLeaseError("gone"))
        with pytest.raises(LostLeaseError):
            wait()
        stop.end()
        stop.begin(LONG)
        wait(0.6)
        stop.end()


def test_the_grace_begins_with_the_signal_not_with_the_run() -> None:
    with StopSwitch(0.3, waits=WAITS) as stop:
        terminate()
        time.sleep(0.4)
        stop.begin(LONG)
        with pytest.raises(InterruptedRunError):
            stop.check()


def test_ticks_come_from_the_main_thread_whatever_it_does() -> None:
    ticks: list[float] = []
    with StopSwitch(1, on_tick=lambda: ticks.append(time.monotonic())):
        end = time.monotonic() + 1.2
        while time.monotonic() < end:
            pass
    assert len(ticks) >= 2
    seen = len(ticks)
    time.sleep(0.6)
    assert len(ticks) == seen


def test_waiting_ends_when_it_is_asked_to() -> None:
    stop = StopSwitch(1)
    started = time.monotonic()
    stop.wait(0.15)
    assert time.monotonic() - started >= 0.15
    stop.ask()
    stop.wait(LONG)
    assert time.monotonic() - started < LONG / 2
