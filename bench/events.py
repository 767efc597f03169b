"""What telling of every token costs during a generation, on both ends of the pipe.

    python -m bench.events [--model MODEL] [--tokens N] [--rounds N]

A process of its own hears the events as a supervisor does: read, checked, published on a bus with
two subscribers, written to the telemetry file and read again. Generations with and without events
take turns; since a hundredth is less than the clock of a shared machine can tell, the processor
time of one event on each end is measured too, and is what the row's share is of.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench._engine import alternate, arguments, in_engine_environment, median, open_subject, ratio
from tallystick.execution.child_engine import Reporter
from tallystick.execution.hearing import Hearing
from tallystick.sandbox.channel import Channel
from tallystick.sandbox.messages import MessageReader
from tallystick.sandbox.process import _widen
from tallystick.telemetry.bus import LocalBus
from tallystick.telemetry.events import EventKind, Stamper
from tallystick.telemetry.log import encode_log, parse_log
from tallystick.telemetry.rss import resident_bytes

GOAL = 0.01
SERIES = 5
EVENTS = 2000
FRAME = (EventKind.INIT, EventKind.LOADING, EventKind.LOAD_COMPLETE)


@dataclass
class Heard:
    """What the other end has to say: its processor time in seconds, and the events it lost."""

    seconds: float = 0.0
    dropped: int = -1


def hear(descriptor: int) -> None:
    """Hear events until nobody speaks any more; print events, losses and processor time."""
    bus = LocalBus()
    view = bus.subscribe()
    reader = MessageReader(descriptor)
    with Hearing(bus, 2**32 - 1) as hearing:
        started = time.process_time()
        while (message := reader.next(600)) is not None:
            hearing.take(message.body)
            hearing.collect()
            view.drain()
        events = hearing.events()
        last = Stamper(resident_bytes, first_seq=events[-1].seq + 1)
        log = parse_log(encode_log((*events, last(EventKind.SHUTDOWN_COMPLETE))))
        print(log.tokens, log.dropped, time.process_time() - started)


@contextmanager
def listener(heard: Heard) -> Iterator[Reporter]:
    """Give a reporter whose events are heard by another process; fill ``heard`` at the end."""
    read, write = os.pipe()
    _widen(read)
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.events", "--hear", str(read)],
        pass_fds=(read,),
        stdout=subprocess.PIPE,
    )
    os.close(read)
    reporter = Reporter(Channel(write))
    for kind in FRAME:
        reporter.event(kind)
    yield reporter
    os.close(write)
    out, _ = process.communicate()
    tokens, dropped, seconds = out.split()
    if int(tokens) + int(dropped) != reporter.events - len(FRAME):
        raise SystemExit("events are not accounted for: this must never happen")
    heard.dropped, heard.seconds = int(dropped), float(seconds)


def one_event() -> tuple[float, float]:
    """Return the processor seconds that an event costs the child and the supervisor."""
    sides = []
    for _ in range(SERIES):
        heard = Heard()
        with listener(heard) as reporter:
            started = time.thread_time()
            for index in range(EVENTS):
                reporter.event(EventKind.TOKEN_EMITTED, index)
            spent = time.thread_time() - started
        sides.append((spent / EVENTS, heard.seconds / (EVENTS - heard.dropped)))
    child, supervisor = zip(*sides, strict=True)
    return statistics.median(child), statistics.median(supervisor)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--hear", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hear is not None:
        return hear(options.hear)
    in_engine_environment(options.knob)
    subject = open_subject(options.model, options.tokens, options.threads)
    sampled: set[tuple[int, ...]] = set()
    dropped = 0

    def plain() -> float:
        ids, seconds = subject.generation(subject.compiled, options.tokens, None)
        sampled.add(ids)
        return seconds

    def telling() -> float:
        nonlocal dropped
        heard = Heard()
        with listener(heard) as reporter:
            ids, seconds = subject.generation(
                subject.compiled,
                options.tokens,
                None,
                lambda index: reporter.event(EventKind.TOKEN_EMITTED, index),
            )
        sampled.add(ids)
        dropped += heard.dropped
        return seconds

    rows = alternate(options.rounds, (plain, telling))
    if len(sampled) != 1:
        raise SystemExit("telling of tokens changed them: this must never happen")
    child, supervisor = one_event()
    token = median(rows, 0) / (options.tokens - 1)
    print("| what | an event costs | of a token's time | by the clock | goal | command |")
    print("|---|---|---|---|---|---|")
    print(
        f"| {options.model}, {options.tokens} tokens of {token * 1000:.1f} ms, {dropped} dropped "
        f"| {child * 1e6:.0f} µs here, {supervisor * 1e6:.0f} µs in the supervisor "
        f"| {100 * (child + supervisor) / token:.2f} % | {100 * (ratio(rows, 1, 0) - 1):+.1f} % "
        f"| {100 * GOAL:.0f} % | `python -m bench.events` |"
    )
    return None


if __name__ == "__main__":
    main()
