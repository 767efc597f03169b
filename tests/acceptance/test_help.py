"""The command line's root: help, version, errors, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping

import click
import pytest

from tallystick.cli import main as program
from tallystick.cli.main import VERBS, main
from tallystick.errors import (
    EvidenceError,
    IncomparableError,
    InputError,
    RunFailedError,
    SandboxError,
    TallystickError,
    UnavailableError,
    UsageError,
)


def tallystick(
    *words: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tallystick", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(environment or {})},
    )


def replace_verb(monkeypatch: pytest.MonkeyPatch, function: object) -> None:
    """Let the verb ``inspect`` be a command that calls ``function``."""
    assert callable(function)
    command = click.command("inspect")(click.option("--json", is_flag=True)(function))
    monkeypatch.setattr(
        program.LazyGroup,
        "get_command",
        lambda self, ctx, name: command if name == "inspect" else None,
    )


def test_root_help_names_every_verb() -> None:
    result = tallystick("--help")
    assert result.returncode == 0
    assert result.stderr == ""
    for verb in VERBS:
        assert f"  {verb.name} " in result.stdout
        assert verb.summary in result.stdout


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_every_verb_has_help(verb: str) -> None:
    result = tallystick(verb, "--help")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"Usage: tallystick {verb} ")


def test_version() -> None:
    result = tallystick("--version")
    assert result.returncode == 0
    assert result.stdout.startswith("tallystick ")


def test_no_verb_prints_help_on_stderr() -> None:
    result = tallystick()
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("Usage: tallystick")


def test_an_unknown_verb_is_a_usage_error() -> None:
    result = tallystick("verfy")
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: No such command 'verfy'")


def test_a_usage_error_is_json_when_json_is_asked() -> None:
    result = tallystick("inspect", "--json", "--no-such-option")
    assert result.returncode == 2
    assert result.stdout == ""
    error = json.loads(result.stderr)["error"]
    assert error["type"] == "UsageError"
    assert error["exit_code"] == 2


def test_json_can_be_asked_by_the_environment() -> None:
    result = tallystick("inspect", "--nonsense", environment={"TALLYSTICK_INSPECT_JSON": "1"})
    assert json.loads(result.stderr)["error"]["exit_code"] == 2


@pytest.mark.parametrize(("value", "flag"), [("1", True), ("0", False), ("false", False)])
def test_a_flag_follows_its_environment_variable(
    value: str, flag: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def remember(json: bool) -> None:
        seen.append(json)

    replace_verb(monkeypatch, remember)
    monkeypatch.setenv("TALLYSTICK_INSPECT_JSON", value)
    assert main(["inspect"]) == 0
    assert seen == [flag]


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (EvidenceError, 1),
        (UsageError, 2),
        (IncomparableError, 3),
        (InputError, 4),
        (SandboxError, 5),
        (UnavailableError, 6),
        (RunFailedError, 7),
    ],
)
def test_each_error_has_its_exit_code(
    kind: type[TallystickError],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(json: bool) -> None:
        raise kind("it broke", expected="a", found="b\x1b[2J", hint="mend it")

    replace_verb(monkeypatch, fail)
    assert main(["inspect"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "error: it broke\n  expected: a\n  found: b\\x1b[2J\n  what to do: mend it\n"
    )
    assert main(["inspect", "--json"]) == code
    assert json.loads(capsys.readouterr().err)["error"] == {
        "type": kind.__name__,
        "exit_code": code,
        "message": "it broke",
        "expected": "a",
        "found": "b\\x1b[2J",
        "hint": "mend it",
    }


def test_an_unforeseen_exception_keeps_its_text_to_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(json: bool) -> None:
        raise ValueError("the private prompt")

    replace_verb(monkeypatch, fail)
    monkeypatch.delenv("TALLYSTICK_DEBUG", raising=False)
    assert main(["inspect"]) == 7
    captured = capsys.readouterr()
    assert "private" not in captured.err
    assert "ValueError" in captured.err
    assert "TALLYSTICK_DEBUG" in captured.err
    monkeypatch.setenv("TALLYSTICK_DEBUG", "1")
    assert main(["inspect"]) == 7
    assert "the private prompt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(28, "No space left on device"), 6),
        (OSError(30, "Read-only file system", "/some/where"), 6),
        (FileNotFoundError(2, "No such file or directory", "/some/where"), 4),
        (MemoryError(), 7),
        (ModuleNotFoundError("No module named 'numpy'", name="numpy.linalg"), 4),
        (ModuleNotFoundError("No module named 'else'", name="else"), 7),
        (KeyboardInterrupt(), 130),
        (click.exceptions.Abort(), 130),
    ],
)
def test_other_exceptions_are_explained(
    error: BaseException,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(json: bool) -> None:
        raise error

    replace_verb(monkeypatch, fail)
    assert main(["inspect"]) == code
    assert capsys.readouterr().err.startswith("error: ")


def test_a_missing_extra_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(json: bool) -> None:
        raise ModuleNotFoundError("No module named 'xllamacpp'", name="xllamacpp")

    replace_verb(monkeypatch, fail)
    assert main(["inspect"]) == 4
    assert "pip install 'tallystick[engine]'" in capsys.readouterr().err


def test_a_verb_ends_with_the_code_it_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def verdict(json: bool) -> None:
        click.get_current_context().exit(3)

    replace_verb(monkeypatch, verdict)
    assert main(["inspect"]) == 3


def test_termination_unwinds_like_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    unwound = []

    def wait(json: bool) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            unwound.append("cleaned up")

    replace_verb(monkeypatch, wait)
    before = signal.getsignal(signal.SIGTERM)
    assert main(["inspect"]) == 130
    assert unwound == ["cleaned up"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_closed_pipe_is_quiet_and_not_a_success() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        result = subprocess.run(
            [sys.executable, "-m", "tallystick", "--help"],
            stdout=write,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(write)
    assert result.returncode == UnavailableError.exit_code
    assert result.stderr == b""
