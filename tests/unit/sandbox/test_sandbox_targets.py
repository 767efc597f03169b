"""The folder that the probes reach for, and those that killed supervisors have left."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallystick.sandbox import targets

PREFIX = "tallystick-probe-"


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short path: a socket's has little room."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setattr(targets, "_place", lambda: str(folder))
    yield folder
    shutil.rmtree(folder)


def make(place: Path, name: str, age: float) -> Path:
    folder = place / f"{PREFIX}{name}"
    folder.mkdir()
    (folder / "file").write_text("outside")
    os.utime(folder, (time.time() - age,) * 2)
    return folder


def test_what_a_killed_supervisor_left_is_swept(place: Path) -> None:
    left, new, held = make(place, "left", 7200), make(place, "new", 0), make(place, "held", 7200)
    link = place / f"{PREFIX}link"
    other = place / "other"
    other.mkdir()
    link.symlink_to(other)
    os.utime(link, (0, 0), follow_symlinks=False)
    lock = os.open(held, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with targets.targets() as made:
            assert not left.exists()
            assert all(path.exists() for path in (new, held, link, other, Path(made.folder)))
    finally:
        os.close(lock)
    assert {*place.iterdir()} == {new, held, link, other}


def test_a_folder_in_use_is_never_swept(place: Path) -> None:
    with targets.targets() as one:
        os.utime(one.folder, (0, 0))
        with targets.targets() as two:
            assert Path(one.folder).exists()
            assert one.folder != two.folder
    assert not any(place.iterdir())


def refused(*_: object) -> None:
    raise OSError(errno.ENOLCK, "no locks available")


def test_a_place_that_cannot_be_locked_is_used_all_the_same(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = make(place, "left", 7200)
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", refused)
        with targets.targets() as made:
            assert Path(made.folder).exists()
    assert {*place.iterdir()} == {left}  # nobody knows whether it is still held


def test_so_is_one_that_cannot_be_listed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", refused)
        with targets.targets() as made:
            folder = Path(made.folder)
            assert folder.exists()
            patched.undo()
    assert not folder.exists()
