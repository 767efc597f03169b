"""``tallystick model metadata`` as a user meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tallystick.models.profiles import profile_pin
from tests.support.hub_stub import Hub, hub_stub

NAME = "smollm2-135m-instruct"
PIN = profile_pin(NAME)
BASE = PIN.base_artifact
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def hub() -> Iterator[tuple[str, Hub]]:
    with hub_stub() as (url, behaviour):
        behaviour.files = {
            f"/{BASE.repository}/resolve/{BASE.revision}/{file.path}": file.path.encode()
            for file in BASE.files
        }
        yield url, behaviour


@pytest.fixture
def run(tmp_path: Path) -> Run:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TALLYSTICK_")}

    def call(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tallystick.cli.main", "model", "metadata", *words],
            env={**environment, "TALLYSTICK_HOME": str(tmp_path / "home"), **variables},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    return call


def test_fetch_and_check(run: Run, hub: tuple[str, Hub], tmp_path: Path) -> None:
    first = run(NAME, "--output", "out", "--endpoint", hub[0], HF_TOKEN="hf_secret")
    assert (first.returncode, first.stderr) == (0, "")
    assert PIN.profile_name in first.stdout
    assert f"{BASE.repository} at {BASE.revision}" in first.stdout
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "base-metadata.json",
        *(file.path for file in BASE.files),
    }
    assert all("authorization" not in headers for headers in hub[1].headers)

    asked = len(hub[1].requests)
    again = run(NAME, "--output", "out", "--json")
    assert again.returncode == 0
    assert json.loads(again.stdout) == json.loads((tmp_path / "out/base-metadata.json").read_text())
    assert len(hub[1].requests) == asked

    (tmp_path / "out" / "config.json").write_text("changed")
    changed = run(NAME, "--output", "out")
    assert (changed.returncode, changed.stdout) == (1, "")
    assert "config.json" in changed.stderr


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("nothing", "--output", "out"), 4, NAME),
        ((NAME,), 2, "--output"),
        ((NAME, "--output", "out", "--endpoint", "http://hub.example.org"), 2, "https"),
        ((NAME, "--output", "full", "--endpoint", "http://127.0.0.1:9"), 4, "not empty"),
    ],
    ids=str,
)
def test_refusals(words: tuple[str, ...], status: int, said: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("kept")

    result = run(*words)

    assert (result.returncode, result.stdout) == (status, "")
    assert said in result.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"full"}
