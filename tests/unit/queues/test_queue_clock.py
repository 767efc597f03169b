"""The clock of leases: one for all processes, whatever the wall clock and namespaces say."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tallystick.errors import UnavailableError
from tallystick.queues import clock
from tallystick.queues.clock import ALWAYS, Moment, SystemClock

SCRIPT = (
    "import json, time; from tallystick.queues.clock import SystemClock\n"
    "now = SystemClock().now()\n"
    "print(json.dumps([now.boot, now.ms, time.clock_gettime(time.CLOCK_BOOTTIME)]))"
)


def test_it_goes_forward_within_one_boot() -> None:
    readings = [SystemClock().now() for _ in range(100)]
    assert len({reading.boot for reading in readings}) == 1
    assert readings == sorted(readings, key=lambda reading: reading.ms)


def test_the_wall_clock_has_no_say(monkeypatch: pytest.MonkeyPatch) -> None:
    system = SystemClock()
    before = system.now()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    after = SystemClock().now()
    assert system.wall_ms() == 0
    assert (after.boot, 0 <= after.ms - before.ms < 60_000) == (before.boot, True)


@pytest.mark.skipif(sys.platform != "linux", reason="time namespaces are Linux's")
def test_a_time_namespace_does_not_move_it() -> None:
    shifted = [
        "unshare",
        "--time",
        "--fork",
        "--boottime",
        "100000",
        sys.executable,
        "-c",
        SCRIPT,
    ]
    result = subprocess.run(shifted, capture_output=True, text=True, check=False)
    if result.returncode != 0 and "unshare" in result.stderr:
        pytest.skip(f"no time namespace can be made here: {result.stderr.strip()}")
    boot, ms, seen = json.loads(result.stdout)
    here = SystemClock().now()
    assert seen > time.clock_gettime(time.CLOCK_BOOTTIME) + 90_000, "the namespace is shifted"
    assert boot == here.boot
    assert 0 <= here.ms - ms < 60_000


def test_without_a_boot_id_there_is_no_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "_BOOT_ID", tmp_path / "missing")
    monkeypatch.setattr(clock, "_SESSION", ("false",))
    with pytest.raises(UnavailableError, match="which boot this is"):
        SystemClock()


def test_a_kernel_without_time_namespaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = SystemClock().now()
    monkeypatch.setattr(clock, "_OFFSETS", tmp_path / "missing")
    assert 0 <= SystemClock().now().ms - before.ms < 60_000


def test_moments() -> None:
    noon = Moment("a", 1000)
    assert noon.after(0.0001) == Moment("a", 1001)
    assert noon.after(2) == Moment("a", 3000)
    assert noon.reached(Moment("a", 1000))
    assert not noon.reached(Moment("a", 999))
    assert noon.reached(Moment("b", 0))
    assert ALWAYS.reached(Moment("a", 0))
