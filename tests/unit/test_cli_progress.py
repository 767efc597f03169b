"""Progress of long work, with a clock of its own."""

from __future__ import annotations

import pytest

from tallystick.cli.progress import WorkProgress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("tallystick.cli.progress.time.monotonic", clock)
    return clock


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> WorkProgress:
    """Return progress on what looks like a terminal (to be called while output is captured)."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    return WorkProgress()


def test_a_terminal_shows_one_line_and_is_left_clean(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with on_terminal(monkeypatch) as progress:
        progress.update("hashing", 0, 200)
        clock.now += 1
        progress.update("hashing", 50, 200)
        clock.now += 0.01
        progress.update("hashing", 60, 200)
        shown = capsys.readouterr().err
        assert shown == "\rhashing the model   25 %"
        clock.now += 1
        progress.update("something\x1bnew", 1, 2)
        clock.now += 1
        progress.update("something\x1bnew", 1, 2)
        assert "something\\x1bnew   50 %" in capsys.readouterr().err
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.strip("\r ") == ""
    assert captured.err.endswith("\r")


def test_finished_work_leaves_no_line(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = on_terminal(monkeypatch)
    progress.update("hashing", 1, 2)
    clock.now += 1
    progress.update("hashing", 1, 2)
    progress.update("hashing", 2, 2)
    assert capsys.readouterr().err.endswith(" \r")
    progress.clear()
    assert capsys.readouterr().err == ""


def test_short_work_is_not_announced(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with on_terminal(monkeypatch) as progress:
        progress.update("hashing", 0, 2)
        clock.now += 0.3
        progress.update("hashing", 2, 2)
    assert capsys.readouterr().err == ""


def test_a_log_gets_a_line_every_few_seconds(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with WorkProgress() as progress:
        for done in range(12):
            progress.update("replay", done, 12)
            clock.now += 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == ["replaying   41 %", "replaying   83 %"]


def test_work_of_unknown_length_has_no_share(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = WorkProgress()
    progress.update("loading", 0, 0)
    clock.now += 10
    progress.update("loading", 0, 0)
    assert capsys.readouterr().err == "loading the model\n"
