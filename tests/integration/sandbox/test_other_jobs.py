"""Jobs besides generation in a sandbox: equal results, or a plain refusal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallystick.errors import SandboxError
from tallystick.execution.jobs import CalibrateJob, FingerprintJob, ObserveJob
from tallystick.execution.launch import InstalledEngine, find_engine, run_job
from tallystick.sandbox.profiles import load_profile
from tests.support.sandboxes import need_level

FULL = load_profile("full")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> InstalledEngine:
    return find_engine(tmp_path_factory.mktemp("jobs-home"))


@pytest.fixture
def model(toy_llama: Path) -> Iterator[int]:
    descriptor = os.open(toy_llama, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def test_calibration_and_observation_are_the_same_inside(
    engine: InstalledEngine, model: int
) -> None:
    need_level("full")
    setup = engine.setup(2)
    observe = ObserveJob(setup, model, "toy.gguf", "a tally", 2, "graph", "omit")
    for job in (CalibrateJob(setup, model, 512), observe):
        texts: list[bytes] = []
        free = run_job(job, (), model_fd=model, on_text=texts.append)
        held_texts: list[bytes] = []
        held = run_job(job, (), model_fd=model, on_text=held_texts.append, sandbox=FULL)
        assert held.body == free.body
        assert b"".join(held_texts) == b"".join(texts)


def test_a_fingerprint_is_refused_before_anything_is_started(engine: InstalledEngine) -> None:
    with pytest.raises(SandboxError, match="fingerprint"):
        run_job(FingerprintJob(engine.setup(1), ()), (), sandbox=FULL)
