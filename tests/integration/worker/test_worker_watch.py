"""``worker --watch`` on a real terminal, on one that takes nothing, and on none."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tallystick.cli.queueing import short
from tallystick.queues.port import JobState
from tallystick.queues.sqlite.adapter import open_queue
from tallystick.worker.order import declare_run
from tallystick.worker.request import RunOptions
from tests.support.runs import EngineHome, children_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="tried on Linux terminals")

PROMPT = "A tally stick is split in two."
TOKENS = 400
PATIENCE = 120.0
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(scope="module")
def model(endless_model: Callable[[str], Path]) -> Path:
    return endless_model("hybrid-q8")  # its 40 layers take seconds, not moments


@pytest.fixture
def job(engine_home: EngineHome, model: Path, tmp_path: Path) -> str:
    """A run that waits in the queue of ``worker.yaml``, and takes some seconds."""
    options = RunOptions(
        prompt=PROMPT, max_tokens=TOKENS, policy="sequential", evidence=("states",)
    )
    run = declare_run(str(model), options, output=tmp_path / "run.json", home=engine_home.path)
    (tmp_path / "worker.yaml").write_text(
        "schema: tallystick.worker/v1\nqueue: queue/queue.sqlite3\nreceipts: receipts\n"
        f"models: [{model}]\n"
    )
    with open_queue(tmp_path / "queue" / "queue.sqlite3") as queue:
        return queue.submit(run).job_id


def state_of(folder: Path, job_id: str) -> JobState:
    with open_queue(folder / "queue" / "queue.sqlite3") as queue:
        return queue.get(job_id).state


@contextmanager
def worker(
    home: EngineHome, folder: Path, out: int, **variables: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a worker that watches on ``out``; its standard error is a pipe."""
    words = [sys.executable, "-m", "tallystick", "worker", "--watch", "--once"]
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TALLYSTICK_")}
    process = subprocess.Popen(
        [*words, "--config", str(folder / "worker.yaml")],
        env={**kept, "TALLYSTICK_HOME": str(home.path), "TERM": "xterm", **variables},
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class Terminal:
    """A terminal, and what was written to it as long as it is read."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        self._read = bytearray()
        self._reader = threading.Thread(target=self._keep_reading, daemon=True)

    def read(self) -> None:
        self._reader.start()

    def _keep_reading(self) -> None:
        try:
            while chunk := os.read(self.master, 4096):
                self._read += chunk
        except OSError:
            return  # what a terminal says at its end on Linux

    def close(self) -> str:
        """Close it and return what was written."""
        os.close(self.slave)
        if self._reader.ident is not None:
            self._reader.join(PATIENCE)
        os.close(self.master)
        return self._read.decode()


def test_a_terminal_shows_the_run_live(engine_home: EngineHome, job: str, tmp_path: Path) -> None:
    terminal = Terminal()
    terminal.read()
    with worker(engine_home, tmp_path, terminal.slave) as process:
        _, err = process.communicate(timeout=PATIENCE)
    shown = terminal.close()
    assert (process.returncode, err) == (0, b"1 run\n")
    assert state_of(tmp_path, job) is JobState.DONE
    assert "\x1b[?25l" in shown
    assert shown.rstrip().endswith("\x1b[?25h")
    text = _ESCAPES.sub("", shown)
    assert re.search(rf"{short(job)}\s+\d+ s\s+generating", text)
    assert re.search(r"tokens\s+\d+, \d+\.\d tokens/s", text)
    assert re.search(r"\d+\.\d MiB now, \d+\.\d MiB peak", text)
    assert "0 dropped; Init 1, Loading 1, LoadComplete 1, TokenEmitted" in text
    assert re.search(rf"done\s+{short(job)}\s+\d+\.\d\d s  peak \d+\.\d MiB, kept", text)
    assert re.search(r"queue\s+1 done", text)
    assert "idle" in text
    assert PROMPT not in text


def test_a_terminal_that_nobody_reads_holds_no_run_up(
    engine_home: EngineHome, job: str, tmp_path: Path
) -> None:
    terminal = Terminal()
    # As if Ctrl-S had been pressed: not even the first picture gets through.
    blocked = os.dup(terminal.slave)
    os.set_blocking(blocked, False)
    try:
        while os.write(blocked, b"x" * 1024):
            pass
    except BlockingIOError:
        os.set_blocking(blocked, True)
    os.close(blocked)
    with worker(engine_home, tmp_path, terminal.slave) as process:
        _, err = process.communicate(timeout=PATIENCE)
    terminal.close()
    assert (process.returncode, err) == (0, b"1 run\n")
    assert state_of(tmp_path, job) is JobState.DONE


@pytest.mark.parametrize("how", ["no terminal", "dumb terminal", "no rich"])
def test_lines_elsewhere(engine_home: EngineHome, job: str, tmp_path: Path, how: str) -> None:
    missing = tmp_path / "missing"
    missing.mkdir()
    (missing / "rich.py").write_text("raise ModuleNotFoundError(name='rich')\n")
    variables = {
        "no terminal": {},
        "dumb terminal": {"TERM": "dumb"},
        "no rich": {"PYTHONPATH": f"{missing}:{os.environ.get('PYTHONPATH', '')}"},
    }[how]
    if how == "no terminal":
        with worker(engine_home, tmp_path, subprocess.PIPE) as process:
            out, err = process.communicate(timeout=PATIENCE)
        text = out.decode()
    else:
        terminal = Terminal()
        terminal.read()
        with worker(engine_home, tmp_path, terminal.slave, **variables) as process:
            _, err = process.communicate(timeout=PATIENCE)
        text = terminal.close()
    assert process.returncode == 0
    *notes, last = err.decode().splitlines()
    assert last == "1 run"
    assert len(notes) == (2 if how == "no rich" else 0)
    assert all("rich" in line or "lines" in line for line in notes)
    assert "\x1b" not in text
    lines = text.splitlines()
    generating = [line for line in lines if re.search(r"generating  \d+ tokens at \d", line)]
    assert generating
    assert all(line.startswith(f"watch     {short(job)}") for line in lines[:-1])
    assert lines[-1].split()[:2] == ["done", short(job)]
    assert PROMPT not in text


def test_a_signal_ends_a_worker_that_is_watched(
    engine_home: EngineHome, job: str, tmp_path: Path
) -> None:
    terminal = Terminal()
    terminal.read()
    with worker(engine_home, tmp_path, terminal.slave) as process:
        end = time.monotonic() + PATIENCE
        while not children_of(process.pid):
            assert time.monotonic() < end
            time.sleep(0.02)
        for _ in range(2):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
        _, err = process.communicate(timeout=PATIENCE)
    shown = terminal.close()
    assert (process.returncode, err) == (0, b"1 run\n")
    assert shown.rstrip().endswith("\x1b[?25h")
    assert re.search(rf"released\s+{short(job)}", _ESCAPES.sub("", shown))
    assert state_of(tmp_path, job) is JobState.PENDING
