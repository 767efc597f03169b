"""Kills between a signed set and a completed run: one run, one set, and the queue names it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tallystick.canonical.hashing import format_digest, sha256
from tallystick.contracts.codec import encode_bytes
from tallystick.contracts.digests import run_digest
from tallystick.contracts.layout import MARKER
from tallystick.contracts.request import InferenceRun
from tallystick.errors import UnavailableError
from tallystick.queues.core import JobQueue
from tallystick.queues.memory import memory_queue
from tallystick.queues.port import JobResult, JobState, LeaseEnd, Queue
from tallystick.queues.sqlite.adapter import open_queue
from tallystick.queues.sqlite.schema import QUEUE_NAME
from tallystick.store.announced import FOLDER, announce
from tallystick.store.artifacts import OutputPlace, prepare_under
from tallystick.worker.loop import Worker
from tallystick.worker.publishing import NOTE_SCHEMA, Planned, Publication, PublicationNote
from tallystick.worker.run import Guard, RunResult
from tallystick.worker.stopping import StopSwitch
from tallystick.worker.turns import Listener, Turn
from tests.support.crashes import killed_in
from tests.support.sets import make_run, make_set
from tests.support.workers import FaultyQueue, fast_settings

RUN = make_run()
JOB = run_digest(RUN)


def kill(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave(receipts: Path, run: InferenceRun, guard: Guard, label: str) -> RunResult:
    """Leave a set of ``run`` that verifies, as a run does."""
    built = make_set(run, label=label)
    with prepare_under(receipts) as place:
        marker = format_digest(sha256(built.marker.data))
        guard(Planned(built.receipt_id, built.receipt_digest, marker))
        directory = place.write(built.members, built.marker)
    return RunResult(
        directory=directory,
        receipt_id=built.receipt_id,
        receipt_digest=built.receipt_digest,
        core_digest=built.core_digest,
        compute_receipt_id=built.compute_receipt_id,
        receipt=built.receipt,
        output=b"",
        seed=None,
        signer="somebody",
        default_key_created=False,
        default_audit_key_created=False,
    )


def work(home: Path, queue: Queue, label: str, **changes: Any) -> list[Turn]:
    """Work until nothing waits, in this process."""
    turns: list[Turn] = []

    def execute(run: InferenceRun, guard: Guard) -> RunResult:
        return leave(home / "receipts", run, guard, label)

    Worker(
        queue,
        fast_settings(**changes),
        home,
        StopSwitch(30),
        worker_id=f"worker-{label}",
        listener=Listener(on_turn=turns.append),
        execute=execute,
    ).work(until="empty")
    return turns


def sets(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "receipts").iterdir() if path.name != FOLDER)


def notes(home: Path) -> list[str]:
    return os.listdir(home / "receipts" / FOLDER)


def killed_worker(home: Path, folder: Path, patch: Callable[[], None], seconds: int = 60) -> None:
    """Let a worker be killed at a point that ``patch`` prepares, in a process of its own."""

    def body() -> None:
        patch()
        with open_queue(folder / QUEUE_NAME) as queue:
            work(home, queue, "killed", lease_seconds=seconds)

    assert killed_in(body)


def before(owner: type, name: str) -> Callable[[], None]:
    return lambda: setattr(owner, name, kill)


def after(owner: type, name: str) -> Callable[[], None]:
    def patch() -> None:
        real = getattr(owner, name)

        def then_kill(*arguments: Any, **options: Any) -> None:
            real(*arguments, **options)
            kill()

        setattr(owner, name, then_kill)

    return patch


#: Where a worker is killed, and whether its set has its name by then.
POINTS = {
    "before the note": (before(Publication, "announce"), False),
    "before the set is written": (before(OutputPlace, "write"), False),
    "before the set is named": (before(OutputPlace, "_publish"), False),
    "once the set is named": (after(OutputPlace, "_publish"), True),
    "before the queue is told": (before(JobQueue, "complete"), True),
    "once the queue is told": (after(JobQueue, "complete"), True),
    "before the note goes": (before(Publication, "withdraw"), True),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a queue that holds one run."""
    path = tmp_path / "queue"
    with open_queue(path / QUEUE_NAME) as queue:
        queue.submit(RUN)
    return path


