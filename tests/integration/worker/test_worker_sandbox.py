"""Declared runs under sandbox profiles, as a worker executes them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tallystick.queues.port import JobState
from tallystick.queues.sqlite.adapter import open_queue
from tallystick.worker.order import declare_run
from tallystick.worker.request import RunOptions
from tests.support.ordinary_user import ORDINARY_UID
from tests.support.runs import EngineHome, children_of
from tests.support.sandboxes import as_nobody, need_level

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")

WITHOUT = ("-m", "tests.support.no_user_namespaces")


class Farm:
    """A place with a queue, one model, and settings for it."""

    def __init__(self, home: EngineHome, folder: Path, model: Path) -> None:
        self.home, self.folder, self.model = home, folder, model
        self.settings = folder / "worker.yaml"
        self.settings.write_text(
            "schema: tallystick.worker/v1\nqueue: queue.sqlite3\nreceipts: receipts\nthreads: 1\n"
            f"models: [{model}]\n"
        )
        self._count = 0

    def submit(self, sandbox: str) -> str:
        self._count += 1
        run = declare_run(
            str(self.model),
            RunOptions(prompt="A tally", max_tokens=3, sandbox=sandbox),
            output=self.folder / f"run-{self._count}.json",
            home=self.home.path,
        )
        assert run.sandbox_profile == run.enforcement == sandbox
        with open_queue(self.folder / "queue.sqlite3") as queue:
            return queue.submit(run).job_id

    def job(self, job_id: str) -> Any:
        with open_queue(self.folder / "queue.sqlite3") as queue:
            return queue.get(job_id)

    def check(self, job_id: str, level: str) -> None:
        """The run is done, its set holds, and its audit is of that level."""
        job = self.job(job_id)
        assert job.state is JobState.DONE, job.reason
        key = self.home.path / "keys" / "default.pub.pem"
        verified = self.home.cli("verify", job.result.place, "--key", key)
        assert verified.returncode == 0, verified.stdout
        words = "0 egress probes" if level == "none" else f"32 egress probes at level {level}"
        assert words in verified.stdout


@pytest.fixture
def farm(engine_home: EngineHome, endless_model: Callable[[str], Path], tmp_path: Path) -> Farm:
    model = endless_model("llama-q8_0")
    engine_home.run(model, "A tally", 2)  # calibrated before
    return Farm(engine_home, tmp_path, model)


def test_runs_are_held_as_they_declare(farm: Farm) -> None:
    need_level("full")
    levels = ["none", "namespaces", "full", "full", "process"]
    jobs = [farm.submit(level) for level in levels]
    done = farm.home.cli("worker", "--config", farm.settings, "--once")
    assert done.returncode == 0, done.stderr
    for job_id, level in zip(jobs, levels, strict=True):
        farm.check(job_id, level)
    assert children_of(os.getpid()) == ()


def test_a_worker_without_rights_holds_its_runs_too(farm: Farm) -> None:
    need_level("full")
    place = Path("/tmp", f"tallystick-worker-{os.getpid()}")
    place.mkdir(mode=0o755)
    try:
        shutil.copytree(farm.home.path, place / "home", ignore=shutil.ignore_patterns("receipts"))
        shutil.copyfile(farm.model, place / "model.gguf")
        (place / "work").mkdir(mode=0o700)
        theirs = Farm(EngineHome(place / "home"), place / "work", place / "model.gguf")
        jobs = {level: theirs.submit(level) for level in ("namespaces", "full")}
        for path in (place, *place.rglob("*")):
            os.chown(path, ORDINARY_UID, ORDINARY_UID)
        words = ["-m", "tallystick", "worker", "--config", str(theirs.settings), "--once"]
        done = as_nobody(words, TALLYSTICK_HOME=str(place / "home"), HOME=str(place))
        assert done.returncode == 0, done.stderr
        for path in place.rglob("*"):
            os.chown(path, 0, 0)
        for level, job_id in jobs.items():
            theirs.check(job_id, level)
    finally:
        shutil.rmtree(place)


def test_a_level_that_cannot_be_had_is_a_failed_run_and_the_worker_goes_on(farm: Farm) -> None:
    need_level("full")
    first, second, third = (farm.submit(level) for level in ("none", "full", "process"))
    with farm.home.start("worker", "--config", farm.settings, "--once", before=WITHOUT) as worker:
        _, err = worker.communicate()
    assert worker.returncode == 0, err
    farm.check(first, "none")
    farm.check(third, "process")
    failed = farm.job(second)
    assert failed.state is JobState.FAILED
    assert failed.attempts == 1
    assert "the sandbox level full cannot be enforced here" in (failed.reason or "")
    sets = [path for path in (farm.folder / "receipts").iterdir() if path.name[0] != "."]
    assert len(sets) == 2
