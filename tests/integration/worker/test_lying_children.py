"""A child that lies to its supervisor: no receipt says otherwise than what is true, and the worker
goes on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tallystick.execution import launch
from tallystick.execution.templates import Templates
from tallystick.queues.memory import memory_queue
from tallystick.queues.port import JobState
from tallystick.receipts.inspect import inspect_receipt
from tallystick.store.sets import read_receipt
from tallystick.worker.loop import Worker
from tallystick.worker.order import declare_run
from tallystick.worker.request import RunOptions
from tallystick.worker.settings import DEFAULTS
from tallystick.worker.stopping import StopSwitch
from tallystick.worker.turns import Listener, Turn
from tests.support.children import use_test_children
from tests.support.children.liar import FOR_A_REPLAY, HARMLESS, LIES
from tests.support.kills import left_over
from tests.support.runs import EngineHome, children_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")

LIAR = "tests.support.children.liar"
HONEST = "the truth"
TOKENS = 6


def test_no_lie_gets_into_a_receipt(
    engine_home: EngineHome,
    endless_model: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = endless_model("llama-q8_0")
    engine_home.run(model, HONEST, 2)  # calibrated by an honest child
    use_test_children(monkeypatch, tmp_path)
    monkeypatch.setattr(launch, "PROGRAM", LIAR)
    monkeypatch.setattr(Templates, "of", lambda *_: None)  # a template forks what it is itself
    queue, names = memory_queue(), {}
    for number, lie in enumerate([*LIES, HONEST]):
        options = RunOptions(prompt=lie, max_tokens=TOKENS)
        file = tmp_path / f"run-{number}.json"
        run = declare_run(str(model), options, output=file, home=engine_home.path)
        names[queue.submit(run, max_attempts=1).job_id] = lie
    turns: dict[str, Turn] = {}
    changes: dict[str, Any] = {"models": (str(model),), "threads": 1, "idle_milliseconds": 10}
    receipts = tmp_path / "receipts"
    settings = replace(DEFAULTS, receipts=str(receipts), **changes)

    def tell(turn: Turn) -> None:
        turns[names[turn.job_id]] = turn
        assert children_of(os.getpid()) == (), turn

    with StopSwitch(60) as stop:
        listener = Listener(on_turn=tell)
        worker = Worker(queue, settings, engine_home.path, stop, listener=listener)
        worker.work(until="empty")
    taken = {*HARMLESS, *FOR_A_REPLAY, HONEST}
    expected = {lie: "done" if lie in taken else "dead" for lie in (*LIES, HONEST)}
    assert {lie: turn.outcome for lie, turn in turns.items()} == expected, turns
    for lie, turn in turns.items():
        if turn.outcome == "dead":
            assert turn.reason
            assert lie not in turn.reason  # it is the prompt
            continue
        assert turn.place is not None
        receipt = inspect_receipt(read_receipt(turn.place)).receipt
        assert receipt.core.sampled_tokens == TOKENS
        assert receipt.observed.enforcement_level == "none"
        assert receipt.observed.egress_audit.result == "not_run"
        assert receipt.observed.dropped_events == (TOKENS if lie == "no events" else 0)
        assert receipt.observed.rss.peak < 2**40
    done = [turn.place for turn in turns.values() if turn.place is not None]
    assert sorted(receipts.glob("[0-9a-f]*")) == sorted(done)
    assert left_over(receipts) == []
    assert dict(queue.counts())[JobState.DONE] == len(done) == len(taken)
    monkeypatch.undo()
    key = engine_home.path / "keys" / "default.pub.pem"
    verified = engine_home.cli("verify", *done, "--key", key)
    assert verified.returncode == 0, verified.stdout
    for lie, turn in turns.items():
        if turn.place is not None:
            assert engine_home.replay(turn.place, model).verified == (lie not in FOR_A_REPLAY), lie
