"""Real runs in real sandboxes: equal tokens, roots and facts, with root's rights and without."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tallystick.errors import InputError, RunFailedError
from tests.support.held_run import comparable, held_run
from tests.support.ordinary_user import ORDINARY_UID
from tests.support.sandboxes import as_nobody, need_level

LEVELS = ["process", "namespaces", "full"]


def made(outcome: Any) -> dict[str, Any]:
    return comparable(outcome.body["generation"])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("held-home")


@pytest.fixture(scope="module")
def plain(toy_llama: Path, home: Path) -> dict[str, Any]:
    return made(held_run(toy_llama, home, None))


@pytest.mark.parametrize("level", LEVELS)
def test_a_held_run_gives_every_equal_byte(
    level: str, toy_llama: Path, home: Path, plain: dict[str, Any]
) -> None:
    need_level(level)
    outcome = held_run(toy_llama, home, level)
    assert made(outcome) == plain
    assert outcome.audit is not None
    assert (outcome.audit.level, outcome.audit.result) == (level, "passed")
    assert all(event.rss > 1 << 20 for event in outcome.events)
    assert outcome.peak_rss >= max(event.rss for event in outcome.events)


def test_experts_and_graphs_are_gathered_alike(toy_moe: Path, home: Path) -> None:
    need_level("full")
    asked: dict[str, Any] = {"evidence": ("states", "gemm"), "policy": "sequential", "chat": None}
    free, held = (held_run(toy_moe, home, level, **asked) for level in (None, "full"))
    assert made(held) == made(free)
    assert int(made(held)["trace_events"]) > 0


def test_a_user_without_rights_gets_the_same_bytes(
    toy_llama: Path, home: Path, plain: dict[str, Any]
) -> None:
    need_level("full")
    place = Path("/tmp", f"tallystick-nobody-{os.getpid()}")
    shutil.copytree(home, place / "home")
    try:
        shutil.copyfile(toy_llama, place / "model.gguf")
        place.chmod(0o755)
        for path in (place, *place.rglob("*")):
            os.chown(path, ORDINARY_UID, ORDINARY_UID)
        words = ["-m", "tests.support.held_run", str(place / "model.gguf"), str(place / "home")]
        done = as_nobody([*words, "full"])
    finally:
        shutil.rmtree(place)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["uid"] == ORDINARY_UID
    assert found["audit"]["level"] == "full"
    assert found["audit"]["result"] == "passed"
    assert found["generation"] == plain


def test_a_model_that_only_root_may_read_is_run(
    toy_llama: Path, home: Path, tmp_path: Path
) -> None:
    need_level("full")
    private = tmp_path / "private.gguf"
    shutil.copyfile(toy_llama, private)
    private.chmod(0o600)
    tmp_path.chmod(0o700)
    assert held_run(private, home, "full").generation().sampled_ids


def test_a_broken_model_is_the_same_error(home: Path, tmp_path: Path, toy_llama: Path) -> None:
    need_level("full")
    data = toy_llama.read_bytes()
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(data[: len(data) // 2])
    for level in (None, "full"):
        with pytest.raises((InputError, RunFailedError)):
            held_run(broken, home, level)
