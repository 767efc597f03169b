"""The import contracts hold, and would notice a violation."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"


def lint(source: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command; lint_imports_command()",
            "--no-logo",
            "--no-cache",
            str(ROOT / "pyproject.toml"),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
    )


def test_the_contracts_hold(tmp_path: Path) -> None:
    result = lint(SOURCE, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("canonical/json.py", "import tallystick.store"),
        ("engine/port.py", "import tallystick.evidence.state_tree"),
        ("contracts/codec.py", "import numpy"),
        ("attest/dsse.py", "import subprocess"),
        ("newcomer/__init__.py", "import json"),
    ],
)
def test_a_violation_is_noticed(module: str, statement: str, tmp_path: Path) -> None:
    source = tmp_path / "src"
    shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
    file = source / "tallystick" / module
    file.parent.mkdir(exist_ok=True)
    with file.open("a", encoding="utf-8") as stream:
        stream.write(f"\n{statement}\n")
    result = lint(source, tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "BROKEN" in result.stdout
