"""Hostile bytes at the queue's doors: run files, and the queue's own file."""

from __future__ import annotations

import contextlib
import os
import tempfile
from functools import cache
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.contracts.codec import encode_bytes
from tallystick.contracts.request import InferenceRun
from tallystick.errors import InputError, TallystickError, UnavailableError
from tallystick.queues.port import JobState
from tallystick.queues.runfile import parse_run
from tallystick.queues.sqlite.schema import QUEUE_NAME
from tests.support.queues import SECRET, TurnedClock, make_result, make_run, opened, run_file, take

EDITS = st.lists(
    st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=4)), min_size=1, max_size=6
)


def edited(data: bytes, edits: list[tuple[float, bytes]]) -> bytes:
    changed = bytearray(data)
    for place, new in edits:
        start = int(place * (len(data) - len(new)))
        changed[start : start + len(new)] = new
    return bytes(changed)


@given(st.one_of(st.binary(max_size=300), EDITS.map(lambda edits: edited(run_file(), edits))))
def test_a_run_file_is_a_run_or_an_input_error(data: bytes) -> None:
    words = ""
    try:
        run = parse_run(data, where="RUN.json")
        assert isinstance(run, InferenceRun)
        assert parse_run(encode_bytes(run), where="RUN.json") == run
    except InputError as error:
        words = str(error)
    assert SECRET not in words


@cache
def queue_file() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        with opened(Path(directory), TurnedClock()) as queue:
            for number in range(6):
                queue.submit(make_run(number), max_attempts=1 + number % 2)
            queue.complete(take(queue), make_result(place="somewhere"))
            queue.fail(take(queue), "why", retry="again", delay_seconds=5)
            take(queue)
        return (Path(directory) / QUEUE_NAME).read_bytes()


@settings(deadline=None)
@given(EDITS)
def test_a_damaged_queue_is_unavailable_or_read(edits: list[tuple[float, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / QUEUE_NAME
        path.touch(mode=0o600)
        path.write_bytes(edited(queue_file(), edits))
        clock, words = TurnedClock(), ""
        with contextlib.suppress(UnavailableError), opened(Path(directory), clock) as queue:
            for call in (
                queue.jobs,
                queue.counts,
                lambda: [queue.leases(job.job_id) for job in queue.jobs([JobState.DONE])],
                lambda: queue.submit(make_run(9)),
                lambda: take_if_any(Path(directory), clock),
            ):
                try:
                    call()
                except TallystickError as error:
                    words += str(error)
        assert SECRET not in words
        assert os.path.lexists(path)


def take_if_any(directory: Path, clock: TurnedClock) -> None:
    with opened(directory, clock) as queue:
        while (lease := queue.claim("worker", lease_seconds=60)) is not None:
            queue.complete(lease, make_result())
