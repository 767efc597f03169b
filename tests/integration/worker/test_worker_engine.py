"""The worker with the real engine: good runs, failing ones, and signals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tallystick.contracts.layout import MARKER
from tallystick.contracts.request import ExpectedDigest, InferenceRun
from tallystick.errors import UnavailableError
from tallystick.queues.port import JobState
from tallystick.queues.sqlite.adapter import SqliteQueue, open_queue
from tallystick.store.announced import FOLDER
from tallystick.telemetry.rss import resident_bytes
from tallystick.worker.loop import Worker
from tallystick.worker.order import declare_run
from tallystick.worker.request import RunOptions
from tallystick.worker.settings import DEFAULTS
from tallystick.worker.stopping import StopSwitch
from tallystick.worker.turns import Listener, Turn
from tests.support.documents import digest_of
from tests.support.kills import engine_children
from tests.support.runs import EngineHome, children_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")

ARCHITECTURES = ("llama-q8_0", "gemma3", "moe")
PROMPT = "A tally stick is split in two."
RSS_BYTES = 10 * 1024 * 1024
PATIENCE = 120.0


@dataclass
class Farm:
    """A queue, a place of receipts and three models in the session's data folder."""

    home: EngineHome
    folder: Path
    models: tuple[Path, ...]
    declared: int = 0

    @property
    def receipts(self) -> Path:
        return self.folder / "receipts"

    def open(self) -> SqliteQueue:
        return open_queue(self.folder / "queue" / "queue.sqlite3")

    def declare(self, model: Path, tokens: int = 4) -> InferenceRun:
        self.declared += 1
        options = RunOptions(prompt=PROMPT, max_tokens=tokens)
        file = self.folder / f"run-{self.declared}.json"
        return declare_run(str(model), options, output=file, home=self.home.path)

    def settings(self, **changes: Any) -> Any:
        values = {
            "receipts": str(self.receipts),
            "queue": str(self.folder / "queue" / "queue.sqlite3"),
            "models": tuple(map(str, self.models)),
            "idle_milliseconds": 20,
            "threads": 1,
        }
        return replace(DEFAULTS, **{**values, **changes})

    def work(self, queue: SqliteQueue, **changes: Any) -> list[Turn]:
        """Work in this process until the queue is empty."""
        turns: list[Turn] = []
        listener = Listener(on_turn=turns.append)
        with StopSwitch(60) as stop:
            worker = Worker(
                queue, self.settings(**changes), self.home.path, stop, listener=listener
            )
            worker.work(until="empty")
        return turns

    def start(self, *words: str, **changes: Any) -> subprocess.Popen[bytes]:
        """Start a worker as a user does."""
        file = self.folder / "worker.yaml"
        settings = self.settings()
        named = ("schema", "queue", "receipts", "threads", "idle_milliseconds")
        lines = [f"{name}: {getattr(settings, name)}" for name in named]
        lines.append(f"models: [{', '.join(map(str, self.models))}]")
        lines += [f"{name}: {value}" for name, value in changes.items()]
        file.write_text("\n".join(lines) + "\n")
        return self.home.start("worker", "--config", file, *words)

    def sets(self) -> list[Path]:
        return [path for path in self.receipts.iterdir() if path.name != FOLDER]

    def notes(self) -> list[str]:
        """Return the notes of sets that the queue was not told of."""
        folder = self.receipts / FOLDER
        return os.listdir(folder) if folder.exists() else []

    def complete_sets(self) -> set[str]:
        return {path.parent.name for path in self.receipts.glob(f"*/*{MARKER.suffix}")}

    def left_overs(self) -> list[str]:
        if not self.receipts.exists():
            return []
        return [path.name for path in self.sets() if path.name.startswith(".")]


@pytest.fixture(scope="module")
def models(engine_home: EngineHome, endless_model: Callable[[str], Path]) -> tuple[Path, ...]:
    paths = tuple(endless_model(name) for name in ARCHITECTURES)
    for path in paths:  # calibrated once, and not in the middle of what is looked at
        engine_home.run(path, PROMPT, 2)
    return paths


@pytest.fixture
def farm(engine_home: EngineHome, models: tuple[Path, ...], tmp_path: Path) -> Farm:
    return Farm(engine_home, tmp_path, models)