@pytest.mark.parametrize("point", POINTS)
def test_the_set_of_a_killed_worker_completes_its_run(
    point: str, tmp_path: Path, folder: Path
) -> None:
    patch, named = POINTS[point]
    killed_worker(tmp_path, folder, patch, seconds=60 if named else 1)
    with open_queue(folder / QUEUE_NAME) as queue:
        left = [] if not named else sets(tmp_path)
        if not named:
            time.sleep(1.1)  # the lease runs out
        turns = work(tmp_path, queue, "next")
        job, past = queue.get(JOB), queue.leases(JOB)
    assert job.state is JobState.DONE
    assert [turn.outcome for turn in turns] == ["done"]
    assert job.result is not None
    (name,) = sets(tmp_path)
    assert job.result.place == str(tmp_path / "receipts" / name)
    assert (turns[0].receipt_digest, turns[0].place) == (
        job.result.receipt_digest,
        tmp_path / "receipts" / name,
    )
    assert left in ([], [name])
    ended = [LeaseEnd.COMPLETED] if named else [LeaseEnd.EXPIRED, LeaseEnd.COMPLETED]
    assert [lease.ended for lease in past] == ended
    assert notes(tmp_path) == []


def test_a_set_that_was_left_at_the_last_attempt_counts(tmp_path: Path, folder: Path) -> None:
    with open_queue(folder / QUEUE_NAME) as queue:
        queue.submit(run := replace(RUN, run_id=RUN.run_id[:-1] + "0"), max_attempts=1)
        queue.cancel(JOB)
    killed_worker(tmp_path, folder, before(JobQueue, "complete"), seconds=1)
    time.sleep(1.1)
    with open_queue(folder / QUEUE_NAME) as queue:
        work(tmp_path, queue, "next")
        assert queue.get(run_digest(run)).state is JobState.DONE


def test_a_worker_elsewhere_runs_it_again_and_the_first_set_goes(
    tmp_path: Path, folder: Path
) -> None:
    """The other worker does not see the receipts of the first, and the lease runs out."""
    first, second = tmp_path / "first", tmp_path / "second"
    killed_worker(first, folder, before(JobQueue, "complete"), seconds=1)
    time.sleep(1.1)
    with open_queue(folder / QUEUE_NAME) as queue:
        assert [turn.outcome for turn in work(second, queue, "second")] == ["done"]
        (surplus,), before_settling = sets(first), queue.get(JOB)
        turns = work(first, queue, "first again")
        assert [(turn.outcome, turn.place) for turn in turns] == [("lost", None)]
        assert "was lost" in (turns[0].reason or "")
        assert queue.get(JOB) == before_settling
    assert surplus
    assert sets(first) == notes(first) == []
    assert len(sets(second)) == 1


def test_a_set_that_is_left_between_two_looks_completes_its_next_lease(tmp_path: Path) -> None:
    queue = memory_queue()
    queue.submit(RUN)
    claim = queue.claim

    class Late(FaultyQueue):
        """The first worker leaves its set while this one claims the run."""

        def claim(self, *arguments: Any, **options: Any) -> Any:
            if queue.get(JOB).lease_epoch == 0:
                lease = claim("worker-gone", lease_seconds=60)
                assert lease is not None
                leave_noted(tmp_path, lease.worker_id, lease.lease_epoch)
                queue.release(lease)
            return claim(*arguments, **options)

    turns = work(tmp_path, Late(queue, (), 0), "next")
    assert [turn.outcome for turn in turns] == ["done"]
    job = queue.get(JOB)
    assert (job.state, job.lease_epoch) == (JobState.DONE, 2)
    assert sets(tmp_path) == [(turns[0].receipt_digest or "")[7:39]]


def leave_noted(home: Path, worker: str, epoch: int, **changes: Any) -> Path:
    """Leave a set and its note, as a worker that is gone does."""
    kept: list[Planned] = []
    result = leave(home / "receipts", RUN, kept.append, "gone")
    note = PublicationNote(
        schema=NOTE_SCHEMA,
        job_id=JOB,
        lease_epoch=epoch,
        worker_id=worker,
        receipt_id=kept[0].receipt_id,
        receipt_digest=kept[0].receipt_digest,
        marker_digest=kept[0].marker_digest,
    )
    announce(home / "receipts", "a", encode_bytes(replace(note, **changes))).leave()
    return result.directory


