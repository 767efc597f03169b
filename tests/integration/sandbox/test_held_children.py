"""Every other child that opens a model, held by a profile: equal results, or a plain refusal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.contracts.egress import EgressReport
from tallystick.errors import InputError, SandboxError
from tallystick.execution.calibrate_model import calibrate_model
from tallystick.execution.observe import ObserveOptions, observe
from tallystick.models.facts_child import read_facts
from tallystick.models.layers_child import read_extents
from tallystick.sandbox import audit, confinement, process
from tallystick.sandbox.cage_spec import Refusal
from tallystick.sandbox.profiles import SHIPPED, load_profile, shipped_profile, strictly
from tallystick.worker.request import RunOptions
from tallystick.worker.run import run
from tests.support.runs import EngineHome
from tests.support.sandboxes import need_level

FULL = SHIPPED["full"]


@pytest.fixture
def audits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EgressReport]]:
    """The report of each child that was locked."""
    found: list[EgressReport] = []

    def noting(report: EgressReport) -> None:
        found.append(report)
        real(report)

    real = audit.require_passed
    monkeypatch.setattr(process, "require_passed", noting)
    yield found
    assert all(report.result == "passed" for report in found)


@pytest.mark.parametrize("level", ["none", "process", "namespaces", "full"])
def test_facts_and_layers_are_the_same_under_each_profile(
    level: str, toy_llama: Path, audits: list[EgressReport]
) -> None:
    need_level(level)
    audits.clear()
    descriptor = os.open(toy_llama, os.O_RDONLY)
    try:
        plain = read_facts(descriptor)
        assert read_facts(descriptor, SHIPPED[level]) == plain
        layers = read_extents(descriptor)
        assert layers.extents
        assert read_extents(descriptor, SHIPPED[level]) == layers
    finally:
        os.close(descriptor)
    assert [report.level for report in audits] == ([] if level == "none" else [level] * 2)


def test_a_broken_file_is_the_same_error(tmp_path: Path, audits: list[EgressReport]) -> None:
    need_level("full")
    audits.clear()
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + b"\xff" * 100)
    descriptor = os.open(tmp_path / "broken.gguf", os.O_RDONLY)
    errors = []
    for sandbox in (None, FULL):
        with pytest.raises(InputError) as caught:
            read_facts(descriptor, sandbox)
        errors.append(str(caught.value))
    os.close(descriptor)
    assert errors[0] == errors[1]
    assert len(audits) == 1


def test_calibrations_transcripts_and_replays_are_the_same(
    engine_home: EngineHome,
    endless_model: Callable[[str], Path],
    tmp_path: Path,
    audits: list[EgressReport],
) -> None:
    need_level("full")
    model = os.fspath(endless_model("llama-q8_0"))
    home = engine_home.path
    plain = calibrate_model(model, threads=1, home=home).calibration
    audits.clear()
    held = calibrate_model(model, threads=1, sandbox=FULL, home=home).calibration
    assert [one.row_class for one in held.combinations] == [
        one.row_class for one in plain.combinations
    ]
    assert len(audits) == 1 + len(held.combinations)
    lines: dict[bool, list[bytes]] = {False: [], True: []}
    options = ObserveOptions(prompt="A tally", observer="graph")
    for sandbox in (None, FULL):
        seen = lines[sandbox is not None]
        observe(model, options, on_line=seen.append, home=home, sandbox=sandbox)
    assert lines[True] == lines[False]
    made = engine_home.run(model, "A tally", 3)
    audits.clear()
    report = engine_home.replay(made.directory, model, sandbox=FULL)
    assert report.verified
    assert [one.level for one in audits] == ["full", "full"]  # facts, and the pass


def test_a_run_s_profile_holds_its_facts_and_its_calibration_too(
    engine_home: EngineHome,
    endless_model: Callable[[str], Path],
    tmp_path: Path,
    audits: list[EgressReport],
) -> None:
    need_level("full")
    fresh = engine_home.copied_to(tmp_path / "home")
    for file in (fresh.path / "models").glob("**/*.json"):
        file.unlink()
    audits.clear()
    model = endless_model("llama-q8_0")
    result = run(
        os.fspath(model),
        RunOptions(prompt="A tally", max_tokens=2, sandbox="full", threads=1),
        home=fresh.path,
    )
    assert result.receipt.observed.egress_audit.result == "passed"
    assert {report.level for report in audits} == {"full"}
    assert len(audits) >= 3


@pytest.mark.parametrize("step", ["namespaces", "filter"])
def test_what_cannot_be_held_is_not_opened(
    step: str, toy_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(*_: Any) -> Refusal:
        return Refusal(step, "EPERM", "not here")

    monkeypatch.setattr(process, "await_lock", refusing)
    descriptor = os.open(toy_llama, os.O_RDONLY)
    with pytest.raises(SandboxError, match="cannot be enforced here") as caught:
        read_facts(descriptor, FULL)
    os.close(descriptor)
    assert caught.value.exit_code == 5
    assert confinement.await_lock is not refusing


def test_children_that_no_receipt_tells_of_are_held_strictly(tmp_path: Path) -> None:
    file = tmp_path / "lenient.yaml"
    file.write_text(
        "name: lenient\nlevel: full\nlowest: process\n"
        "limits: {processes: 64, open_files: 64, cpu_seconds: null, memory_bytes: null}\n"
    )
    assert load_profile(str(file)).levels() == ("full", "namespaces", "process")
    chosen = strictly(str(file))
    assert chosen is not None
    assert chosen.levels() == ("full",)
    assert strictly("none") is None
    assert shipped_profile("full") is FULL
    with pytest.raises(InputError, match="ships"):
        shipped_profile(str(file))
