"""Several processes at one queue: each run is queued once, and executed once."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tallystick.errors import LostLeaseError
from tallystick.queues.port import LeaseEnd
from tests.support.processes import in_processes
from tests.support.queues import (
    OTHER,
    WORKER,
    ends,
    job_id,
    make_result,
    make_run,
    opened,
    states,
    take,
)

PROCESSES = 8
JOBS = 200


def test_eight_processes_complete_two_hundred_jobs_once_each(tmp_path: Path) -> None:
    with opened(tmp_path) as queue:
        for number in range(JOBS):
            queue.submit(make_run(number))

    def work(worker: str) -> Callable[[], bytes]:
        def body() -> bytes:
            done = []
            with opened(tmp_path) as queue:
                while (lease := queue.claim(worker, lease_seconds=600)) is not None:
                    queue.complete(lease, make_result(worker))
                    done.append(lease.job_id)
            return json.dumps(done).encode()

        return body

    results = in_processes([work(f"worker-{n}") for n in range(PROCESSES)])
    completed = {f"worker-{n}": json.loads(result) for n, result in enumerate(results)}
    counted = Counter(job for jobs in completed.values() for job in jobs)
    assert counted == {job_id(number): 1 for number in range(JOBS)}
    with opened(tmp_path) as queue:
        assert states(queue) == {"done": JOBS}
        for worker, jobs in completed.items():
            for job in jobs:
                assert queue.get(job).result == make_result(worker)
                (lease,) = queue.leases(job)
                assert (lease.worker_id, lease.ended) == (worker, LeaseEnd.COMPLETED)


def test_processes_that_submit_the_same_runs_make_each_job_once(tmp_path: Path) -> None:
    def work() -> bytes:
        with opened(tmp_path) as queue:
            created = [queue.submit(make_run(number)).created for number in range(10)]
        return json.dumps(created).encode()

    results = [json.loads(result) for result in in_processes([work] * PROCESSES)]
    for number in range(10):
        made = Counter(result[number] for result in results)
        assert made == {"new": 1, "existing": PROCESSES - 1}
    with opened(tmp_path) as queue:
        assert states(queue) == {"pending": 10}


def test_a_new_queue_appears_once(tmp_path: Path) -> None:
    def work(number: int) -> Callable[[], bytes]:
        def body() -> bytes:
            with opened(tmp_path / "new") as queue:
                queue.submit(make_run(number))
            return b"done"

        return body

    assert in_processes([work(n) for n in range(PROCESSES)]) == [b"done"] * PROCESSES
    with opened(tmp_path / "new") as queue:
        assert states(queue) == {"pending": PROCESSES}
    assert os.listdir(tmp_path / "new") == ["queue.sqlite3"]


def test_a_worker_that_was_stopped_too_long_is_refused(tmp_path: Path) -> None:
    """A real zombie: it stops after its claim, and goes on when another has done the job."""
    with opened(tmp_path) as queue:
        queue.submit(make_run())
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        answer = b"failed"
        try:
            with opened(tmp_path) as queue:
                lease = take(queue, seconds=1)
                os.kill(os.getpid(), signal.SIGSTOP)
                try:
                    queue.complete(lease, make_result("zombie"))
                    answer = b"accepted"
                except LostLeaseError:
                    answer = b"lost"
        finally:
            os.write(writer, answer)
            os._exit(0)
    os.close(writer)
    assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
    with opened(tmp_path) as queue:
        while (owner := queue.claim(OTHER, lease_seconds=60)) is None:
            pass
        assert owner.lease_epoch == 2
        os.kill(child, signal.SIGCONT)
        with open(reader, "rb") as pipe:
            assert pipe.read() == b"lost"
        os.waitpid(child, 0)
        queue.complete(owner, make_result("owner"))
        assert queue.get(job_id()).result == make_result("owner")
        assert ends(queue) == (LeaseEnd.EXPIRED, LeaseEnd.COMPLETED)
        assert {lease.worker_id for lease in queue.leases(job_id())} == {WORKER, OTHER}
