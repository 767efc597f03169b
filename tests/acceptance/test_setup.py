"""``make setup`` says what a fresh machine lacks, before it changes anything."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what setup reads."""
    for name in ("scripts/setup.sh", "requirements/dev.lock", "pyproject.toml", "Makefile"):
        target = tmp_path / "project" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    return tmp_path / "project"


def interpreter(folder: Path, *, lacks: str) -> Path:
    """Return a Python that fails whenever its arguments contain ``lacks``."""
    path = folder / "python-without"
    path.write_text(
        f'#!/bin/sh\ncase "$*" in *{lacks}*) exit 1 ;; esac\nexec "{sys.executable}" "$@"\n'
    )
    path.chmod(0o755)
    return path


def setup(project: Path, python: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": str(python), "VENV": ".venv"}
    return subprocess.run(
        ["sh", "scripts/setup.sh"],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize(
    ("lacks", "message", "remedy"),
    [
        ("version_info", "not a Python of version 3.11", ""),
        ("ensurepip", "virtual environments", "apt-get install python3-venv"),
        pytest.param(
            "libgomp.so.1",
            "shared library libgomp.so.1",
            "apt-get install libgomp1",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux libraries"),
        ),
    ],
)
def test_what_is_missing_is_named_with_its_remedy(
    lacks: str, message: str, remedy: str, project: Path, tmp_path: Path
) -> None:
    result = setup(project, interpreter(tmp_path, lacks=lacks))
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert remedy in result.stderr
    assert not (project / ".venv").exists()


def test_an_installed_environment_is_left_alone(project: Path) -> None:
    """The stamps of a full installation end setup at once: the empty folder is not filled."""
    binaries = project / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "python").symlink_to(sys.executable)
    assignments = "sed -n '/^environment=/,/^project=/p' scripts/setup.sh"
    stamps = subprocess.run(
        ["sh", "-c", f'eval "$({assignments})"; printf "%s\\0%s" "$environment" "$project"'],
        cwd=project,
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name, content in zip(("environment", "project"), stamps.split("\0"), strict=True):
        (project / ".venv" / name).write_text(content)
    result = setup(project, Path(sys.executable))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert not (binaries / "pip").exists()


def test_make_without_a_target_explains_itself() -> None:
    result = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0
    assert "make demo" in result.stdout
    assert "make test" in result.stdout
