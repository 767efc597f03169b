"""A child that lies or floods on the pipe of its events: a failed run, of which nothing is left."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tallystick.canonical.json import jcs
from tallystick.contracts.runtime import Knob, RowClass
from tallystick.errors import RunFailedError
from tallystick.execution import launch
from tallystick.execution.jobs import EngineSetup, GenerateJob
from tallystick.execution.launch import Outcome, run_job
from tallystick.telemetry.bus import LocalBus
from tallystick.telemetry.events import Event, EventKind
from tallystick.telemetry.log import parse_log
from tallystick.telemetry.rss import resident_bytes
from tallystick.worker.execute import telemetry_of
from tests.support.children import RAW, use_test_children
from tests.support.documents import digest_of, example_run
from tests.support.runs import children_of
from tests.support.sets import make_events

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")

TOKENS = 4
MOST = TOKENS + 8
SETUP = EngineSetup(__file__, digest_of("library"), launch.file_identity(__file__), None, 1)
DONE: tuple[str, dict[str, Any]] = ("done", {})
RESULT: tuple[str, dict[str, Any]] = ("result", {"x": 1})


@pytest.fixture(autouse=True)
def _children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_test_children(monkeypatch, tmp_path)
    monkeypatch.setattr(launch, "PROGRAM", RAW)


def event(seq: int, kind: str = "Init", **changes: Any) -> tuple[str, dict[str, Any]]:
    body = {"event": kind, "seq": seq, "monotonic_ns": "1", "wall_ns": "2", "rss": "3"}
    return "event", {**body, **changes}


def hostile(*messages: tuple[str, dict[str, Any]], times: int = 1, sleep: int = 0) -> Outcome:
    """Run a job whose child writes ``messages``, ``times`` over, and then sleeps."""
    data = b"".join(jcs({"kind": kind, "body": body}) + b"\n" for kind, body in messages)
    run = replace(example_run(), max_tokens=TOKENS)
    job = GenerateJob(SETUP, 3, run, RowClass(1, 1), "00" * 32, 64, "no")
    words = {"BYTES": data.hex(), "TIMES": str(times), "SLEEP": str(sleep)}
    return run_job(job, tuple(Knob(name, value) for name, value in words.items()))


def test_a_child_of_these_that_keeps_the_rules_is_heard() -> None:
    outcome = hostile(event(0), event(2), ("result", {"events_told": 5}), DONE, sleep=600)
    assert ([one.seq for one in outcome.events], outcome.stamped) == ([0, 2], 5)
    assert outcome.peak_rss > 1 << 20


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([event(seq) for seq in range(300)], "more events than its job has"),
        ([event(MOST)], "more events than its job has"),
        ([event(0), event(0)], "out of order"),
        ([event(3), event(2)], "out of order"),
        ([event(0, "Explosion")], "unknown event"),
        ([event(0, "TokenEmitted", index=-1)], "malformed number"),
        ([event(0, rss="9" * 25)], "malformed event"),
        ([event(0), RESULT, event(1), DONE], "went on after its result"),
        ([event(0), RESULT, RESULT, DONE], "went on after its result"),
        ([event(0), ("result", {"events_told": 0}), DONE], "another number of events"),
        ([event(0), ("result", {"events_told": MOST + 1}), DONE], "another number of events"),
        ([event(0, rss=str(1 << 40)), RESULT, DONE], "more memory than it had"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else None,
)
def test_a_lie_is_a_failed_run_and_the_child_is_gone(
    messages: list[tuple[str, dict[str, Any]]], words: str
) -> None:
    # What the kernel says of its memory can be asked for only as long as it is there.
    sleep = 600 if "memory" in words or DONE not in messages else 0
    started = time.monotonic()
    with pytest.raises(RunFailedError, match=words):
        hostile(*messages, sleep=sleep)
    assert time.monotonic() - started < 300  # its sleep is not waited for
    assert children_of(os.getpid()) == ()


def test_a_flood_fills_no_memory() -> None:
    before = resident_bytes()
    with pytest.raises(RunFailedError, match="out of order"):
        hostile(event(0), times=10**6)
    with pytest.raises(RunFailedError, match="child process ended"):
        hostile(("alive", {"x": "y" * 1000}), times=3 * 10**4)  # all of it heard
    assert resident_bytes() - before < 20 << 20


def outcome(change: Callable[[list[Event]], list[Event]], stamped: int | None = None) -> Outcome:
    """Return an outcome with a run's events as ``change`` leaves them."""
    events = change(make_events(3)[:-1])
    return Outcome({}, tuple(events), events[-1].seq + 1 if stamped is None else stamped, 1)


def test_the_log_counts_what_is_missing_also_at_the_end() -> None:
    bus = LocalBus()
    heard = bus.subscribe()
    log = parse_log(telemetry_of(outcome(lambda events: events), bus))
    assert (log.tokens, log.dropped) == (3, 0)
    log = parse_log(telemetry_of(outcome(lambda events: events[:-1], stamped=7), bus))
    assert (log.tokens, log.dropped) == (2, 1)
    log = parse_log(telemetry_of(outcome(lambda events: events, stamped=10), bus))
    assert (log.tokens, log.dropped) == (3, 3)
    last = heard.drain()[-1]
    assert (last.kind, last.seq) == (EventKind.SHUTDOWN_COMPLETE, 10)


@pytest.mark.parametrize(
    "change",
    [
        lambda events: [replace(events[0], kind=EventKind.LOADING), *events[1:]],
        lambda events: [*events, replace(events[0], seq=7, monotonic_ns=events[-1].monotonic_ns)],
        lambda events: [*events[:-1], replace(events[-1], index=7)],
        lambda events: [*events[:-1], replace(events[-1], monotonic_ns=0)],
        lambda events: [*events[:-1], replace(events[-1], monotonic_ns=2**64 - 1)],
    ],
    ids=["another first", "a second beginning", "a token skipped", "back in time", "in the future"],
)
def test_events_that_are_none_of_a_run_are_a_failed_run(
    change: Callable[[list[Event]], list[Event]],
) -> None:
    bus = LocalBus()
    heard = bus.subscribe()
    with pytest.raises(RunFailedError, match="telemetry that is malformed"):
        telemetry_of(outcome(change), bus)
    assert heard.drain() == ()
