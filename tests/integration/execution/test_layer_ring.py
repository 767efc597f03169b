"""The layer ring on the real engine: equal bits, memory that is really free, honest words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.contracts.codec import encode_bytes
from tallystick.contracts.layout import TELEMETRY
from tallystick.errors import UsageError
from tallystick.telemetry.events import MAX_LAYER_EVENTS, EventKind
from tallystick.telemetry.log import TelemetryLog, parse_log
from tallystick.worker.run import RunResult
from tests.support.memory_groups import memory_group
from tests.support.models import write_model
from tests.support.runs import EngineHome, make_endless
from tests.support.sandboxes import need_level

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pages are given up on Linux")

Endless = Callable[[str], Path]

ROOT = Path(__file__).resolve().parents[3]
PROMPT = "A tally stick 割符 is split in two."
TOKENS = 6
MEBIBYTE = 1024 * 1024


def core_bytes(result: RunResult) -> bytes:
    return encode_bytes(result.receipt.core)


def log_of(result: RunResult) -> TelemetryLog:
    return parse_log((result.directory / TELEMETRY.name(result.receipt_id)).read_bytes())


@pytest.mark.parametrize(
    ("name", "layers"), [("llama-q8_0", 3), ("gemma3", 7), ("moe", 3), ("hybrid-q4k", 8)]
)
def test_no_bit_depends_on_the_ring(
    name: str, layers: int, engine_home: EngineHome, endless_model: Endless
) -> None:
    model = endless_model(name)
    without = engine_home.run(model, PROMPT, TOKENS)
    seen = without.receipt.observed
    assert (seen.ring_depth, seen.residency, seen.evictions) == (0, "all_resident", 0)
    for depth in (1, 2):
        ringed = engine_home.run(model, PROMPT, TOKENS, ring_depth=depth, self_check="yes")
        assert core_bytes(ringed) == core_bytes(without)
        seen = ringed.receipt.observed
        assert (seen.ring_depth, seen.residency) == (depth, "ring")
        # The load, one chunk of the prompt, a step for each token but one, one chunk of a pass.
        assert seen.evictions == layers * (1 + 1 + TOKENS - 1 + 1)
        assert engine_home.replay(ringed.directory, model, ring_depth=3 - depth).verified
    assert engine_home.replay(without.directory, model, ring_depth=2).verified


@pytest.mark.parametrize("depth", [3, 4096])
def test_with_room_for_all_layers_nothing_is_given_up(
    depth: int, engine_home: EngineHome, endless_model: Endless
) -> None:
    model = endless_model("llama-q8_0")
    roomy = engine_home.run(model, PROMPT, TOKENS, ring_depth=depth)
    seen = roomy.receipt.observed
    assert (seen.ring_depth, seen.residency, seen.evictions) == (depth, "all_resident", 0)
    assert (seen.prefetch_hits, seen.prefetch_misses) == (0, 0)
    assert log_of(roomy).layers is None
    assert core_bytes(roomy) == core_bytes(engine_home.run(model, PROMPT, TOKENS))


@pytest.mark.parametrize("observer", ["compiled", "python"])
@pytest.mark.parametrize("evidence", [(), ("states",), ("states", "graph", "gemm")], ids=str)
def test_whatever_is_observed(
    observer: str,
    evidence: tuple[str, ...],
    engine_home: EngineHome,
    endless_model: Endless,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if observer == "python":
        monkeypatch.setenv("TALLYSTICK_OBSERVER", "python")
    model = endless_model("moe")
    plain, ringed = (
        engine_home.run(model, PROMPT, TOKENS, evidence=evidence, ring_depth=depth)
        for depth in (0, 2)
    )
    assert core_bytes(plain) == core_bytes(ringed)
    assert ringed.receipt.observed.residency == "ring"


def test_under_sequential(engine_home: EngineHome, endless_model: Endless) -> None:
    model = endless_model("hybrid-small")
    plain, ringed = (
        engine_home.run(model, "Fox", 2, policy="sequential", ring_depth=depth) for depth in (0, 2)
    )
    assert core_bytes(plain) == core_bytes(ringed)
    assert ringed.receipt.observed.residency == "ring"
    assert engine_home.replay(plain.directory, model, ring_depth=1).verified


def test_the_real_model(engine_home: EngineHome, smollm2: str) -> None:
    plain, ringed = (
        engine_home.run(smollm2, PROMPT, 24, chat="template", ring_depth=depth) for depth in (0, 4)
    )
    assert core_bytes(plain) == core_bytes(ringed)
    seen, log = ringed.receipt.observed, log_of(ringed)
    assert seen.residency == "ring"
    assert seen.prefetch_hits + seen.prefetch_misses == seen.evictions - 30
    assert seen.dropped_events == 0
    # More happened than has an event: the rest is counted only.
    assert log.layers is not None
    assert sum(log.layers.values()) == MAX_LAYER_EVENTS
    assert log.layers[EventKind.LAYER_EVICTED] < seen.evictions


def test_the_events_keep_to_the_depth(engine_home: EngineHome, endless_model: Endless) -> None:
    ringed = engine_home.run(endless_model("gemma3"), PROMPT, TOKENS, ring_depth=2)
    held, most = set(range(7)), 0
    for event in log_of(ringed).events():
        if event.kind is EventKind.LAYER_EVICTED:
            assert event.layer is not None
            held.remove(event.layer)
        elif event.kind is EventKind.LAYER_INSTALLED:
            assert event.layer is not None
            held.add(event.layer)
            most = max(most, len(held))
        elif event.kind in (EventKind.PREFETCH_HIT, EventKind.PREFETCH_MISS):
            assert event.layer is not None
    assert most == 2


def test_in_a_sandbox_of_root_residency_cannot_be_observed(
    engine_home: EngineHome, endless_model: Endless
) -> None:
    # Another user's process keeps its own user, who owns the file: residency is observable then.
    if os.geteuid() != 0:
        pytest.skip("only root's children become another user")
    need_level("full")
    model = endless_model("gemma3")
    plain = engine_home.run(model, PROMPT, TOKENS, sandbox="full")
    ringed = engine_home.run(model, PROMPT, TOKENS, sandbox="full", ring_depth=2)
    assert core_bytes(plain) == core_bytes(ringed)
    seen = ringed.receipt.observed
    # Who does not own the file is told that every page is there, also right after giving it up.
    assert seen.residency == "unobservable"
    assert seen.evictions == 7 * (1 + 1 + TOKENS - 1)
    assert (seen.prefetch_hits, seen.prefetch_misses) == (0, 0)
    assert engine_home.replay(ringed.directory, model).verified


def test_an_impossible_depth_is_refused(engine_home: EngineHome, endless_model: Endless) -> None:
    model = endless_model("llama-q8_0")
    for depth in (-1, 4097):
        with pytest.raises(UsageError, match="depth"):
            engine_home.run(model, PROMPT, TOKENS, ring_depth=depth)


@pytest.fixture(scope="module")
def large_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A model of 28 layers and 700 MB, on the disk."""
    path = tmp_path_factory.mktemp("large") / "large.gguf"
    write_model("llama-28", path)
    make_endless(path)
    _forget(path)
    yield path
    path.unlink()


