"""What a worker tells those who watch it: datagrams to a real socket, and the health file."""

from __future__ import annotations

import os
import socket
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallystick.errors import UnavailableError
from tallystick.worker import reporting
from tallystick.worker.notify import Notifier
from tallystick.worker.reporting import Reporter

PID = 4711


class Manager:
    """A service manager's socket."""

    def __init__(self, address: str | bytes) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.settimeout(10)

    def heard(self) -> list[str]:
        """Return what has arrived."""
        found = []
        self._socket.setblocking(False)
        try:
            while True:
                found.append(self._socket.recv(4096).decode())
        except BlockingIOError:
            return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(str(tmp_path / "notify"))
    yield made
    made.close()


def notifier(tmp_path: Path, **variables: str) -> Notifier:
    made = Notifier.of({"NOTIFY_SOCKET": str(tmp_path / "notify"), **variables}, PID)
    assert made is not None
    return made


def test_each_word_is_a_datagram(tmp_path: Path, manager: Manager) -> None:
    speaker = notifier(tmp_path)
    speaker.ready()
    speaker.alive()
    speaker.status("two\nlines " + "x" * 500)
    speaker.stopping()
    ready, alive, status, stopping = manager.heard()
    assert (ready, alive, stopping) == ("READY=1", "WATCHDOG=1", "STOPPING=1")
    assert status.startswith("STATUS=two lines x")
    assert len(status) < 300


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has abstract names")
def test_an_abstract_name() -> None:
    name = f"tallystick-test-{os.getpid()}"
    manager = Manager(b"\0" + name.encode())
    speaker = Notifier.of({"NOTIFY_SOCKET": "@" + name}, PID)
    assert speaker is not None
    speaker.ready()
    assert manager.heard() == ["READY=1"]
    manager.close()


@pytest.mark.parametrize("address", ["", "/", "@", "relative", "vsock:2:1234"])
def test_no_manager(address: str) -> None:
    assert Notifier.of({"NOTIFY_SOCKET": address}, PID) is None
    assert Notifier.of({}, PID) is None


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "3000000"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(PID)}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog(tmp_path: Path, variables: dict[str, str], seconds: float | None) -> None:
    assert notifier(tmp_path, **variables).watchdog_seconds == seconds


def test_a_manager_that_is_gone_or_full_holds_nothing_up(tmp_path: Path) -> None:
    speaker = notifier(tmp_path)
    speaker.ready()
    manager = Manager(str(tmp_path / "notify"))
    for _ in range(3000):
        speaker.alive()
    assert 0 < len(manager.heard()) < 3000
    manager.close()


def test_the_watchdog_is_told_in_time_and_not_all_the_time(
    tmp_path: Path, manager: Manager
) -> None:
    reporter = Reporter("me", None, notifier(tmp_path, WATCHDOG_USEC="600000"))
    for _ in range(25):
        reporter.tick()
        time.sleep(0.02)
    alive = manager.heard()
    assert set(alive) == {"WATCHDOG=1"}
    assert 2 <= len(alive) < 10


def test_a_worker_s_life_as_its_manager_hears_it(tmp_path: Path, manager: Manager) -> None:
    reporter = Reporter("me", None, notifier(tmp_path))
    reporter.tick()  # before it begins there is nothing to tell
    reporter.begin()
    for what in ("idle", "sha256:00", "sha256:00", "idle"):
        reporter.doing(what)
    reporter.end()
    assert manager.heard() == ["READY=1", "STATUS=sha256:00", "STATUS=idle", "STOPPING=1"]


def test_the_health_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    health = tmp_path / "health"
    reporter = Reporter("host:1:00", health, None)
    reporter.tick()
    assert not health.exists()
    reporter.begin()
    seconds, worker_id, doing = health.read_text().split()
    assert abs(int(seconds) - time.time()) < 60
    assert (worker_id, doing) == ("host:1:00", "idle")
    assert stat.S_IMODE(health.stat().st_mode) & 0o400
    reporter.doing("sha256:00")
    assert health.read_text().split()[2] == "sha256:00"
    first = health.stat().st_ino
    reporter.tick()
    assert health.stat().st_ino == first
    monkeypatch.setattr(reporting, "_HEALTH_SECONDS", 0.0)
    reporter.tick()
    assert health.stat().st_ino != first
    assert list(tmp_path.iterdir()) == [health]
    reporter.end()
    assert list(tmp_path.iterdir()) == []
    reporter.tick()
    assert list(tmp_path.iterdir()) == []


def test_a_health_file_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnavailableError, match="health file"):
        Reporter("me", tmp_path / "nowhere" / "health", None).begin()
    monkeypatch.setattr(reporting, "_HEALTH_SECONDS", 0.0)
    folder = tmp_path / "folder"
    folder.mkdir()
    reporter = Reporter("me", folder / "health", None)
    reporter.begin()
    (folder / "health").unlink()
    folder.rmdir()
    reporter.tick()  # later it is no reason to leave a run undone
    reporter.doing("sha256:00")
    reporter.end()
