"""The benchmark of the full geometry: its model, and its checks at toy widths."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGUFReader

from bench.big.__main__ import cases, model_findings
from bench.big.commands import CommandFailedError, Program
from bench.big.geometry import PROFILE, SCALES
from bench.big.machine import missing
from bench.big.scenario import execute
from bench.big.writer import metadata, write_model
from tallystick.compute.families import describe
from tallystick.compute.profiles import profile_architecture
from tallystick.engine.gguf_writer import Tensor, write_gguf
from tallystick.models.facts_child import read_facts
from tests.support.runs import EngineHome

FULL, TOY = SCALES["full"], SCALES["toy"]
SEQUENTIAL = cases("the quick brown fox quick", "")[0]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("big") / "toy.gguf"
    write_model(path, TOY)
    return path


def test_the_full_geometry_is_the_published_one(tmp_path: Path) -> None:
    path = tmp_path / "header.gguf"
    with path.open("wb") as stream:
        write_gguf(stream, metadata(FULL), (Tensor("output_norm.weight", 0, (32,), bytes(128)),))
    descriptor = os.open(path, os.O_RDONLY)
    facts = read_facts(descriptor)
    os.close(descriptor)
    assert describe(facts) == FULL.architecture == profile_architecture(PROFILE)
    assert facts.needs_normalising == ()


def test_no_two_layers_have_the_same_weights(toy: Path) -> None:
    tensors = {tensor.name: tensor for tensor in GGUFReader(toy).tensors}
    assert len({name.split(".")[1] for name in tensors if name.startswith("blk.")}) == 40
    for rest in ("ffn_gate_exps.weight", ".attn_norm.weight"):
        same = [tensor for name, tensor in tensors.items() if name.endswith(rest)]
        assert len({tensor.data.tobytes() for tensor in same}) == len(same) == 40
    ends = tensors["output.weight"].data[[1, 3]]
    assert not ends.any()


def test_a_small_machine_is_told_what_it_lacks(tmp_path: Path) -> None:
    greedy = replace(TOY, memory=10**18)
    words = missing(greedy, tmp_path, disk=10**19)
    assert [text.split(":")[0] for text in words] == [f"free disk in {tmp_path}", "memory"]
    assert missing(replace(TOY, memory=1), tmp_path, disk=1) == ()


def test_the_sequential_case_holds_at_toy_widths(
    engine_home: EngineHome, toy: Path, tmp_path: Path
) -> None:
    (tmp_path / "audit.key").write_bytes(b"k" * 32)
    (tmp_path / "audit.key").chmod(0o600)
    program = Program(engine_home.path)
    program.run("model", "add", toy, "--name", "bench-big")
    outcome = execute(SEQUENTIAL, TOY, program, "bench-big", tmp_path)
    findings = (*model_findings(TOY, program, "bench-big"), *outcome.findings)
    assert [finding for finding in findings if not finding.held] == []
    found = {finding.what: finding.found for finding in findings}
    assert (found["trace events"], found["expert routes"]) == (2466, 240)
    assert found["matrix products of each step"] == {411}
    if Path("/proc/self/status").exists():
        assert 0 < outcome.run.supervisor.peak < outcome.run.child.peak


def test_a_command_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CommandFailedError, match="exit status 4"):
        Program(tmp_path / "home").run("model", "add", tmp_path / "absent.gguf")
