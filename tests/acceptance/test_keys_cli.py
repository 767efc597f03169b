"""``tallystick keys`` as a user meets it."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tallystick.attest.keyfiles import read_key, read_public_key

Keys = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def keys(home: Path) -> Keys:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TALLYSTICK_")}

    def run(*words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tallystick.cli.main", "keys", *map(str, words)],
            env={**environment, "TALLYSTICK_HOME": str(home), **variables},
            cwd=home.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def no_secret(path: Path, *results: subprocess.CompletedProcess[str]) -> None:
    """Check that nothing printed holds the (clear) secret of the key file ``path``."""
    seed = json.loads(path.read_bytes())["seed"]
    for result in results:
        printed = result.stdout + result.stderr
        assert seed not in printed
        assert base64.b64decode(seed).hex() not in printed


def test_new_then_show(keys: Keys, home: Path) -> None:
    made = keys("new")
    shown = keys("show")
    as_json = keys("show", "--json")
    assert made.returncode == shown.returncode == as_json.returncode == 0
    assert made.stdout == shown.stdout
    assert "keep it private" in made.stderr
    assert shown.stderr == as_json.stderr == ""
    value = json.loads(as_json.stdout)
    public_file = home / "keys" / "default.pub.pem"
    key = read_public_key(public_file)
    assert value == {
        "key_id": key.key_id,
        "public_key": key.raw.hex(),
        "algorithm": "ed25519",
        "public_key_file": str(public_file),
        "encrypted": False,
    }
    lines = dict(line.split(maxsplit=1) for line in shown.stdout.splitlines())
    assert lines == {**value, "encrypted": "no"}
    no_secret(home / "keys" / "default.key", made, shown, as_json)


def test_no_key_is_overwritten(keys: Keys, home: Path) -> None:
    assert keys("new").returncode == 0
    before = (home / "keys" / "default.key").read_bytes()
    again = keys("new")
    assert again.returncode == 4
    assert again.stdout == ""
    assert "never overwritten" in again.stderr
    assert (home / "keys" / "default.key").read_bytes() == before
    assert keys("new", "mine.key").returncode == 0
    error = keys("new", "mine.key", "--json")
    assert error.returncode == 4
    assert json.loads(error.stderr)["error"]["exit_code"] == 4


def test_a_key_at_a_path(keys: Keys, home: Path) -> None:
    result = keys("new", "place/worker.key", "--json")
    assert result.returncode == 0
    value = json.loads(result.stdout)
    path = home.parent / "place" / "worker.key"
    assert value["public_key_file"] == "place/worker.pub.pem"
    assert json.loads(keys("show", path, "--json").stdout)["key_id"] == value["key_id"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert not home.exists()
    no_secret(path, result)


def test_an_encrypted_key(keys: Keys, home: Path) -> None:
    (home.parent / "words").write_bytes("pässphrase\r\n".encode())
    result = keys("new", "--passphrase-file", "words", "--json")
    assert result.returncode == 0
    assert json.loads(result.stdout)["encrypted"] is True
    assert "encrypted        yes" in keys("show").stdout
    key = read_key(home / "keys" / "default.key", "pässphrase".encode)
    assert key.public.key_id == json.loads(result.stdout)["key_id"]


@pytest.mark.parametrize("content", [b"", b"\n", b"two\nlines\n", b"x" * 1025])
def test_a_bad_passphrase_file_makes_no_key(keys: Keys, home: Path, content: bytes) -> None:
    (home.parent / "words").write_bytes(content)
    result = keys("new", "--passphrase-file", "words")
    assert result.returncode == 4
    assert "one passphrase" in result.stderr
    assert not home.exists()


def test_contradicting_options(keys: Keys, home: Path) -> None:
    result = keys("new", "--passphrase-prompt", "--passphrase-file", "words")
    assert result.returncode == 2
    assert "not both" in result.stderr
    assert not home.exists()


def test_an_option_from_the_environment(keys: Keys, home: Path) -> None:
    (home.parent / "words").write_bytes(b"passphrase\n")
    result = keys("new", "--json", TALLYSTICK_KEYS_NEW_PASSPHRASE_FILE="words")
    assert json.loads(result.stdout)["encrypted"] is True


def test_show_without_a_key_says_what_to_do(keys: Keys, home: Path) -> None:
    result = keys("show")
    assert result.returncode == 4
    assert "tallystick keys new" in result.stderr
    assert not home.exists()


def test_show_writes_a_lost_public_key_file(keys: Keys, home: Path) -> None:
    keys("new")
    public_file = home / "keys" / "default.pub.pem"
    before = public_file.read_bytes()
    public_file.unlink()
    assert keys("show").returncode == 0
    assert public_file.read_bytes() == before


def test_show_refuses_a_loose_key(keys: Keys, home: Path) -> None:
    keys("new")
    path = home / "keys" / "default.key"
    path.chmod(0o644)
    result = keys("show")
    assert result.returncode == 4
    assert "open to other users" in result.stderr
    no_secret(path, result)


def test_show_refuses_a_public_key(keys: Keys, home: Path) -> None:
    keys("new")
    assert keys("show", home / "keys" / "default.pub.pem").returncode == 4
