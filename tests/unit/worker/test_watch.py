"""What a view of a worker shows, pieced together from events, progress and turns."""

from __future__ import annotations

import io
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from tallystick.cli import watching
from tallystick.cli.watching import Face, LineFace, LiveFace, Viewer, choose_face, turn_words
from tallystick.contracts.receipt import Memory
from tallystick.errors import UnavailableError
from tallystick.queues.memory import memory_queue
from tallystick.queues.port import JobState, Queue
from tallystick.telemetry.bus import LocalBus, LocalSubscriber
from tallystick.telemetry.events import Event, EventKind
from tallystick.worker.turns import Turn
from tallystick.worker.watch import Watch, WorkerView
from tests.support.workers import FaultyQueue, plain_run

JOB = "sha256:" + "ab" * 32
SHOWN = "ab" * 6  # as `runs ls` names it
FRAME = (EventKind.INIT, EventKind.LOADING, EventKind.LOAD_COMPLETE)
MIB = 2**20
DONE = Turn(
    JOB, "done", "sha256:" + "0" * 64, Path("x"), None, 1.5, Memory(1, 90 * MIB, 0), 3 * MIB
)


def frame(after_ns: int = 0) -> list[Event]:
    """Return the first events of a run, which begins now or ``after_ns`` later."""
    now = time.monotonic_ns() + after_ns
    return [Event(kind, seq, now + seq, 1, (seq + 1) * MIB) for seq, kind in enumerate(FRAME)]


def token(first: Event, index: int, seq: int | None = None, rss: int = 9 * MIB) -> Event:
    """Return the event of a token, a hundredth of a second after the one before."""
    stamp = first.monotonic_ns + 1_000_000 + 10_000_000 * index
    number = len(FRAME) + index if seq is None else seq
    return Event(EventKind.TOKEN_EMITTED, number, stamp, 1, rss, index)


class Told:
    """A bus, and a view that is subscribed to it."""

    def __init__(self, bus: LocalBus | None = None) -> None:
        self.bus = bus or LocalBus()
        self.queue = memory_queue()
        self.watch = Watch(self.bus, self.queue)

    def publish(self, *events: Event) -> WorkerView:
        for event in events:
            self.bus.publish(event)
        return self.watch.view()


def test_an_idle_worker() -> None:
    told = Told()
    told.queue.submit(plain_run())
    view = told.watch.view()
    assert (view.run, view.turns, view.done) == (None, (), 0)
    assert view.counts is not None
    assert dict(view.counts)[JobState.PENDING] == 1
    assert view.rss > MIB


def test_a_run_goes_through_its_stages() -> None:
    told = Told()
    told.watch.begin(JOB)
    events = frame()
    for event in events:
        run = told.publish(event).run
        assert run is not None
        assert (run.job_id, run.doing, run.tokens, run.rate) == (JOB, event.kind, 0, None)
    run = told.publish(*(token(events[0], index) for index in range(3))).run
    assert run is not None
    assert (run.doing, run.tokens, run.dropped, run.missed) == ("TokenEmitted", 3, 0, 0)
    assert run.rate == pytest.approx(100)
    run = told.publish(token(events[0], 3, rss=4 * MIB)).run
    assert run is not None
    assert (run.rss, run.peak) == (4 * MIB, 9 * MIB)
    assert dict(run.events) == {"Init": 1, "Loading": 1, "LoadComplete": 1, "TokenEmitted": 4}
    told.watch.turn(DONE)
    view = told.watch.view()
    assert (view.run, view.turns, view.done) == (None, (DONE,), 1)


def test_progress_and_events_are_taken_in_the_order_in_which_they_happened() -> None:
    told = Told()
    told.watch.begin(JOB)
    events = frame()
    for event in events:
        told.bus.publish(event)
    told.watch.progress("prompt", 1, 4)
    run = told.watch.view().run
    assert run is not None
    assert (run.doing, run.share) == ("prompt", 0.25)
    later = replace(token(events[0], 0), monotonic_ns=time.monotonic_ns())
    run = told.publish(later).run
    assert run is not None
    assert (run.doing, run.share) == ("TokenEmitted", None)


def test_what_was_left_of_the_run_before_is_not_counted_to_this_one() -> None:
    told = Told()
    told.watch.begin(JOB)
    old = frame()
    for event in (*old, *(token(old[0], index) for index in range(5))):
        told.bus.publish(replace(event, monotonic_ns=old[0].monotonic_ns))
    told.watch.turn(DONE)
    told.watch.begin("cd" * 32)
    run = told.publish(*frame()[:1]).run
    assert run is not None
    assert (run.job_id[:2], run.tokens, dict(run.events)) == ("cd", 0, {"Init": 1})


def test_what_the_child_dropped_and_what_this_view_missed() -> None:
    class Tight(LocalBus):
        def subscribe(self, capacity: int = 5) -> LocalSubscriber:
            return super().subscribe(capacity)

    told = Told(Tight())
    told.watch.begin(JOB)
    events = frame()
    run = told.publish(*events, token(events[0], 4, seq=7)).run
    assert run is not None
    assert (run.dropped, run.missed, run.tokens) == (4, 0, 5)
    tokens = (token(events[0], index) for index in range(5, 13))
    assert told.publish(*tokens).run is not None
    run = told.publish(token(events[0], 13)).run
    assert run is not None
    assert (run.dropped, run.missed, run.tokens) == (4, 3, 14)
    told.watch.begin(JOB)
    run = told.publish(*frame()).run
    assert run is not None
    assert (run.dropped, run.missed) == (0, 0)


