"""Notes of what a process was about to do: found exactly when it is gone and has not taken them
back."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tallystick.errors import UnavailableError
from tallystick.store.announced import FOLDER, MAX_NOTE, announce, left
from tests.support.processes import in_processes


def found(parent: Path) -> dict[str, bytes]:
    return {note.name: data for note, data in left(parent)}


def killed(body: Callable[[], object]) -> None:
    child = os.fork()
    if child == 0:
        body()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def test_the_note_of_a_process_that_lives_is_its_own(tmp_path: Path) -> None:
    with announce(tmp_path, "a", b"mine"):
        assert found(tmp_path) == {}
        assert (tmp_path / FOLDER / "a").stat().st_mode & 0o7777 == 0o600
        assert (tmp_path / FOLDER).stat().st_mode & 0o7777 == 0o700
    assert found(tmp_path) == {"a": b"mine"}


def test_the_note_of_a_killed_process_is_found_until_it_is_withdrawn(tmp_path: Path) -> None:
    killed(lambda: announce(tmp_path, "a", b"theirs"))
    assert found(tmp_path) == found(tmp_path) == {"a": b"theirs"}
    for note, _ in left(tmp_path):
        assert found(tmp_path) == {}  # held by us meanwhile
        note.withdraw()
    assert found(tmp_path) == {}
    assert os.listdir(tmp_path / FOLDER) == []


def test_what_was_withdrawn_is_not_found(tmp_path: Path) -> None:
    killed(lambda: announce(tmp_path, "a", b"x").withdraw())
    assert found(tmp_path) == {}


def test_a_half_written_note_is_none_and_goes(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir(mode=0o700)
    (folder / ".a.0011").write_bytes(b"half")
    assert found(tmp_path) == {}
    assert os.listdir(folder) == []


def test_what_is_no_note_has_no_bytes(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir(mode=0o700)
    (folder / "large").write_bytes(bytes(MAX_NOTE + 1))
    (folder / "link").symlink_to("large")
    os.mkfifo(folder / "pipe")
    assert found(tmp_path) == {"large": b"", "pipe": b""}


def test_nowhere(tmp_path: Path) -> None:
    assert found(tmp_path / "nothing") == {}
    (tmp_path / FOLDER).touch()
    with pytest.raises(UnavailableError):
        found(tmp_path)
    with pytest.raises(UnavailableError):
        announce(tmp_path, "a", b"x")


def test_one_name_is_one_note(tmp_path: Path) -> None:
    with announce(tmp_path, "a", b"first"), pytest.raises(UnavailableError):
        announce(tmp_path, "a", b"second")
    assert found(tmp_path) == {"a": b"first"}


def test_each_note_is_found_by_one_of_many(tmp_path: Path) -> None:
    names = [str(number) for number in range(60)]
    for name in names:
        killed(partial(announce, tmp_path, name, name.encode()))

    def take(number: int) -> bytes:
        for note, data in left(tmp_path):
            assert data == note.name.encode()
            (tmp_path / f"{number}-{note.name}").touch()
            note.withdraw()
        return b"through"

    tasks = [lambda number=number: take(number) for number in range(4)]
    assert in_processes(tasks) == [b"through"] * 4
    taken = [path.name.partition("-")[2] for path in tmp_path.glob("*-*")]
    assert sorted(taken) == sorted(names)
