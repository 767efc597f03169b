"""``tallystick worker`` as a user and a service manager meet it; no run is executed here."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from configparser import ConfigParser
from pathlib import Path

import pytest

from tallystick.contracts.codec import encode_bytes
from tallystick.worker.settings import DEFAULTS
from tests.support.runs import EngineHome
from tests.support.workers import plain_run

UNIT = Path(__file__).resolve().parents[2] / "examples" / "tallystick-worker.service"
SCHEMA = "schema: tallystick.worker/v1\n"
PATIENCE = 60.0


@pytest.fixture
def home(tmp_path: Path) -> EngineHome:
    path = tmp_path / "home"
    path.mkdir(mode=0o700)
    return EngineHome(path)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def config(folder: Path, text: str = "") -> Path:
    file = folder / "worker.yaml"
    file.write_text(SCHEMA + text)
    return file


def test_an_empty_queue_ends_once(home: EngineHome) -> None:
    done = home.cli("worker", "--once")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "0 runs\n")


@pytest.mark.parametrize("text", ["threads: none\n", "queues: q\n", "models: smollm2\n"])
def test_bad_settings(home: EngineHome, tmp_path: Path, text: str) -> None:
    done = home.cli("worker", "--config", config(tmp_path, text), "--once", "--json")
    assert (done.returncode, done.stdout) == (4, "")
    assert json.loads(done.stderr)["error"]["type"] == "InputError"
    assert list(home.path.iterdir()) == []


def test_a_queue_that_cannot_be_used(home: EngineHome, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    done = home.cli("worker", "--config", config(tmp_path, "queue: open/queue.sqlite3\n"), "--once")
    assert done.returncode == 6


def test_a_run_of_no_model_of_ours(home: EngineHome, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(encode_bytes(plain_run()))
    assert home.cli("submit", tmp_path / "run.json").returncode == 0
    done = home.cli("worker", "--once", "--json")
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert document["outcome"] == "released"  # another worker may have it
    assert "does not have the run's model" in document["reason"]
    assert (document["receipt_digest"], document["place"]) == (None, None)
    shown = json.loads(home.cli("runs", "show", document["job_id"], "--json").stdout)
    assert (shown["state"], shown["attempts"]) == ("pending", 0)
    assert shown["reason"] == document["reason"]
    assert plain_run().prompt not in done.stdout + done.stderr
    assert document["memory"] is None
    assert type(document["kept"]) is int
    assert document["kept"] >= 0


def test_a_view_is_for_people_and_json_for_programs(home: EngineHome) -> None:
    done = home.cli("worker", "--once", "--watch", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert json.loads(done.stderr)["error"]["type"] == "UsageError"


def test_a_watched_worker_with_an_empty_queue(home: EngineHome) -> None:
    done = home.cli("worker", "--once", "--watch")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "0 runs\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_what_a_service_manager_hears(
    home: EngineHome, tmp_path: Path, number: signal.Signals
) -> None:
    health = tmp_path / "health"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE)
        variables = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "900000"}
        worker = home.start(
            *("worker", "--config", config(tmp_path, "health: health\n")),
            variables=variables,
            # What started the tests may have had it ignored.
            preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
        )
        heard: list[str] = []
        while not {"READY=1", "WATCHDOG=1"} <= {*heard}:
            heard.append(manager.recv(4096).decode())
        until(health.exists)
        assert health.read_text().split()[2] == "idle"
        worker.send_signal(number)
        out, err = worker.communicate(timeout=PATIENCE)
        while heard[-1] != "STOPPING=1":
            heard.append(manager.recv(4096).decode())
    assert (worker.returncode, out, err) == (0, b"", b"0 runs\n")
    assert not health.exists()


def test_the_unit_fits_the_worker() -> None:
    unit = ConfigParser(interpolation=None)
    # Directives of systemd are case-sensitive; this is the library's documented way to keep case.
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(UNIT.read_text())
    service = unit["Service"]
    assert (service["Type"], service["KillMode"]) == ("notify", "mixed")
    assert service["OOMPolicy"] == "continue"
    assert int(service["TimeoutStopSec"]) > DEFAULTS.grace_seconds
    assert " worker --config " in service["ExecStart"]


def test_the_unit_is_one_for_systemd(tmp_path: Path) -> None:
    checker = shutil.which("systemd-analyze")
    if checker is None:
        pytest.skip("systemd-analyze is not installed")
    text = UNIT.read_text().replace("/opt/tallystick/bin/tallystick", "/bin/true")
    (tmp_path / UNIT.name).write_text(text.replace("User=tallystick\n", "User=root\n"))
    done = subprocess.run(
        [checker, "verify", "--man=no", tmp_path / UNIT.name],
        check=False,
        capture_output=True,
        text=True,
    )
    assert UNIT.name not in done.stderr, done.stderr
