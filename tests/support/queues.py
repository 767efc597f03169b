"""Runs to queue, a clock to turn, and what a queue says of its jobs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from tallystick.contracts.codec import encode_bytes
from tallystick.contracts.digests import run_digest
from tallystick.contracts.request import InferenceRun
from tallystick.queues.clock import Moment
from tallystick.queues.port import JobResult, Lease, LeaseEnd, Queue
from tallystick.queues.sqlite.adapter import SqliteQueue, open_queue
from tallystick.queues.sqlite.schema import QUEUE_NAME
from tests.support.documents import digest_of, example_run

SECRET = "the secret of the prompt"
WORKER = "worker-1"
OTHER = "worker-2"


def make_run(number: int = 0, prompt: str = SECRET) -> InferenceRun:
    """Return declaration ``number``: a run_id of its own, the same computation."""
    run_id = f"01890a5d-ac96-774b-bcce-{number:012x}"
    return replace(example_run(), run_id=run_id, prompt=prompt)


def job_id(number: int = 0) -> str:
    return run_digest(make_run(number))


def run_file(number: int = 0) -> bytes:
    return encode_bytes(make_run(number))


def make_result(label: object = "receipt", place: str | None = None) -> JobResult:
    return JobResult(digest_of(f"receipt {label}"), "complete", place)


class TurnedClock:
    """A clock that stands still until a test turns it."""

    def __init__(self) -> None:
        self.boot = "boot-1"
        self.ms = 1_000_000
        self.wall = 1_800_000_000_000

    def now(self) -> Moment:
        return Moment(self.boot, self.ms)

    def wall_ms(self) -> int:
        return self.wall

    def advance(self, seconds: float) -> None:
        self.ms += int(seconds * 1000)
        self.wall += int(seconds * 1000)

    def step_wall(self, seconds: float) -> None:
        self.wall += int(seconds * 1000)

    def reboot(self) -> None:
        self.boot += "'"
        self.ms = 5


def opened(directory: Path, clock: TurnedClock | None = None) -> SqliteQueue:
    return open_queue(directory / QUEUE_NAME, clock=clock)


def take(queue: Queue, worker: str = WORKER, seconds: float = 60) -> Lease:
    lease = queue.claim(worker, lease_seconds=seconds)
    assert lease is not None
    return lease


def ends(queue: Queue, number: int = 0) -> tuple[LeaseEnd | None, ...]:
    """Return how each lease of a job ended, and hold the epochs to counting from 1."""
    leases = queue.leases(job_id(number))
    assert [lease.lease_epoch for lease in leases] == list(range(1, len(leases) + 1))
    return tuple(lease.ended for lease in leases)


def states(queue: Queue) -> Counter[str]:
    """Return how many jobs are in each state that has any."""
    return Counter({state.value: count for state, count in queue.counts() if count})
