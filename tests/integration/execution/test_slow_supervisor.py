"""A supervisor that does not read for a while: the run goes on, and its receipt tells the cost."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tallystick.receipts.files import verify_paths
from tallystick.sandbox import process
from tallystick.telemetry.events import EventKind
from tallystick.telemetry.log import parse_log
from tallystick.worker.request import RunOptions
from tallystick.worker.run import run
from tests.support.runs import EngineHome, HonestRun, children_of
from tests.support.sets import TRUST

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")

PROMPT = "A tally stick is split in two."
TOKENS = 600
PATIENCE = 120.0


def processor_time(pid: int) -> int:
    """Return the clock ticks that a process has used, of all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def until_idle(pid: int) -> None:
    """Wait until a process has used no processor time for a second."""
    end = time.monotonic() + PATIENCE
    used = -1
    while (now := processor_time(pid)) != used:
        assert time.monotonic() < end
        used = now
        time.sleep(1)


def test_generation_goes_on_and_the_receipt_tells_what_was_dropped(
    engine_home: EngineHome,
    endless_model: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "_PIPE_BYTES", 4096)
    texts: list[bytes] = []
    stalls: list[int] = []

    def listen(text: bytes) -> None:
        if not texts:
            started = time.monotonic_ns()
            (child,) = children_of(os.getpid())
            until_idle(child)
            stalls.append(time.monotonic_ns() - started)
        texts.append(text)

    options = RunOptions(
        prompt=PROMPT, max_tokens=TOKENS, policy="sequential", evidence=("states",)
    )
    result = run(str(endless_model("llama-q8_0")), options, home=engine_home.path, on_text=listen)
    observed = result.receipt.observed
    # All of it was computed while nobody read; only then the child waited, with its result.
    assert observed.durations_ns.decode < stalls[0]
    assert b"".join(texts) == result.output
    assert len(texts) == result.receipt.core.sampled_tokens == TOKENS
    log = parse_log(HonestRun.load(result.directory).telemetry)
    events = list(log.events())
    frame = [EventKind.INIT, EventKind.LOADING, EventKind.LOAD_COMPLETE]
    assert [event.kind for event in events[:3]] == frame
    assert [event.seq for event in events[:3]] == [0, 1, 2]
    assert events[-1].kind is EventKind.SHUTDOWN_COMPLETE
    assert events[-1].seq == 3 + TOKENS + 1  # after as many tokens and the reset
    tokens = [event for event in events if event.kind is EventKind.TOKEN_EMITTED]
    assert all(event.seq == 3 + (event.index or 0) for event in tokens)
    assert 100 < len(tokens) == log.tokens < TOKENS
    missing = 3 + TOKENS + 2 - len(events)
    assert log.dropped == observed.dropped_events == missing > 0
    verified = verify_paths([result.directory], TRUST)
    assert verified.exit_code == 0
