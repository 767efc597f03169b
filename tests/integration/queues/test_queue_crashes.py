"""Processes killed at whatever point: every job is accounted for, and completed once."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tallystick.queues.port import Job, JobState, LeaseEnd, Queue
from tallystick.queues.spool import collect
from tests.support.crashes import (
    Countdown,
    before_each_statement_and_call,
    before_some_instructions,
    killed_in,
)
from tests.support.queues import (
    WORKER,
    job_id,
    make_result,
    make_run,
    opened,
    run_file,
    states,
    take,
)

Call = Callable[[Queue], object]
CALLS: dict[str, tuple[Call, JobState]] = {
    "submit": (lambda queue: queue.submit(make_run()), JobState.PENDING),
    "claim": (take, JobState.LEASED),
    "complete": (lambda queue: queue.complete(take(queue), make_result()), JobState.DONE),
    "fail": (lambda queue: queue.fail(take(queue), "why", retry="never"), JobState.FAILED),
    "cancel": (lambda queue: queue.cancel(job_id()), JobState.CANCELLED),
}


def standing(directory: Path) -> Job | None:
    """Open the queue as after a crash; return its job, whose leases must agree with it."""
    with opened(directory) as queue:
        jobs = queue.jobs()
        for job in jobs:
            leases = queue.leases(job.job_id)
            assert [lease.lease_epoch for lease in leases] == [*range(1, job.lease_epoch + 1)]
            held = [lease for lease in leases if lease.ended is None]
            assert len(held) == (job.state is JobState.LEASED)
    assert [path.name for path in directory.iterdir()] == ["queue.sqlite3"]
    return jobs[0] if jobs else None


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("instrument", [before_each_statement_and_call, before_some_instructions])
def test_a_kill_at_every_point_leaves_each_call_done_or_not_done(
    tmp_path: Path, instrument: Callable[[Countdown], None], name: str
) -> None:
    call, after = CALLS[name]
    seen: list[JobState | None] = []
    killed, points, step = True, 0, 1 if instrument is before_each_statement_and_call else 2
    while killed:
        directory = tmp_path / str(points)
        with opened(directory) as queue:
            if name != "submit":
                queue.submit(make_run())

        def body(directory: Path = directory, points: int = points) -> None:
            instrument(Countdown(points))
            with opened(directory) as queue:
                call(queue)

        killed = killed_in(body)
        job = standing(directory)
        seen.append(None if job is None else job.state)
        points += step
    assert len(seen) > 10
    assert seen[0] == (None if name == "submit" else JobState.PENDING)
    assert seen[-1] is after
    changes = [state for state, earlier in zip(seen[1:], seen, strict=False) if state != earlier]
    between = [JobState.LEASED] if name in ("complete", "fail") else []
    assert changes == [*between, after], "once it is done, a later kill cannot undo it"


def work_for_ever(directory: Path, worker: str, writer: int) -> None:
    """Claim and complete; tell what was claimed and what was completed; never return."""
    try:
        with opened(directory) as queue:
            while True:
                lease = queue.claim(worker, lease_seconds=1)
                if lease is None:
                    time.sleep(0.005)
                    continue
                result = make_result(f"{lease.job_id} {lease.lease_epoch}")
                queue.complete(lease, result)
                line = json.dumps([lease.job_id, lease.lease_epoch])
                os.write(writer, f"{line}\n".encode())
    except BaseException as error:
        os.write(writer, f"{json.dumps([repr(error), 0])}\n".encode())
        os._exit(1)


def test_fifty_kills_lose_nothing_and_complete_nothing_twice(tmp_path: Path) -> None:
    jobs = 600
    moments = random.Random(4)
    with opened(tmp_path) as queue, ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: queue.submit(make_run(n), max_attempts=100), range(jobs)))
    acknowledged: list[tuple[str, int]] = []
    for kill in range(50):
        reader, writer = os.pipe()
        children = []
        for number in range(2):
            child = os.fork()
            if child == 0:
                work_for_ever(tmp_path, f"worker-{kill}-{number}", writer)
            children.append(child)
        os.close(writer)
        # However slow the machine is, they are killed at work: a while after a first completion.
        select.select([reader], [], [], 2)
        time.sleep(moments.uniform(0, 0.03))
        for child in children:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            assert os.WIFSIGNALED(status)
        with open(reader, "rb") as pipe:
            acknowledged += [(job, epoch) for job, epoch in map(json.loads, pipe)]

    with opened(tmp_path) as queue:
        deadline = time.monotonic() + 60
        while states(queue) != {"done": jobs}:
            assert time.monotonic() < deadline
            lease = queue.claim(WORKER, lease_seconds=1)
            if lease is None:
                time.sleep(0.05)  # until the leases of those that were killed run out
                continue
            queue.complete(lease, make_result(f"{lease.job_id} {lease.lease_epoch}"))
        assert len(acknowledged) >= 50
        assert len({job for job, _ in acknowledged}) == len(acknowledged)
        interrupted = 0
        for job in queue.jobs(limit=jobs):
            leases = queue.leases(job.job_id)
            assert [lease.lease_epoch for lease in leases] == [*range(1, job.lease_epoch + 1)]
            *earlier, last = [lease.ended for lease in leases]
            assert (set(earlier) <= {LeaseEnd.EXPIRED}, last) == (True, LeaseEnd.COMPLETED)
            assert job.result == make_result(f"{job.job_id} {job.lease_epoch}")
            assert job.attempts == job.lease_epoch
            interrupted += len(earlier)
        for job_name, epoch in acknowledged:
            assert queue.get(job_name).lease_epoch == epoch
    assert interrupted > 0, "some worker was killed in the middle of a job"


def test_a_kill_at_every_point_of_collecting_keeps_every_dropped_file(tmp_path: Path) -> None:
    killed, points, refused_at = True, 0, []
    while killed:
        directory = tmp_path / str(points)
        spool = directory / "spool"
        with opened(directory) as queue:
            collect(spool, queue)
        for name, data in (("good.json", run_file()), ("bad.json", b"bad")):
            path = spool / "incoming" / name
            path.write_bytes(data)
            os.utime(path, (1_000_000_000, 1_000_000_000))

        def body(directory: Path = directory, spool: Path = spool, points: int = points) -> None:
            before_each_statement_and_call(Countdown(points))
            with opened(directory) as queue:
                collect(spool, queue)

        killed = killed_in(body)
        with opened(directory) as queue:
            refused_at.append(len(collect(spool, queue).refused))
            assert states(queue) == {"pending": 1}
        kept = [path for path in (spool / "refused").iterdir() if path.suffix != ".reason"]
        assert [path.read_bytes() for path in kept] == [b"bad"]
        assert kept[0].with_name(f"{kept[0].name}.reason").read_text().startswith("the file is no")
        assert os.listdir(spool / "incoming") == os.listdir(spool / "taken") == []
        points += 1
    assert points > 20
    assert refused_at == sorted(refused_at, reverse=True)