def _forget(path: Path) -> None:
    """Write the file out and drop it from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def _memory(model: Path, depth: int) -> dict[str, Any]:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.ring_memory", os.fspath(model), str(depth)],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


def test_memory_is_really_free(large_model: Path) -> None:
    size = large_model.stat().st_size
    without = _memory(large_model, 0)
    assert without["most"] > size
    assert without["cached"] > 0.95 * size
    for depth in (1, 3):
        seen = _memory(large_model, depth)
        assert seen["residency"]["residency"] == "ring"
        assert seen["loaded"] > size
        # Its layers, what is in no layer, the library; and what the kernel reads around a fault.
        bound = (depth + 2) * size // 28 + 64 * MEBIBYTE
        assert seen["most"] < bound < size / 2
        assert seen["cached"] < bound


def test_a_model_four_times_the_memory(
    engine_home: EngineHome, large_model: Path, tmp_path: Path
) -> None:
    words = (
        "run", "--model", large_model, "--policy", "sequential", "--prompt-stdin", "--json",
        "--evidence", "states",
    )  # fmt: skip
    outside = engine_home.cli(*words, "--output-dir", tmp_path / "outside", stdin="Fox")
    assert outside.returncode == 0, outside.stderr
    _forget(large_model)  # or it would be charged to whoever read it first
    limit = large_model.stat().st_size // 4
    with memory_group(limit) as group:
        program = [sys.executable, "-m", "tallystick"]
        given = map(str, (*words, "--output-dir", tmp_path / "inside", "--ring-depth", "2"))
        inside = subprocess.run(
            group.enter(*program, *given),
            env={**os.environ, "TALLYSTICK_HOME": str(engine_home.path)},
            input="Fox",
            capture_output=True,
            text=True,
            check=False,
        )
        assert inside.returncode == 0, inside.stderr
        assert limit // 4 < group.peak() <= limit
    first, second = json.loads(outside.stdout), json.loads(inside.stdout)
    assert first["core_digest"] == second["core_digest"]
    (receipt,) = (tmp_path / "inside").glob("*.geoai.json")
    seen = json.loads(receipt.read_bytes())["observed"]
    assert (seen["ring_depth"], seen["residency"]) == (2, "ring")
    assert int(seen["evictions"]) >= 28 * 3
