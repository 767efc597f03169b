"""Several processes at one state store: each receipt, execution and slot is taken once."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tallystick.contracts.compute_receipt import JobClass
from tallystick.errors import EvidenceError
from tallystick.store.state.entry import StateEntry
from tallystick.store.state.schema import STATE_NAME
from tallystick.store.state.store import open_state
from tests.support.processes import in_processes
from tests.support.state import accept, make_entry, recorded

PROCESSES = 8
REPLICA = JobClass.REPLICA_EXTERNAL
ACCEPTED = "accepted"


def outcome(path: Path, entry: StateEntry) -> str:
    try:
        accept(path, entry)
    except EvidenceError as error:
        return error.message
    return ACCEPTED


def race(path: Path, entries: Sequence[StateEntry]) -> list[str]:
    """Let one process for each entry accept it at once; return the outcomes in their order."""

    def work(entry: StateEntry) -> Callable[[], bytes]:
        return lambda: outcome(path, entry).encode()

    results = in_processes([work(entry) for entry in entries])
    assert os.listdir(path.parent) == [STATE_NAME]
    return [result.decode() for result in results]


def count(path: Path, table: str) -> int:
    connection = sqlite3.connect(f"file:{path}?immutable=1", uri=True)
    try:
        (number,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        assert isinstance(number, int)
        return number
    finally:
        connection.close()


@pytest.fixture(params=["a new store", "an old store"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / STATE_NAME
    if request.param == "an old store":
        with open_state(path):
            pass
    return path


def test_the_same_receipt_is_accepted_once(path: Path) -> None:
    outcomes = race(path, [make_entry()] * PROCESSES)

    assert Counter(outcomes) == {ACCEPTED: 1, "this receipt was accepted before": PROCESSES - 1}
    assert recorded(path, make_entry())
    assert (count(path, "receipts"), count(path, "jobs")) == (1, 1)


def test_one_execution_is_accepted_once(path: Path) -> None:
    entries = [make_entry(n, job=n, execution="one") for n in range(PROCESSES)]
    outcomes = race(path, entries)

    refused = "a receipt of this execution was accepted before"
    assert Counter(outcomes) == {ACCEPTED: 1, refused: PROCESSES - 1}
    held = [recorded(path, entry) for entry in entries]
    assert held == [result == ACCEPTED for result in outcomes]
    assert (count(path, "receipts"), count(path, "jobs")) == (1, 1)


@pytest.mark.parametrize("job_class", [JobClass.SELF_LOCAL, REPLICA])
def test_each_slot_of_a_job_is_filled_once(path: Path, job_class: JobClass) -> None:
    entries = [
        make_entry(n, slot=n % job_class.slots, job_class=job_class) for n in range(PROCESSES)
    ]
    outcomes = race(path, entries)

    winners = [e for e, result in zip(entries, outcomes, strict=True) if result == ACCEPTED]
    assert sorted(entry.replica_slot for entry in winners) == list(range(job_class.slots))
    refused = "the slot of the job is filled by another receipt"
    assert Counter(outcomes)[refused] == PROCESSES - job_class.slots
    assert [entry for entry in entries if recorded(path, entry)] == winners
    assert (count(path, "receipts"), count(path, "jobs")) == (job_class.slots, 1)


def test_a_job_has_one_class_whoever_comes_first(path: Path) -> None:
    classes = (REPLICA, JobClass.REPLICA_SELF_ORDERED)
    entries = [make_entry(n, slot=n // 2 % 2, job_class=classes[n % 2]) for n in range(PROCESSES)]
    outcomes = race(path, entries)

    winners = [e for e, result in zip(entries, outcomes, strict=True) if result == ACCEPTED]
    assert len({entry.job_class for entry in winners}) == 1
    assert sorted(entry.replica_slot for entry in winners) == [0, 1]
    assert Counter(outcomes)["the job was accepted with another job class"] == PROCESSES // 2


def test_different_receipts_are_all_accepted(path: Path) -> None:
    each = 5

    def work(process: int) -> Callable[[], bytes]:
        def body() -> bytes:
            with open_state(path) as store:
                for n in range(each):
                    store.accept(make_entry(each * process + n, job=(process, n)))
            return b"done"

        return body

    assert in_processes([work(n) for n in range(PROCESSES)]) == [b"done"] * PROCESSES
    for n in range(PROCESSES * each):
        assert recorded(path, make_entry(n, job=divmod(n, each)))
    assert count(path, "receipts") == count(path, "jobs") == PROCESSES * each
    assert os.listdir(path.parent) == [STATE_NAME]
