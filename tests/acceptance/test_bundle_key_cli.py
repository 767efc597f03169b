"""Handing one bundle's key to one auditor, as the holder of the audit key types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sets import AUDIT_KEY, make_set
from tests.support.written import write_set


def tallystick(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tallystick", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def audit_key(tmp_path: Path) -> Path:
    path = tmp_path / "audit.key"
    path.touch(mode=0o600)
    path.write_bytes(AUDIT_KEY.raw)
    return path


def test_a_handed_out_key_opens_its_bundle_and_no_other(tmp_path: Path, audit_key: Path) -> None:
    one, other = make_set(), make_set(label="another run")
    places = [
        write_set(tmp_path / name, built.members, built.marker)
        for name, built in (("one", one), ("other", other))
    ]
    key = tmp_path / "bundle.key"
    made = tallystick("keys", "bundle", places[0], "--audit-key-file", audit_key, "--output", key)
    assert made.returncode == 0, made.stderr
    assert key.stat().st_mode & 0o777 == 0o600
    assert len(key.read_bytes()) == 32
    assert one.receipt_id in made.stderr
    assert made.stdout == ""
    opened = tallystick("verify", places[0], "--bundle-key-file", key)
    assert opened.returncode == 0, opened.stdout
    assert "status=local_restored trust_scope=embedded_local_snapshot" in opened.stdout
    refused = tallystick("verify", places[1], "--bundle-key-file", key)
    assert refused.returncode == 1
    assert "sealed with another key" in refused.stdout


def test_json_names_the_set_and_the_file_and_never_the_key(tmp_path: Path, audit_key: Path) -> None:
    built = make_set()
    place = write_set(tmp_path / "set", built.members, built.marker)
    key = tmp_path / "bundle.key"
    made = tallystick(
        "keys", "bundle", place, "--audit-key-file", audit_key, "--output", key, "--json"
    )
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout) == {
        "receipt_id": built.receipt_id,
        "bundle_key_file": str(key),
    }
    assert key.read_bytes().hex() not in made.stdout + made.stderr


def test_nothing_is_handed_out_with_the_wrong_key_or_over_a_file(
    tmp_path: Path, audit_key: Path
) -> None:
    built = make_set()
    place = write_set(tmp_path / "set", built.members, built.marker)
    wrong = tmp_path / "wrong.key"
    wrong.touch(mode=0o600)
    wrong.write_bytes(bytes(range(32)))
    key = tmp_path / "bundle.key"
    done = tallystick("keys", "bundle", place, "--audit-key-file", wrong, "--output", key)
    assert done.returncode == 1
    assert not key.exists()
    key.write_text("mine")
    done = tallystick("keys", "bundle", place, "--audit-key-file", audit_key, "--output", key)
    assert done.returncode == 4
    assert key.read_text() == "mine"


def test_an_audit_key_in_the_set_is_refused(tmp_path: Path, audit_key: Path) -> None:
    built = make_set()
    place = write_set(tmp_path / "set", built.members, built.marker)
    inside, key = place / "a.key", tmp_path / "bundle.key"
    inside.touch(mode=0o600)
    inside.write_bytes(audit_key.read_bytes())
    for path in (place, place / f"{built.receipt_id}.complete"):
        done = tallystick("keys", "bundle", path, "--audit-key-file", inside, "--output", key)
        assert done.returncode == 4
        assert not key.exists()
