"""The tickets of a job appear all together, or no trace of them is left."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tallystick.errors import UnavailableError
from tallystick.store import files
from tallystick.store.artifacts import prepare
from tallystick.worker import order
from tallystick.worker.order import write_tickets
from tests.support.small_disk import small_disk

TICKETS = (b"the first, with the prompt", b"the second")


def test_all_tickets_are_written_and_private(tmp_path: Path) -> None:
    with prepare(tmp_path / "job") as place:
        paths = write_tickets(place, TICKETS)
    assert [path.name for path in paths] == ["slot-0.ticket", "slot-1.ticket"]
    assert tuple(path.read_bytes() for path in paths) == TICKETS
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o600}


@pytest.mark.parametrize("at", ["before the second", "after the second"])
@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_a_failure_leaves_no_ticket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException, at: str
) -> None:
    def write(directory: int, name: str, *rest: Any) -> None:
        if name == "slot-1.ticket" and at == "before the second":
            raise failure
        files.write_new(directory, name, *rest)
        if name == "slot-1.ticket":
            raise failure

    monkeypatch.setattr(order, "write_new", write)
    expected = UnavailableError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected), prepare(tmp_path / "job") as place:
        write_tickets(place, TICKETS)
    assert os.listdir(tmp_path) == []


def test_a_full_disk_leaves_no_ticket(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=512k,mode=0700") as disk:
        with pytest.raises(UnavailableError), prepare(disk / "job") as place:
            write_tickets(place, (b"x" * 300_000, b"y" * 300_000))
        assert os.listdir(disk) == []


def test_what_somebody_else_put_there_is_left_alone(tmp_path: Path) -> None:
    with prepare(tmp_path / "job") as place:
        other = place.directory / "slot-1.ticket"
        other.write_bytes(b"theirs")
        with pytest.raises(UnavailableError, match="something else"):
            write_tickets(place, TICKETS)
    assert [path.name for path in other.parent.iterdir()] == ["slot-1.ticket"]
    assert other.read_bytes() == b"theirs"
