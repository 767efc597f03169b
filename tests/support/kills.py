"""A worker that is killed at moments which a seed chooses, in every phase of a run.

The worker is forked, so that its start costs nothing, and tells of each phase as it begins. It is
killed from outside, by SIGKILL, a random part of the phase's usual length later.
"""

from __future__ import annotations

import os
import random
import select
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from tallystick.queues.core import JobQueue
from tallystick.queues.port import JobState
from tallystick.queues.sqlite.adapter import SqliteQueue, open_queue
from tallystick.store.announced import FOLDER
from tallystick.store.sets import find_sets, load_set
from tallystick.telemetry.events import Event, EventKind
from tallystick.worker import execute, loop
from tallystick.worker import run as worker_run
from tallystick.worker.loop import Worker
from tallystick.worker.publishing import Publication
from tallystick.worker.settings import WorkerSettings
from tallystick.worker.stopping import StopSwitch
from tests.support.runs import children_of, is_running

PHASES: Final = ("fetch", "load", "generate", "seal", "publish", "complete")
#: In these the engine's child is there to be killed.
_WITH_CHILD: Final = ("load", "generate")
_PATIENCE: Final = 120.0
_AGAIN_SECONDS: Final = 0.05


def engine_children(parent: int) -> tuple[int, ...]:
    """Return the children that execute runs or calibrate, for a worker or for its templates."""
    found = [pid for pid in children_of(parent) if _executes(pid, b"execution.child")]
    for template in templates_of(parent):
        found += children_of(template)
    return tuple(found)


def templates_of(parent: int) -> tuple[int, ...]:
    """Return the processes of a worker that fork its children."""
    return tuple(pid for pid in children_of(parent) if _executes(pid, b"execution.template"))


def _executes(pid: int, program: bytes) -> bool:
    try:
        return program in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _tell_of_phases(pipe: int) -> None:
    """Let this process write the name of each phase to ``pipe`` as it begins."""

    def before(owner: Any, name: str, phase: str) -> None:
        call = getattr(owner, name)

        def told(*arguments: Any, **options: Any) -> Any:
            os.write(pipe, f"{phase}\n".encode())
            return call(*arguments, **options)

        setattr(owner, name, told)

    before(JobQueue, "claim", "fetch")
    before(execute, "run_job", "load")
    before(worker_run, "seal_set", "seal")
    before(Publication, "announce", "publish")
    before(JobQueue, "complete", "complete")
    make = Event.__init__

    def made(event: Event, kind: EventKind, *arguments: Any, **options: Any) -> None:
        if kind is EventKind.LOAD_COMPLETE:
            os.write(pipe, b"generate\n")
        make(event, kind, *arguments, **options)

    # In a forked process that ends with its run: no fixture could take the patch back there.
    Event.__init__ = made  # type: ignore[method-assign, assignment]


class Victim:
    """A forked worker and what it tells."""

    def __init__(self, queue: Path, settings: WorkerSettings, home: Path) -> None:
        self._read, write = os.pipe()
        self._lines = b""
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._read)
                os.setsid()  # a signal for the tests is not for it
                _tell_of_phases(write)
                # Final for the program; a killed run shall not make the test wait its five seconds.
                loop._AGAIN_SECONDS = _AGAIN_SECONDS  # type: ignore[misc]
                with open_queue(queue) as opened, StopSwitch(60) as stop:
                    Worker(opened, settings, home, stop).work(until="empty")
            except BaseException:
                os._exit(1)
            os._exit(0)
        os.close(write)

    def next_phase(self) -> str | None:
        """Return the phase that begins next; None when the worker has ended."""
        while b"\n" not in self._lines:
            ready, _, _ = select.select([self._read], [], [], _PATIENCE)
            assert ready, "the worker does nothing"
            chunk = os.read(self._read, 4096)
            if not chunk:
                return None
            self._lines += chunk
        line, _, self._lines = self._lines.partition(b"\n")
        return line.decode()

    def behind(self) -> bool:
        """Say whether it told of more than was read: then the moment of the last phase is over."""
        return bool(self._lines or select.select([self._read], [], [], 0)[0])

    def kill(self) -> None:
        """Kill it, and see it and its children gone."""
        children = {*children_of(self.pid), *engine_children(self.pid)}
        os.kill(self.pid, signal.SIGKILL)
        self.wait()
        _until(lambda: not any(map(is_running, children)))

    def wait(self) -> int:
        """Return how it ended; negative for a signal."""
        os.close(self._read)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@dataclass
