"""What the demo says when the process that verifies does not."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from tallystick.attest.keyfiles import public_key_path, write_key
from tallystick.attest.keys import SigningKey
from tallystick.cli.demo import _program, _verify
from tallystick.errors import EvidenceError, InputError
from tests.support.sets import make_set
from tests.support.written import write_set


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "stranger.key"
    write_key(path, SigningKey.generate(), None)
    return public_key_path(path)


def test_the_reason_of_the_second_process_is_passed_on(tmp_path: Path, key: Path) -> None:
    with pytest.raises(InputError) as caught:
        _verify(tmp_path / "none", key)
    assert "exit code 4" in str(caught.value.found)
    assert "nothing to verify" in str(caught.value.found)


def test_so_is_a_missing_key_file(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        _verify(tmp_path, tmp_path / "moved.pub.pem")
    assert "the public key file cannot be read" in str(caught.value.found)
    assert "`tallystick keys show`" in str(caught.value.found)


def test_and_a_failed_step(tmp_path: Path, key: Path) -> None:
    built = make_set()
    place = write_set(tmp_path / "set", built.members, built.marker)
    with pytest.raises(EvidenceError) as caught:
        _verify(place, key)
    assert "exit code 1" in str(caught.value.found)
    assert "FAILED" in str(caught.value.found)


def test_the_demo_names_a_program_that_the_user_can_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "an environment" / "tallystick"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program.with_name("python")))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shlex.split(_program()) == [str(program)]
    monkeypatch.setenv("PATH", str(program.parent))
    assert _program() == "tallystick"
