"""Threads that commit together: nothing of one is undone, or done, by another."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.errors import InputError, LostLeaseError, TallystickError, UnavailableError
from tallystick.queues.core import Records
from tallystick.queues.sqlite.adapter import SqliteQueue, open_queue
from tallystick.queues.sqlite.commits import Commits
from tallystick.queues.sqlite.schema import QUEUE_NAME
from tests.support.queues import (
    OTHER,
    job_id,
    make_result,
    make_run,
    opened,
    states,
    take,
)


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[SqliteQueue]:
    with opened(tmp_path) as queue:
        yield queue


class Held:
    """Keeps the first commit of a queue waiting, so that others gather behind it."""

    def __init__(self, path: Path) -> None:
        self.other = sqlite3.connect(path / QUEUE_NAME, isolation_level=None)
        self.other.execute("BEGIN IMMEDIATE")

    def let_go(self) -> None:
        self.other.execute("ROLLBACK")
        self.other.close()


def in_threads(calls: list[Any]) -> tuple[list[threading.Thread], list[object]]:
    """Start each call in a thread; the list holds what each returns or raises, at its place."""
    outcomes: list[object] = [None] * len(calls)

    def work(number: int) -> None:
        try:
            outcomes[number] = calls[number]()
        except BaseException as error:
            outcomes[number] = error

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(calls))]
    for thread in threads:
        thread.start()
    return threads, outcomes


def count_commits(queue: SqliteQueue) -> list[str]:
    seen: list[str] = []
    queue._commits._connection.set_trace_callback(
        lambda text: seen.append(text) if text == "COMMIT" else None
    )
    return seen


def test_those_that_wait_share_a_commit_and_each_gets_its_own_answer(
    tmp_path: Path, queue: SqliteQueue
) -> None:
    queue.submit(make_run(0))
    lost = take(queue)
    queue.release(lost)
    commits = count_commits(queue)
    held = Held(tmp_path)
    calls = [
        *(lambda n=n: queue.submit(make_run(n)) for n in range(1, 9)),
        lambda: queue.heartbeat(lost),
        lambda: queue.cancel("0" * 64),
        lambda: queue.submit(make_run(0, prompt="another")),
        lambda: queue.cancel(job_id(0)),
    ]
    threads, outcomes = in_threads(calls)
    for thread in threads:
        thread.join(0.02)
    held.let_go()
    for thread in threads:
        thread.join()
    kinds = [type(outcome).__name__ for outcome in outcomes]
    assert kinds == ["Submission"] * 8 + ["LostLeaseError", "InputError", "InputError", "Job"]
    assert isinstance(outcomes[8], LostLeaseError)
    assert isinstance(outcomes[9], InputError)
    assert states(queue) == {"pending": 8, "cancelled": 1}
    assert 1 < len(commits) < len(calls)


def test_a_commit_that_fails_fails_for_all_and_leaves_the_queue_usable(
    tmp_path: Path,
) -> None:
    with open_queue(tmp_path / QUEUE_NAME, wait_seconds=0.2) as queue:
        held = Held(tmp_path)
        calls = [lambda n=n: queue.submit(make_run(n)) for n in range(8)]
        threads, outcomes = in_threads(calls)
        for thread in threads:
            thread.join()
        assert {type(outcome) for outcome in outcomes} == {UnavailableError}
        assert len({id(outcome) for outcome in outcomes}) == 8, "each thread raises its own"
        held.let_go()
        assert states(queue) == {}
        assert queue.submit(make_run(0)).created == "new"


def writing_then(error: BaseException) -> Any:
    def work(records: Records) -> None:
        record = records.find(job_id(0))
        assert record is not None
        records.forget_run(record)
        raise error

    return work


@pytest.mark.parametrize(
    "error",
    [
        InputError("refused"),
        sqlite3.IntegrityError("a rule"),
        sqlite3.OperationalError("disk"),
        KeyboardInterrupt(),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_work_that_ends_in_the_middle_is_undone(queue: SqliteQueue, error: BaseException) -> None:
    queue.submit(make_run(0))
    expected = UnavailableError if isinstance(error, sqlite3.Error) else type(error)
    with pytest.raises(expected):
        queue._commits.write(writing_then(error))
    assert take(queue).run == make_run(0)
    assert queue.submit(make_run(1)).created == "new"


def test_an_interrupted_leader_takes_nobody_with_it(tmp_path: Path, queue: SqliteQueue) -> None:
    queue.submit(make_run(0))
    commits = queue._commits
    held = Held(tmp_path)
    interrupted = lambda: commits.write(writing_then(KeyboardInterrupt()))  # noqa: E731
    first, outcome = in_threads([interrupted])
    threads, outcomes = in_threads([lambda n=n: queue.submit(make_run(n)) for n in range(1, 5)])
    for thread in threads:
        thread.join(0.02)
    held.let_go()
    for thread in (*first, *threads):
        thread.join()
    assert isinstance(outcome[0], KeyboardInterrupt)
    told = [item for item in outcomes if isinstance(item, TallystickError)]
    assert {type(item) for item in told} <= {UnavailableError}
    done = len(outcomes) - len(told)
    assert states(queue) == {"pending": 1 + done}
    assert take(queue).run == make_run(0)


def test_one_who_stops_waiting_is_not_served(
    tmp_path: Path, queue: SqliteQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interruption while waiting: neither is the piece done later, nor does its lead block."""
    commits: Commits = queue._commits
    monkeypatch.setattr(commits, "_commit", lambda pieces: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        queue.submit(make_run(0))
    monkeypatch.undo()
    monkeypatch.setattr(commits, "_take_all", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        queue.submit(make_run(0))
    monkeypatch.undo()
    assert queue.submit(make_run(1)).created == "new"
    assert [job.job_id for job in queue.jobs()] == [job_id(1)]


def test_threads_share_a_queue_with_another_process_s_writes(
    tmp_path: Path, queue: SqliteQueue
) -> None:
    with opened(tmp_path) as other:
        for number in range(20):
            queue.submit(make_run(number))
            lease = take(other, OTHER)
            queue.complete(lease, make_result())
        assert states(queue) == states(other) == {"done": 20}


def test_a_closed_queue_says_so(tmp_path: Path) -> None:
    queue = opened(tmp_path)
    queue.close()
    for call in (queue.jobs, lambda: queue.submit(make_run())):
        with pytest.raises(UnavailableError, match="is closed"):
            call()
