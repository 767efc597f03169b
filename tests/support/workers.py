"""A worker over a queue in memory, whose runs are executed by a piece of the test."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tallystick.contracts.layout import MARKER
from tallystick.contracts.request import InferenceRun
from tallystick.errors import UnavailableError
from tallystick.queues.memory import memory_queue
from tallystick.queues.port import Job, Lease, Queue
from tallystick.store.announced import FOLDER
from tallystick.store.artifacts import Member, prepare_under
from tallystick.worker.loop import Worker
from tallystick.worker.publishing import Planned
from tallystick.worker.run import Guard, RunResult
from tallystick.worker.settings import DEFAULTS
from tallystick.worker.stopping import StopSwitch
from tallystick.worker.turns import Listener, Turn
from tests.support.documents import digest_of, example_receipt
from tests.support.queues import job_id, make_run

SET_ID = "ab" * 16
LONG = 30.0  # seconds that no test waits


def fast_settings(**changes: Any) -> Any:
    return replace(DEFAULTS, **{"idle_milliseconds": 10, **changes})


def wait(seconds: float = LONG) -> None:
    """Wait as a run does for its child: a StopSwitch for this module may end it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)


def plain_run(number: int = 0, **changes: Any) -> InferenceRun:
    """Return a run that a worker accepts."""
    return replace(make_run(number), expires_at=None, **changes)


def leave_set(receipts: Path, guard: Guard) -> RunResult:
    """Leave a set as a run does: claimed, guarded, published."""
    with prepare_under(receipts) as place:
        guard(Planned(SET_ID, digest_of("a receipt"), digest_of("a marker")))
        directory = place.write(
            (Member(f"{SET_ID}.json", b"{}", "public"),),
            Member(MARKER.name(SET_ID), b"{}", "public"),
        )
    return RunResult(
        directory=directory,
        receipt_id=SET_ID,
        receipt_digest=digest_of("a receipt"),
        core_digest=digest_of("a core"),
        compute_receipt_id="00" * 32,
        receipt=example_receipt(),
        output=b"",
        seed=None,
        signer="somebody",
        default_key_created=False,
        default_audit_key_created=False,
    )


@dataclass
class Bench:
    """A worker that waits to be let loose; ``turns`` and ``troubles`` are what it told."""

    home: Path
    queue: Queue = field(default_factory=memory_queue)
    turns: list[Turn] = field(default_factory=list)
    troubles: list[UnavailableError] = field(default_factory=list)
    stop: StopSwitch = field(default_factory=lambda: StopSwitch(LONG, waits=__name__))
    ran: int = 0

    @property
    def receipts(self) -> Path:
        return self.home / "receipts"

    def sets(self) -> list[str]:
        """Return what is in the folder of receipts, pending directories included."""
        found = self.receipts.iterdir() if self.receipts.exists() else ()
        return sorted(path.name for path in found if path.name != FOLDER)

    def notes(self) -> list[str]:
        """Return the notes of sets that the queue was not told of yet."""
        folder = self.receipts / FOLDER
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

    def submit(self, *numbers: int, **changes: Any) -> None:
        for number in numbers:
            self.queue.submit(plain_run(number, **changes))

    def work(
        self, execute: Callable[[Guard], None] | None = None, until: Any = "empty", **changes: Any
    ) -> int:
        """Work; ``execute`` happens in place of each generation."""

        def executed(_run: InferenceRun, guard: Guard) -> RunResult:
            self.ran += 1
            if execute is not None:
                execute(guard)
            return leave_set(self.receipts, guard)

        worker = Worker(
            self.queue,
            fast_settings(**changes),
            self.home,
            self.stop,
            listener=Listener(on_turn=self.turns.append, on_trouble=self.troubles.append),
            execute=executed,
        )
        return worker.work(until=until)

    def job(self, number: int = 0) -> Job:
        return self.queue.jobs()[0] if number == 0 else self.queue.get(job_id(number))


class FaultyQueue:
    """A queue that does not answer the next ``times`` calls of any of ``calls``."""

    def __init__(self, queue: Queue, calls: tuple[str, ...], times: int) -> None:
        self._queue = queue
        self._calls = calls
        self.left = times

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._queue, name)
        if name not in self._calls:
            return call

        def faulty(*arguments: Any, **options: Any) -> Any:
            if self.left > 0:
                self.left -= 1
                raise UnavailableError("the queue does not answer")
            return call(*arguments, **options)

        return faulty


def take(queue: Queue, seconds: float = 60) -> Lease:
    lease = queue.claim("another", lease_seconds=seconds)
    assert lease is not None
    return lease
