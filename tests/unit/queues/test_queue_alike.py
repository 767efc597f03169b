"""Whatever is done to them in whatever order, all adapters answer and keep the same."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.errors import TallystickError
from tallystick.queues.memory import memory_queue
from tallystick.queues.port import Lease, LeaseEnd, Queue
from tests.support.queues import TurnedClock, job_id, make_result, make_run, opened

WORKERS = ("worker-1", "worker-2")
RUNS = 3
CALLS = [
    *("submit", "claim", "claim", "complete", "again", "never", "delay", "release", "heartbeat"),
    *("cancel", "retry", "advance", "wall", "reboot"),
    *("hand back", "without", "waits"),
]
STEPS = st.tuples(st.sampled_from(CALLS), st.integers(0, 5))


class Driver:
    """Does one step after another to a queue, and keeps the leases that it gave."""

    def __init__(self, queue: Queue, clock: TurnedClock) -> None:
        self.queue = queue
        self.clock = clock
        self.leases: list[Lease] = []
        self.completed: list[Lease] = []

    def step(self, what: str, number: int) -> object:
        try:
            return self._calls(number)[what]()
        except TallystickError as error:
            return type(error), error.message, error.found

    def _calls(self, number: int) -> dict[str, Callable[[], object]]:
        queue, name = self.queue, job_id(number % RUNS)
        return {
            "submit": lambda: queue.submit(
                make_run(number % RUNS), priority=number, max_attempts=1 + number % 3
            ),
            "claim": lambda: self._claim(WORKERS[number % 2]),
            "complete": lambda: self._complete(number),
            "again": lambda: self._under(number, "again", 0),
            "never": lambda: self._under(number, "never", 0),
            "delay": lambda: self._under(number, "again", 30),
            "release": lambda: self._with(number, queue.release),
            "hand back": lambda: self._with(number, lambda lease: queue.release(lease, "no model")),
            "without": lambda: self._claim(WORKERS[0], make_run().model_digest),
            "waits": lambda: (queue.waits(), queue.waits([make_run().model_digest])),
            "heartbeat": lambda: self._with(number, queue.heartbeat),
            "cancel": lambda: queue.cancel(name),
            "retry": lambda: queue.retry(name),
            "advance": lambda: self.clock.advance(20 * number),
            "wall": lambda: self.clock.step_wall(3600 * (number - 3)),
            "reboot": self.clock.reboot,
        }

    def _lease(self, number: int) -> Lease | None:
        return self.leases[-1 - number % len(self.leases)] if self.leases else None

    def _claim(self, worker: str, *without: str) -> Lease | None:
        lease = self.queue.claim(worker, lease_seconds=30, without_models=without)
        if lease is not None:
            self.leases.append(lease)
        return lease

    def _with(self, number: int, call: Callable[[Lease], None]) -> None:
        lease = self._lease(number)
        if lease is not None:
            call(lease)

    def _complete(self, number: int) -> None:
        lease = self._lease(number)
        if lease is not None:
            self.queue.complete(lease, make_result(lease.lease_epoch))
            self.completed.append(lease)

    def _under(self, number: int, retry: str, delay: float) -> object:
        lease = self._lease(number)
        if lease is None:
            return None
        return self.queue.fail(lease, "why", retry=retry, delay_seconds=delay)  # type: ignore[arg-type]

    def kept(self) -> object:
        jobs = self.queue.jobs()
        return jobs, self.queue.counts(), [self.queue.leases(job.job_id) for job in jobs]

    def check(self) -> None:
        """Hold the queue to what holds of every queue at any time."""
        assert len({lease.job_id for lease in self.completed}) == len(
            {(lease.job_id, lease.lease_epoch) for lease in self.completed}
        ), "a job was completed under two epochs"
        for job in self.queue.jobs():
            leases = self.queue.leases(job.job_id)
            assert [lease.lease_epoch for lease in leases] == [*range(1, job.lease_epoch + 1)]
            unended = [lease for lease in leases if lease.ended is None]
            assert len(unended) == (job.state == "leased")
            assert unended == list(leases[-1:] if unended else ())
            completed = [lease for lease in leases if lease.ended is LeaseEnd.COMPLETED]
            assert len(completed) == (job.state == "done")
            assert 0 <= job.attempts <= job.max_attempts


@settings(deadline=None, max_examples=25)
@given(st.lists(STEPS, min_size=10, max_size=40))
def test_any_order_of_calls(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        clocks = TurnedClock(), TurnedClock()
        with opened(Path(directory), clocks[1]) as embedded:
            drivers = Driver(memory_queue(clocks[0]), clocks[0]), Driver(embedded, clocks[1])
            for what, number in steps:
                first, second = (driver.step(what, number) for driver in drivers)
                assert first == second
            assert drivers[0].kept() == drivers[1].kept()
            for driver in drivers:
                driver.check()
