"""Runs that fail for real: each ends with an honest status, and the loop goes on."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tallystick.errors import UnavailableError
from tallystick.execution.templates import Templates
from tallystick.queues.memory import memory_queue
from tallystick.queues.port import JobState, LeaseEnd, Queue
from tallystick.worker import loop
from tallystick.worker.loop import Worker
from tallystick.worker.order import declare_run
from tallystick.worker.request import RunOptions
from tallystick.worker.settings import DEFAULTS
from tallystick.worker.stopping import StopSwitch
from tallystick.worker.turns import Listener, Turn
from tests.support.kills import engine_children, left_over
from tests.support.memory_groups import memory_group
from tests.support.runs import EngineHome, children_of
from tests.support.small_disk import small_disk

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")

PROMPT = "A tally stick is split in two."
PATIENCE = 120.0
_U32 = 4


@dataclass
class Plant:
    """A queue in memory, models, and a worker that works it off in this process."""

    home: EngineHome
    folder: Path
    models: tuple[Path, ...]
    queue: Queue = field(default_factory=memory_queue)
    declared: int = 0

    @property
    def receipts(self) -> Path:
        return self.folder / "receipts"

    def submit(
        self, model: Path, *, tokens: int = 4, attempts: int = 1, prompt: str = PROMPT
    ) -> str:
        self.declared += 1
        file = self.folder / f"run-{self.declared}.json"
        options = RunOptions(prompt=prompt, max_tokens=tokens)
        run = declare_run(str(model), options, output=file, home=self.home.path)
        return self.queue.submit(run, max_attempts=attempts).job_id

    def work(self, receipts: Path | None = None) -> list[Turn]:
        turns: list[Turn] = []
        settings = replace(
            DEFAULTS,
            receipts=str(receipts or self.receipts),
            models=tuple(map(str, self.models)),
            threads=1,
            idle_milliseconds=10,
        )
        with StopSwitch(60) as stop:
            listener = Listener(on_turn=turns.append)
            Worker(self.queue, settings, self.home.path, stop, listener=listener).work(
                until="empty"
            )
        assert children_of(os.getpid()) == ()
        return turns


@pytest.fixture
def plant(engine_home: EngineHome, endless_model: Callable[[str], Path], tmp_path: Path) -> Plant:
    model = endless_model("llama-q8_0")
    engine_home.run(model, PROMPT, 2)
    return Plant(engine_home, tmp_path, (model,))


@pytest.fixture(autouse=True)
def _soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_AGAIN_SECONDS", 0.05)


def aborting(model: Path, into: Path) -> Path:
    """Return a model that the engine does not refuse: it aborts, on an assert of its own.

    Its rotation has another width than its heads.
    """
    start = b"qwen3moe.rope.dimension_count" + struct.pack("<I", _U32)
    data = bytearray(model.read_bytes())
    at = data.index(start) + len(start)
    data[at : at + 4] = struct.pack("<I", 66)
    into.write_bytes(data)
    return into


def test_a_poison_run_is_buried_after_its_attempts(plant: Plant, toy_moe: Path) -> None:
    """Each time the engine itself aborts; runs behind it do not wait for ever."""
    poison = aborting(toy_moe, plant.folder / "aborts.gguf")
    plant.models = (*plant.models, poison)
    dead = plant.submit(poison, attempts=3)
    good = [plant.submit(plant.models[0]) for _ in range(2)]
    turns = plant.work()
    outcomes = [turn.outcome for turn in turns if turn.job_id == dead]
    assert outcomes == ["again", "again", "dead"]
    assert "SIGABRT" in (plant.queue.get(dead).reason or "")
    assert [lease.ended for lease in plant.queue.leases(dead)] == [LeaseEnd.FAILED] * 3
    assert all(plant.queue.get(job_id).state is JobState.DONE for job_id in good)
    assert len(list(plant.receipts.glob("[0-9a-f]*"))) == len(good)
    assert left_over(plant.receipts) == []


def test_a_child_that_the_kernel_kills_for_want_of_memory(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Templates, "of", lambda *_: None)  # the child is one of our own
    with memory_group(4 * 1024 * 1024) as group:

        def strike() -> None:
            end = time.monotonic() + PATIENCE
            while time.monotonic() < end:
                if found := engine_children(os.getpid()):
                    group.take(found[0])
                    break
                time.sleep(0.001)

        victim = plant.submit(plant.models[0], tokens=64)
        good = plant.submit(plant.models[0])
        striker = threading.Thread(target=strike)
        striker.start()
        turns = plant.work()
        striker.join()
        assert group.kills() >= 1
    assert [turn.outcome for turn in turns] == ["dead", "done"]
    assert "SIGKILL" in (plant.queue.get(victim).reason or "")
    assert plant.queue.get(good).state is JobState.DONE
    assert len(list(plant.receipts.glob("[0-9a-f]*"))) == 1


def test_a_disk_that_is_full(plant: Plant, tmp_path: Path) -> None:
    """No room for this set, then none at all, then enough."""
    model = plant.models[0]
    with small_disk(tmp_path / "disk", "size=76k,mode=0700") as disk:
        receipts = disk / "receipts"
        large = plant.submit(model, tokens=512, prompt="z" * 512)
        assert [turn.outcome for turn in plant.work(receipts)] == ["dead"]
        assert "no room" in (plant.queue.get(large).reason or "").lower().replace(
            "no space", "no room"
        )
        assert list(disk.iterdir()) == []
        waiting = plant.submit(model)
        (disk / "filler").write_bytes(bytes(48 * 1024))
        with pytest.raises(UnavailableError):
            plant.work(receipts)
        job = plant.queue.get(waiting)
        assert (job.state, job.attempts) == (JobState.PENDING, 0)
        subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
        assert [turn.outcome for turn in plant.work(receipts)] == ["done"]
        assert len(list(receipts.glob("[0-9a-f]*"))) == 1
        assert left_over(receipts) == []
