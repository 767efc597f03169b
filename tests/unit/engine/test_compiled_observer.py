"""The compiled observer is a convenience: what hinders it is no error."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tallystick.engine import compiled


def test_it_is_built_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TALLYSTICK_OBSERVER", raising=False)
    path = compiled.ensure_observer(tmp_path)
    if path is None:
        pytest.skip("there is no C compiler")
    monkeypatch.setattr(compiled, "_build", lambda *_: pytest.fail("it was built again"))
    assert compiled.ensure_observer(tmp_path) == path


def test_a_cache_that_is_a_file_means_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TALLYSTICK_OBSERVER", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _name: "/usr/bin/cc")
    cache = tmp_path / "cache"
    cache.write_bytes(b"")
    assert compiled.ensure_observer(cache) is None


def test_a_disk_that_is_full_means_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.delenv("TALLYSTICK_OBSERVER", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _name: "/usr/bin/cc")
    monkeypatch.setattr(compiled, "_build", full)
    assert compiled.ensure_observer(tmp_path / "cache") is None