def test_a_queue_that_does_not_answer_is_said_and_asked_once_a_second() -> None:
    queue = FaultyQueue(memory_queue(), ("counts",), 1)
    watch = Watch(LocalBus(), queue)
    assert watch.view().counts is None
    assert queue.left == 0
    assert watch.view().counts is None
    time.sleep(1.05)
    assert watch.view().counts is not None


def test_a_closed_watch_is_subscribed_to_nothing() -> None:
    told = Told()
    told.watch.close()
    told.watch.begin(JOB)
    run = told.publish(*frame()).run
    assert run is not None
    assert run.events == ()


class Page:
    """What a face writes, once it has let go of it."""

    class Kept(io.BytesIO):
        final = b""

        def close(self) -> None:
            if not self.closed:
                self.final = self.getvalue()
            super().close()

    def __init__(self) -> None:
        self.bytes = self.Kept()
        self.out = io.TextIOWrapper(self.bytes, "utf-8", write_through=True)

    def text(self) -> str:
        assert self.bytes.closed
        return self.bytes.final.decode()


def seen(told: Told) -> WorkerView:
    told.watch.begin(JOB)
    events = frame()
    return told.publish(*events, *(token(events[0], index) for index in range(3)))


def test_lines_tell_each_stage_once_and_every_turn() -> None:
    told, page = Told(), Page()
    face = LineFace(page.out)
    view = seen(told)
    face.show(view, ("a line",))
    face.show(view, ())
    told.watch.turn(DONE)
    face.show(told.watch.view(), (turn_words(DONE),))
    face.end()
    first, second, third = page.text().splitlines()
    assert first == "a line"
    for words in (SHOWN, "generating", "3 tokens at 100.0 tokens/s", "9.0 MiB (peak 9.0 MiB)"):
        assert words in second
    assert "0 events dropped" in second
    assert third.split()[:2] == ["done", SHOWN]
    assert "peak 90.0 MiB, kept 3.0 MiB" in third


def test_the_live_view_shows_all_of_it() -> None:
    from rich.console import Console

    told, page = Told(), Page()
    face = LiveFace(Console(file=page.out, force_terminal=True, width=120, highlight=False))
    told.watch.turn(DONE)
    face.show(seen(told), ("[red]no markup[/red]",))
    face.end()
    text = page.text()
    for words in ("generating", "3, 100.0 tokens/s", "9.0 MiB now, 9.0 MiB peak", "0 dropped"):
        assert words in text
    assert "TokenEmitted 3" in text
    assert "kept 3.0 MiB" in text
    assert text.endswith("\x1b[?25h")


class Stuck:
    """A face whose terminal takes nothing until it is let go."""

    def __init__(self, error: Exception | None = None) -> None:
        self.entered, self.let_go = threading.Event(), threading.Event()
        self.error = error
        self.lines: list[str] = []
        self.ended = False

    def show(self, _view: WorkerView, lines: tuple[str, ...]) -> None:
        self.lines += lines
        self.entered.set()
        if self.error is not None:
            raise self.error
        self.let_go.wait(60)

    def end(self) -> None:
        self.ended = True


def test_a_terminal_that_takes_nothing_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_INTERVAL", 0.01)
    monkeypatch.setattr(watching, "_PATIENCE", 0.1)
    told, face = Told(), Stuck()
    kept: Face = face
    with Viewer(told.watch.view, kept) as viewer:
        assert face.entered.wait(60)
        started = time.monotonic()
        for number in range(20_000):
            viewer.say(f"line {number}")
    assert time.monotonic() - started < 30
    assert face.lines == []
    face.let_go.set()
    viewer._thread.join(60)
    assert face.ended
    assert face.lines[-1] == "line 19999"
    assert len(face.lines) == 10_000


def test_a_terminal_that_is_gone_ends_the_view_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_INTERVAL", 0.01)
    face = Stuck(BrokenPipeError())
    with Viewer(Told().watch.view, face) as viewer:
        viewer._thread.join(60)
        assert not viewer._thread.is_alive()
        viewer.say("nobody reads")
    assert face.ended


def test_a_line_stays_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_INTERVAL", 0.01)
    face = Stuck()
    face.let_go.set()
    with Viewer(Told().watch.view, face) as viewer:
        viewer.say("two\nlines \x1b[2J")
    assert face.lines == ["two\\x0alines \\x1b[2J"]


def test_what_is_no_terminal_gets_lines(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    face = choose_face()
    assert isinstance(face, LineFace)
    face.end()
    assert capfd.readouterr().err == ""


def test_the_queue_is_only_asked_in_the_view_s_own_thread() -> None:
    class Never:
        def counts(self) -> object:
            raise UnavailableError("asked")

    told = Watch(LocalBus(), cast(Queue, Never()))
    told.begin(JOB)
    told.progress("prompt", 1, 2)
    told.turn(DONE)
    assert told.view().counts is None
