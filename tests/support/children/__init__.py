"""Tiny child programs, and a way to start them: children do not see this folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import tallystick

SERVED = "tests.support.children.served"
RAW = "tests.support.children.raw"
_ROOT = Path(__file__).resolve().parents[3]
_SOURCE = str(Path(tallystick.__file__).resolve().parents[1])
_LAUNCHER = """\
#!{python} -I
# Called as an interpreter would be: -P -X utf8 -m PROGRAM DESCRIPTOR
import runpy
import sys
sys.path[:0] = {paths!r}
at = sys.argv.index("-m")
assert sys.argv[at - 3 : at] == ["-P", "-X", "utf8"], sys.argv
program = sys.argv[at + 1]
del sys.argv[1 : at + 2]
runpy.run_module(program, run_name="__main__", alter_sys=False)
"""


def use_test_children(
    monkeypatch: pytest.MonkeyPatch, folder: Path, python: Path | None = None
) -> None:
    """Let children be started by a launcher that finds the programs of this folder.

    With ``python`` they run in that interpreter, which has to be of our version.
    """
    launcher = folder / "launcher"
    paths = [str(_ROOT), _SOURCE]
    if python is not None:
        paths += [path for path in sys.path if path.endswith(("src", "site-packages"))]
    launcher.write_text(
        _LAUNCHER.format(python=python or sys.executable, paths=paths), encoding="utf-8"
    )
    launcher.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(launcher))
