"""Before and during an observed run: how much fits, and what a child may send."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tallystick.errors import RunFailedError, UsageError
from tallystick.evidence.observer.records import MAX_EVENTS, MAX_TRANSCRIPT
from tallystick.execution import observe as supervisor
from tallystick.execution import transcript
from tallystick.execution.jobs import EngineSetup, ObserveJob
from tallystick.execution.observe_child import StepCost, _require_room

JOB = ObserveJob(EngineSetup("", "", "", None, 1), 3, "m.gguf", "x", 1, "graph", "omit")
PROMPT = 5


def fits(tokens: int, cost: StepCost, output: str = "omit") -> bool:
    job = replace(JOB, max_tokens=tokens, output_bytes=output)
    try:
        _require_room(job, PROMPT, 1000, cost)
    except UsageError:
        return False
    return True


def named(cost: StepCost) -> str:
    with pytest.raises(UsageError) as caught:
        _require_room(replace(JOB, max_tokens=1024), PROMPT, 1000, cost)
    assert caught.value.hint is not None
    return caught.value.hint


def test_the_largest_number_of_tokens_by_events() -> None:
    cost = StepCost(events=MAX_EVENTS // 100, size=1)
    assert fits(100 - PROMPT + 1, cost)
    assert not fits(100 - PROMPT + 2, cost)
    assert named(cost).startswith(f"--n-predict {100 - PROMPT + 1} ")


@pytest.mark.parametrize("output", ["omit", "emit"])
def test_the_largest_number_of_tokens_by_bytes(output: str) -> None:
    cost = StepCost(events=1, size=MAX_TRANSCRIPT // 100)
    largest = max(n for n in range(1, 200) if fits(n, cost, output))
    assert largest == 99 - PROMPT + 1  # the header and the result take less than a step
    assert not fits(largest + 1, cost, output)


def test_a_prompt_that_leaves_no_room() -> None:
    assert "a shorter prompt" in named(StepCost(events=MAX_EVENTS // 4, size=1))
    assert fits(1, StepCost(events=MAX_EVENTS // 5, size=1))


def test_lines_are_sent_whole_and_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript, "_PIECE", 5)
    for lines, expected in (
        (b"a\n", [b"a\n"]),
        (b"a\nb\n", [b"a\nb\n"]),
        (b"a\nb\nc\nd\ne\n", [b"a\nb\n", b"c\nd\n", b"e\n"]),
        (b"a line\nb\n", [b"a line\n", b"b\n"]),
        (b"b\na line\n", [b"b\n", b"a line\n"]),
        (b"1234\n1234\n", [b"1234\n", b"1234\n"]),
    ):
        sent: list[bytes] = []
        reporter: Any = SimpleNamespace(data=sent.append)
        transcript.send_lines(reporter, lines)
        assert sent == expected


def test_a_child_sends_whole_lines() -> None:
    found: list[bytes] = []
    headers: list[bytes] = []
    lines = supervisor.TranscriptLines(found.append, headers.append)
    lines.take(b"a\nb\n")
    lines.take(b"c\n")
    assert found == [b"a\n", b"b\n", b"c\n"]
    assert headers == [b"a\n"]
    for piece in (b"", b"a", b"a\nb"):
        with pytest.raises(RunFailedError, match="malformed"):
            lines.take(piece)
    assert len(found) == 3


def test_a_child_sends_no_more_than_a_reader_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "MAX_TRANSCRIPT", 4)
    found: list[bytes] = []
    lines = supervisor.TranscriptLines(found.append, lambda _: None)
    lines.take(b"a\nb\n")
    with pytest.raises(RunFailedError, match="malformed"):
        lines.take(b"\n")
    assert found == [b"a\n", b"b\n"]


def test_a_malformed_result() -> None:
    fine = {"events": 1, "routes": 0, "prompt_tokens": 1, "generated_tokens": 1}
    assert supervisor._observed_run(fine).events == 1
    for change in ({"events": -1}, {"routes": True}, {"prompt_tokens": None}):
        with pytest.raises(RunFailedError, match="malformed"):
            supervisor._observed_run({**fine, **change})