def until(condition: Callable[[], Any]) -> Any:
    """Wait for a condition and return what it gives."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.01)
    raise AssertionError("it did not come to be")


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_many_runs_each_accounted_for_once(farm: Farm, tmp_path: Path) -> None:
    hostile = tmp_path / "hostile.gguf"
    hostile.write_bytes(farm.models[0].read_bytes()[:-4096])
    farm.models = (*farm.models, hostile)
    good = [farm.declare(model) for _ in range(3) for model in farm.models[:3]]
    digest = farm.home.digest_of(hostile)
    bad = {
        "truncated": replace(good[0], model_digest=digest, model=ExpectedDigest(digest)),
        "wrong": replace(good[0], model=ExpectedDigest(digest_of("another"))),
        "unknown": replace(
            good[0], model_digest=digest_of("none"), model=ExpectedDigest(digest_of("none"))
        ),
    }
    bad = {
        name: replace(run, run_id=farm.declare(farm.models[0]).run_id) for name, run in bad.items()
    }
    with farm.open() as queue:
        for run in good[:3]:
            queue.submit(run)
        assert [turn.outcome for turn in farm.work(queue)] == ["done"] * 3
        files, memory = open_files(), resident_bytes()
        jobs = {
            queue.submit(run).job_id: name
            for name, run in [*bad.items(), *((f"good {i}", run) for i, run in enumerate(good[3:]))]
        }
        turns = farm.work(queue)
        assert resident_bytes() - memory < RSS_BYTES
        assert open_files() == files
        assert sorted(turn.job_id for turn in turns) == sorted(jobs), turns
        for turn in turns:
            name = jobs[turn.job_id]
            expected = {"truncated": "failed", "wrong": "failed", "unknown": "released"}
            assert turn.outcome == expected.get(name, "done"), turn
        done = queue.jobs([JobState.DONE])
    places = {job.result.place for job in done if job.result is not None}
    assert places == {str(path) for path in farm.sets()}
    assert len(places) == len(farm.complete_sets()) == 9
    assert children_of(os.getpid()) == ()
    mapped = Path("/proc/self/maps").read_text()
    assert ".gguf" not in mapped


def test_a_ring_of_layers_in_the_settings(farm: Farm) -> None:
    """The same run with and without a ring: two receipts, one core."""
    run = farm.declare(farm.models[0])
    found = []
    for depth in (0, 1):
        with farm.open() as queue:
            again = replace(run, run_id=farm.declare(farm.models[0]).run_id)
            queue.submit(again)
            (turn,) = farm.work(queue, ring_depth=depth)
        assert turn.outcome == "done", turn
        assert turn.place is not None
        (file,) = turn.place.glob("*.geoai.json")
        found.append(json.loads(file.read_bytes()))
    resident, ringed = found
    assert resident["core"] == ringed["core"]
    assert (resident["observed"]["ring_depth"], resident["observed"]["evictions"]) == (0, "0")
    assert ringed["observed"]["ring_depth"] == 1
    assert int(ringed["observed"]["evictions"]) > 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGSTOP])
def test_a_child_that_is_killed_or_hangs(farm: Farm, number: signal.Signals) -> None:
    """SIGKILL: out of memory. SIGABRT: the engine's own way out. SIGSTOP: it hangs."""
    before = set(children_of(os.getpid()))

    def strike() -> None:
        os.kill(until(lambda: engine_children(os.getpid()))[0], number)

    with farm.open() as queue:
        job_id = queue.submit(farm.declare(farm.models[0], 256), max_attempts=1).job_id
        queue.submit(farm.declare(farm.models[1]))
        striker = threading.Thread(target=strike)
        striker.start()
        turns = farm.work(queue, run_seconds=15 if number == signal.SIGSTOP else 600)
        striker.join()
        assert [turn.outcome for turn in turns] == ["dead", "done"]
        words = "deadline" if number == signal.SIGSTOP else number.name
        assert words in (queue.get(job_id).reason or "")
    assert set(children_of(os.getpid())) == before
    assert len(farm.sets()) == 1


def leased(queue: SqliteQueue) -> bool:
    return dict(queue.counts())[JobState.LEASED] > 0


@pytest.mark.parametrize(("grace", "state"), [(100, JobState.DONE), (0, JobState.PENDING)])
def test_a_stop_in_the_middle_of_a_run(farm: Farm, grace: int, state: JobState) -> None:
    with farm.open() as queue:
        job_id = queue.submit(farm.declare(farm.models[0], 200)).job_id
        queue.submit(farm.declare(farm.models[1]))
        worker = farm.start(grace_seconds=grace)
        (child,) = until(lambda: engine_children(worker.pid))
        worker.send_signal(signal.SIGTERM)
        out, err = worker.communicate(timeout=PATIENCE)
        assert worker.returncode == 0, err
        assert out.decode().split()[0] == ("done" if state is JobState.DONE else "released")
        job = queue.get(job_id)
        assert job.state is state
        assert job.attempts == (1 if state is JobState.DONE else 0)
        assert dict(queue.counts())[JobState.LEASED] == 0
    assert not Path(f"/proc/{child}").exists()
    assert farm.left_overs() == []
    assert len(farm.complete_sets()) == (state is JobState.DONE)


def test_two_workers_share_the_work(farm: Farm) -> None:
    with farm.open() as queue:
        jobs = {queue.submit(farm.declare(farm.models[i % 3])).job_id for i in range(6)}
        workers = [farm.start("--once") for _ in range(2)]
        outputs = [worker.communicate(timeout=PATIENCE) for worker in workers]
        assert [worker.returncode for worker in workers] == [0, 0], outputs
        assert dict(queue.counts())[JobState.DONE] == len(jobs)
        assert all(queue.get(job_id).lease_epoch == 1 for job_id in jobs)
    lines = [line for out, _ in outputs for line in out.decode().splitlines()]
    assert len(lines) == len(jobs)
    assert len(farm.complete_sets()) == len(jobs)


def test_a_place_that_cannot_be_used_is_said_at_once(farm: Farm) -> None:
    farm.receipts.symlink_to("nowhere")
    with farm.open() as queue:
        queue.submit(farm.declare(farm.models[0]))
        with pytest.raises(UnavailableError):
            farm.work(queue)
        assert dict(queue.counts())[JobState.PENDING] == 1
    shutil.rmtree(farm.folder / "queue")
