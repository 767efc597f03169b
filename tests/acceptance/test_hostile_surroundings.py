"""What surrounds a call must not change its verdict: variables, closed streams, odd paths."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tallystick.contracts.layout import MARKER, MEMBERS, kind_of
from tests.support.sets import SIGNER, make_ordinary

PUBLIC = {MARKER, *(kind for kind in MEMBERS if kind.visibility == "public")}
PROGRAM = (sys.executable, "-m", "tallystick")


@pytest.fixture
def tampered(tmp_path: Path) -> tuple[Path, Path]:
    """A set with one edited byte, and the key that signed it."""
    folder = tmp_path / "set"
    folder.mkdir(mode=0o700)
    for name, data in make_ordinary().files().items():
        path = folder / name
        edited = data.replace(b'"seq":1,', b'"seq":2,', 1)
        path.write_bytes(edited if name.endswith(".telemetry.jsonl") else data)
        path.chmod(0o644 if kind_of(name[32:]) in PUBLIC else 0o600)
    key = tmp_path / "signer.pem"
    key.write_text(SIGNER.public.pem(), encoding="ascii")
    return folder, key


def call(*words: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(env or {})},
    )


@pytest.mark.parametrize(
    "variables",
    [
        {"TALLYSTICK_VERSION": "1"},
        {"TALLYSTICK_VERSION": "v1.2.3"},
        {"TALLYSTICK_HELP": "1"},
        {"_TALLYSTICK_COMPLETE": "bash_source"},
        {"_TALLYSTICK_COMPLETE": "bash_complete"},
    ],
)
def test_no_variable_takes_the_place_of_a_verdict(
    variables: dict[str, str], tampered: tuple[Path, Path]
) -> None:
    folder, key = tampered
    done = call("verify", folder, "--key", key, env=variables)
    assert done.returncode == 1
    assert "FAILED" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", [0, 2])
def test_a_closed_stream_changes_no_verdict(closed: int, tampered: tuple[Path, Path]) -> None:
    folder, key = tampered
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}>&-', "sh", *PROGRAM, "verify", folder, "--key", key],
        stdout=subprocess.PIPE,
        check=False,
    )
    assert done.returncode == 1


def test_a_closed_standard_output_is_an_unavailable_one(tampered: tuple[Path, Path]) -> None:
    folder, key = tampered
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *PROGRAM, "verify", folder, "--key", key],
        stderr=subprocess.PIPE,
        check=False,
    )
    assert done.returncode == 6
    assert b"internal error" not in done.stderr


def test_a_path_of_an_unknown_user_is_bad_input(tmp_path: Path) -> None:
    done = call(
        "model", "check", "~nosuchuser/x.gguf", env={"TALLYSTICK_HOME": str(tmp_path / "h")}
    )
    assert done.returncode == 4
    done = call("model", "ls", env={"TALLYSTICK_HOME": "~nosuchuser/x"})
    assert done.returncode == 4
    assert "user that does not exist" in done.stderr


@pytest.mark.parametrize("now", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_time_at_the_ends_of_the_calendar_is_a_usage_error(
    now: str, tampered: tuple[Path, Path]
) -> None:
    folder, key = tampered
    assert call("verify", folder, "--key", key, "--now", now).returncode == 2
