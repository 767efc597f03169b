"""The settings of a worker: strict, and placed where their file is."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from tallystick.canonical.yaml import parse_yaml
from tallystick.errors import InputError
from tallystick.worker.settings import (
    DEFAULTS,
    MAX_SETTINGS,
    WorkerSettings,
    parse_settings,
    read_settings,
)

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "worker.yaml"
SCHEMA = b"schema: tallystick.worker/v1\n"
FOLDER = Path("/etc/tallystick")


def parsed(text: bytes) -> WorkerSettings:
    return parse_settings(SCHEMA + text, folder=FOLDER)


def test_what_is_left_out_has_its_default() -> None:
    assert parsed(b"") == DEFAULTS


def test_the_example_names_every_setting_with_its_default() -> None:
    folder = EXAMPLE.parent
    quickstart: Any = {"receipts": f"{folder}/../receipts", "bundles": (f"{folder}/../village",)}
    assert read_settings(EXAMPLE) == replace(DEFAULTS, **quickstart)
    document: Any = parse_yaml(EXAMPLE.read_bytes(), max_bytes=MAX_SETTINGS, where="example")
    assert set(document) == {field.name for field in fields(WorkerSettings)}


def test_paths_are_taken_from_the_settings_own_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    found = parsed(
        b"queue: q.sqlite3\nreceipts: ../sets\nspool: /var/spool/runs\nkey: ~/my.key\n"
        b"models: [smollm2, ./toy.gguf, /models/big.gguf]\nbundles: [village, ~/other]\n"
    )
    assert found.bundles == ("/etc/tallystick/village", "/home/somebody/other")
    assert found.queue == "/etc/tallystick/q.sqlite3"
    assert found.receipts == "/etc/tallystick/../sets"
    assert found.spool == "/var/spool/runs"
    assert found.key == "/home/somebody/my.key"
    assert found.models == ("smollm2", "/etc/tallystick/toy.gguf", "/models/big.gguf")


@pytest.mark.parametrize(
    "text",
    [
        b"unknown: 1\n",
        b"threads: 0\n",
        b"threads: many\n",
        b"lease_seconds: 0\n",
        b"run_seconds: 86401\n",
        b"grace_seconds: -1\n",
        b"idle_milliseconds: 9\n",
        b"models: smollm2\n",
        b"queue: 5\n",
        b"key: ~no-such-user-here/key\n",
        b'health: "a\\0b"\n',
        b'models: ["./a\\0b"]\n',
        b'bundles: ["a\\0b"]\n',
        b'receipts: "\\ud800"\n',
        b"lease_seconds: 1.5\n",
        b"lease_seconds: 60\nlease_seconds: 60\n",
    ],
)
def test_what_is_refused(text: bytes) -> None:
    with pytest.raises(InputError):
        parsed(text)


@pytest.mark.parametrize("data", [b"", b"[]\n", b"lease_seconds: 5\n", b"schema: other/v1\n"])
def test_what_are_no_settings(data: bytes) -> None:
    with pytest.raises(InputError):
        parse_settings(data, folder=FOLDER)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_settings(tmp_path / "nothing.yaml")
