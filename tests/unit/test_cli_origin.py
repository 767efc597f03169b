"""Trust, keys, network and time that an environment variable gave are named in the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tallystick.attest.keyfiles import ensure_public_key, public_key_path
from tallystick.cli.main import main
from tests.support.sets import SIGNER, make_set


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TALLYSTICK_HOME", str(tmp_path / "home"))
    directory = tmp_path / "set"
    directory.mkdir()
    for name, data in make_set().files().items():
        (directory / name).write_bytes(data)
        (directory / name).chmod(0o600)
    ensure_public_key(tmp_path / "key", SIGNER.public)
    return tmp_path


def test_a_report_names_the_variable(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["verify", str(place / "set")]
    key = str(public_key_path(place / "key"))
    main([*words, "--key", key])
    assert "TALLYSTICK" not in capsys.readouterr().out
    main([*words, "--key", key, "--json"])
    assert "from_environment" not in json.loads(capsys.readouterr().out)
    monkeypatch.setenv("TALLYSTICK_VERIFY_KEY", key)
    main(words)
    assert capsys.readouterr().out.startswith("trust from TALLYSTICK_VERIFY_KEY\n")
    monkeypatch.setenv("TALLYSTICK_VERIFY_NOW", "2026-11-30T12:00:00Z")
    main([*words, "--json"])
    assert json.loads(capsys.readouterr().out)["from_environment"] == {
        "TALLYSTICK_VERIFY_KEY": "trust",
        "TALLYSTICK_VERIFY_NOW": "the time",
    }


def test_so_does_a_match(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TALLYSTICK_MATCH_KEY", str(public_key_path(place / "key")))
    main(["match", str(place / "set"), str(place / "set")])
    assert capsys.readouterr().out.startswith("trust from TALLYSTICK_MATCH_KEY\n")