@pytest.mark.parametrize("fault", ["a byte", "a file", "the marker", "the run"])
def test_a_set_that_is_not_what_its_worker_wrote_counts_for_nothing(
    tmp_path: Path, fault: str
) -> None:
    queue = memory_queue()
    queue.submit(RUN)
    lease = queue.claim("worker-gone", lease_seconds=60)
    assert lease is not None
    other = run_digest(replace(RUN, max_tokens=7))
    directory = leave_noted(tmp_path, "worker-gone", 1)
    member = next(path for path in directory.iterdir() if path.suffix == ".palw")
    if fault == "a byte":
        member.write_bytes(member.read_bytes()[:-1] + b"\0")
    elif fault == "a file":
        member.unlink()
    elif fault == "the marker":
        marker = directory / MARKER.name(directory.name)
        marker.write_bytes(marker.read_bytes().replace(b'"private"', b'"public"'))
    else:
        note = tmp_path / "receipts" / FOLDER / "a"
        note.write_bytes(note.read_bytes().replace(JOB.encode(), other.encode()))
        queue.submit(replace(RUN, max_tokens=7, run_id=RUN.run_id[:-1] + "0"))
    kept = sorted(path.name for path in directory.iterdir())
    turns = work(tmp_path, queue, "next")
    assert turns[0].outcome in ("lost", "done")
    assert sorted(path.name for path in directory.iterdir()) == kept
    assert queue.get(JOB).state is JobState.LEASED
    if fault != "the run":  # a job that this queue never leased to that worker: another queue's
        assert "does not hold" in (turns[0].reason or "")
        assert notes(tmp_path) == []


def test_the_sets_of_another_queue_are_left_alone(tmp_path: Path) -> None:
    queue, other = memory_queue(), memory_queue()
    directory = leave_noted(tmp_path, "worker-gone", 1)
    for each in (queue, other):
        work(tmp_path, each, "nothing to do")
        each.submit(RUN)
    lease = other.claim("another worker", lease_seconds=60)  # its epoch is 1 as well
    assert lease is not None
    work(tmp_path, other, "nothing to do")
    assert directory.exists()
    assert notes(tmp_path) == ["a"]


def test_what_is_no_note_goes(tmp_path: Path) -> None:
    announce(tmp_path / "receipts", "a", b"no note").leave()
    assert work(tmp_path, memory_queue(), "next") == []
    assert notes(tmp_path) == []


def test_a_queue_that_could_not_be_told_is_told_later(tmp_path: Path) -> None:
    """The worker lives on; its set is not thrown away, and its run not executed again."""
    queue = memory_queue()
    queue.submit(RUN)
    turns: list[Turn] = []
    troubles: list[UnavailableError] = []
    stop = StopSwitch(30)
    faulty = FaultyQueue(queue, ("complete",), 10**6)

    def execute(run: InferenceRun, guard: Guard) -> RunResult:
        return leave(tmp_path / "receipts", run, guard, "once")

    def mend(error: UnavailableError) -> None:
        troubles.append(error)
        faulty.left = 0

    def tell(turn: Turn) -> None:
        turns.append(turn)
        if turn.outcome == "done":
            stop.ask()

    Worker(
        faulty,
        fast_settings(lease_seconds=1),
        tmp_path,
        stop,
        listener=Listener(on_turn=tell, on_trouble=mend),
        execute=execute,
    ).work()
    assert [turn.outcome for turn in turns] == ["lost", "done"]
    assert len(troubles) == 1
    assert [lease.ended for lease in queue.leases(JOB)] == [LeaseEnd.COMPLETED]
    assert len(sets(tmp_path)) == 1
    assert queue.get(JOB).result == JobResult(
        turns[1].receipt_digest or "", "complete", str(turns[1].place)
    )


def test_a_set_that_cannot_be_written_leaves_no_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = memory_queue()
    queue.submit(RUN, max_attempts=1)

    def full(*_: object) -> None:
        assert len(notes(tmp_path)) == 1
        raise UnavailableError("no space")

    monkeypatch.setattr(OutputPlace, "write", full)
    assert [turn.outcome for turn in work(tmp_path, queue, "next")] == ["dead"]
    assert sets(tmp_path) == notes(tmp_path) == []
