"""A run in a sandbox, verified and replayed, as a user types it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.runs import EngineHome

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")


@pytest.mark.parametrize("level", ["process", "full"])
def test_a_sandboxed_run_gives_the_same_answer_and_its_audit_verifies(
    engine_home: EngineHome, endless_model: Callable[[str], Path], tmp_path: Path, level: str
) -> None:
    model = endless_model("llama-q8_0")
    plain = engine_home.cli("run", "--model", model, "-n", "3", "--json", "A tally")
    assert plain.returncode == 0, plain.stderr
    place = tmp_path / "set"
    done = engine_home.cli(
        "run", "--model", model, "-n", "3", "--json", "--sandbox", level, "--output-dir", place,
        "A tally",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["output_base64"] == json.loads(plain.stdout)["output_base64"]
    key = engine_home.path / "keys" / "default.pub.pem"
    verified = engine_home.cli("verify", place, "--key", key)
    assert verified.returncode == 0, verified.stdout
    assert f"32 egress probes at level {level}" in verified.stdout
    assert engine_home.cli("replay", place, "--model", model).returncode == 0


def test_an_unknown_profile_is_a_bad_input(engine_home: EngineHome) -> None:
    done = engine_home.cli("run", "--model", "nothing", "--sandbox", "airtight", "x")
    assert done.returncode == 4