class Massacre:
    """Kills by a seed; ``kills`` counts them by phase and victim."""

    queue: Path
    settings: WorkerSettings
    home: Path
    submit: Callable[[SqliteQueue], str]
    seed: int
    jobs: list[str] = field(default_factory=list)
    kills: Counter[tuple[str, str]] = field(default_factory=Counter)
    lengths: dict[str, float] = field(default_factory=dict)
    published: set[str] = field(default_factory=set)

    @property
    def receipts(self) -> Path:
        assert self.settings.receipts is not None
        return Path(self.settings.receipts)

    def sets(self) -> set[str]:
        """Return the names of the sets, and hold each to being whole."""
        if not self.receipts.exists():
            return set()
        names = {path.name for path in self.receipts.iterdir() if not path.name.startswith(".")}
        for name in names:
            (location,) = find_sets(self.receipts / name)
            assert load_set(location).withheld == ()
        return names

    def measure(self, queue: SqliteQueue) -> None:
        """Let two runs come to their end, and note how long each phase of the second took."""
        self.jobs += [self.submit(queue) for _ in range(2)]
        victim = self._victim()
        moments = []
        while (phase := victim.next_phase()) is not None:
            moments.append((phase, time.monotonic()))
        assert victim.wait() == 0
        loads = [at for at, (phase, _) in enumerate(moments) if phase == "load"]
        second = moments[loads[1] - 1 :]
        for (phase, start), (_, end) in pairwise(second):
            self.lengths.setdefault(phase, end - start)
        assert {*self.lengths} == {*PHASES}

    def kill(self, moments: int, queue: SqliteQueue) -> None:
        """Kill worker or child at ``moments`` moments; all that is at rest is looked at."""
        chance = random.Random(self.seed)
        victim: Victim | None = None
        phases = [PHASES[number % len(PHASES)] for number in range(moments)]
        chance.shuffle(phases)
        for phase in phases:
            part, whom = chance.random(), chance.choice(("worker", "child"))
            while dict(queue.counts())[JobState.PENDING] < 2:
                self.jobs.append(self.submit(queue))
            victim = victim or self._victim()
            while (told := victim.next_phase()) != phase or victim.behind():
                assert told is not None, "the worker ended by itself"
            time.sleep(part * self.lengths[phase])
            found = engine_children(victim.pid) if whom == "child" and phase in _WITH_CHILD else ()
            if found:
                os.kill(found[0], signal.SIGKILL)
            else:
                whom = "worker"
                victim.kill()
                victim = None
                self._look(queue)
            self.kills[phase, whom] += 1
        if victim is not None:
            victim.kill()

    def finish(self) -> None:
        """Let what is left be done by a worker that nobody kills."""
        while True:
            victim = self._victim()
            while victim.next_phase() is not None:
                pass
            assert victim.wait() == 0
            with open_queue(self.queue) as queue:
                self._look(queue)
                counts = dict(queue.counts())
            if counts[JobState.LEASED] == 0:
                return
            time.sleep(0.1)  # a lease of a killed worker has to run out

    def _look(self, queue: SqliteQueue) -> None:
        """Hold what is at rest: each set whole, none gone, and each done run has its own."""
        found = self.sets()
        assert self.published <= found, "a set that was there is gone"
        self.published |= found
        for job in queue.jobs([JobState.DONE], limit=10**6):
            assert job.result is not None
            assert Path(job.result.place or "").name in found

    def _victim(self) -> Victim:
        return Victim(self.queue, self.settings, self.home)


def left_over(receipts: Path) -> list[str]:
    """Return what is in a place of receipts besides sets, notes included."""
    hidden = [path.name for path in receipts.iterdir() if path.name.startswith(".")]
    notes = receipts / FOLDER
    return sorted({*hidden} - {FOLDER}) + (os.listdir(notes) if notes.exists() else [])
