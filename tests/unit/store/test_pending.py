"""Pending directories: swept exactly when the process that made them is gone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tallystick.errors import UnavailableError
from tallystick.store.artifacts import prepare_under, remove_set
from tallystick.store.pending import sweep
from tests.support.processes import in_processes


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def killed_while_it_writes(receipts: Path) -> None:
    """Let a process claim a place, and be killed there."""
    child = os.fork()
    if child == 0:
        place = prepare_under(receipts)
        (place.directory / ".state-0").mkdir()
        (place.directory / ".state-0" / "db").write_bytes(b"half")
        (place.directory / "member").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def test_what_is_in_use_stays(tmp_path: Path) -> None:
    receipts = tmp_path / "receipts"
    with prepare_under(receipts) as place:
        assert sweep(receipts) == 0
        assert names(receipts) == [place.directory.name]
    assert names(tmp_path) == []


def test_what_a_killed_process_left_goes(tmp_path: Path) -> None:
    receipts = tmp_path / "receipts"
    killed_while_it_writes(receipts)
    killed_while_it_writes(receipts)
    with prepare_under(receipts) as place:
        assert len(names(receipts)) == 3
        assert sweep(receipts) == 2
        assert names(receipts) == [place.directory.name]
        assert sweep(receipts) == 0


def test_nothing_else_is_touched(tmp_path: Path) -> None:
    others = [".pending-short", f".pending-{'0' * 16}", "ab" * 16, f".pending-{'g' * 16}"]
    for name in (others[0], *others[2:]):
        (tmp_path / name).mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / others[1]).symlink_to("elsewhere")
    before = names(tmp_path)
    assert sweep(tmp_path) == 0
    assert names(tmp_path) == before


def test_nowhere(tmp_path: Path) -> None:
    assert sweep(tmp_path / "nothing") == 0
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError):
        sweep(tmp_path / "file")


def test_makers_and_sweepers_do_not_disturb_each_other(tmp_path: Path) -> None:
    receipts = tmp_path / "receipts"

    def make() -> bytes:
        for _ in range(150):
            with prepare_under(receipts) as place:
                (place.directory / "file").touch()
                (place.directory / "file").unlink()
        return b"made"

    def clean() -> bytes:
        return str(sum(sweep(receipts) for _ in range(400))).encode()

    receipts.mkdir(mode=0o700)
    tasks: list[Callable[[], bytes]] = [make, make, clean, clean]
    assert in_processes(tasks) == [b"made", b"made", b"0", b"0"]
    assert names(receipts) == []


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    for _ in range(5):
        with prepare_under(tmp_path / "receipts"):
            pass
        sweep(tmp_path / "receipts")
    assert len(os.listdir("/dev/fd")) == before


def test_a_set_that_shall_not_count_is_removed(tmp_path: Path) -> None:
    directory = tmp_path / "set"
    directory.mkdir()
    for name in ("a.json", "a.complete"):
        (directory / name).touch()
    remove_set(directory, "a.complete")
    assert names(tmp_path) == []
    with pytest.raises(UnavailableError):
        remove_set(directory, "a.complete")
