"""``tallystick observe`` as a user meets it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tallystick import read_transcript
from tallystick.cli.observe import _write
from tests.support.runs import EngineHome

PROMPT = "the quick brown fox"
MODES = ["off", "graph", "sketch"]


@pytest.mark.parametrize("observer", MODES)
def test_the_transcript_is_on_standard_output(
    observer: str, engine_home: EngineHome, toy_llama: Path
) -> None:
    words = ("--model", toy_llama, "--policy", "sequential", "--observer", observer)
    done = engine_home.cli("observe", *words, "--prompt-stdin", "--n-predict", "2", stdin=PROMPT)
    assert done.returncode == 0, done.stderr
    read = read_transcript([done.stdout.encode()])
    assert read.header.observer == observer
    assert read.header.model.path == toy_llama.name
    assert read.header.runtime.requested_gpu_layers == 0
    assert len(read.result.prompt_token_ids) == 5
    assert read.result.output_bytes == ()
    assert (read.events > 0) == (observer != "off")
    assert "fox" not in done.stderr


def test_output_bytes_on_request(engine_home: EngineHome, toy_llama: Path) -> None:
    words = ("--model", toy_llama, "--observer", "off", "--prompt-stdin", "--emit-output-bytes")
    done = engine_home.cli("observe", *words, stdin=PROMPT)
    result = json.loads(done.stdout.splitlines()[-1])
    assert len(result["output_bytes"]) == result["output_n_bytes"] > 0
    run = engine_home.cli(
        *("run", "--model", toy_llama, "--policy", "sequential", "--prompt-stdin", "-n", "2"),
        "--json",
        stdin=PROMPT,
    )
    text = bytes(result["output_bytes"]).decode("utf-8", "replace")
    assert json.loads(run.stdout)["text"] == text


@pytest.mark.parametrize(
    ("words", "stdin", "code", "message"),
    [
        (["--prompt-stdin", "--policy", "row-class"], PROMPT, 2, "'row-class'"),
        ([], PROMPT, 2, "from a pipe"),
        (["--prompt-stdin", "-n", "0"], PROMPT, 2, "1 to 1024"),
        (["--prompt-stdin", "-n", "1025"], PROMPT, 2, "1 to 1024"),
        (["--prompt-stdin", "--observer", "all"], PROMPT, 2, "'all'"),
        (["--prompt-stdin", "--temperature", "1"], PROMPT, 2, "--temperature"),
        (["--prompt-stdin", "--observer", "off"], "x" * 4096, 4, "do not fit the context"),
        (["--prompt-stdin"], "", 4, "prompt"),
        (["--prompt-stdin"], b"\xff", 4, "not UTF-8"),
        (["--prompt-stdin"], "a\0b", 4, "NUL"),
    ],
)
def test_refusals(
    words: list[str],
    stdin: str | bytes,
    code: int,
    message: str,
    engine_home: EngineHome,
    toy_llama: Path,
) -> None:
    done = engine_home.cli("observe", "--model", toy_llama, *words, stdin=stdin)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr


def test_the_help_says_that_the_lines_are_private(engine_home: EngineHome) -> None:
    assert "private" in engine_home.cli("observe", "--help").stdout


def test_every_line_is_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bytes | str] = []
    buffer = SimpleNamespace(write=calls.append, flush=lambda: calls.append("flush"))
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=buffer))
    for line in (b"1\n", b"2\n"):
        _write(line)
    monkeypatch.undo()
    assert calls == [b"1\n", "flush", b"2\n", "flush"]


def test_a_transcript_is_held_against_the_model(
    engine_home: EngineHome, toy_llama: Path, tmp_path: Path, endless_model: Callable[[str], Path]
) -> None:
    done = engine_home.cli("observe", "--model", toy_llama, "--prompt-stdin", stdin=PROMPT)
    transcript = tmp_path / "run.jsonl"
    transcript.write_text(done.stdout)
    checked = engine_home.cli("observe", "--model", toy_llama, "--check", transcript, "--json")
    assert checked.returncode == 0, checked.stderr
    report = json.loads(checked.stdout)
    read = read_transcript([done.stdout.encode()])
    assert report["events"] == read.events
    assert report["products"] == read.gemms > 0
    other = endless_model("gemma3")
    assert engine_home.cli("observe", "--model", other, "--check", transcript).returncode == 1
    lines = done.stdout.splitlines(keepends=True)
    transcript.write_text("".join(lines[:-1]))
    cut = engine_home.cli("observe", "--model", toy_llama, "--check", transcript)
    assert cut.returncode == 1
    assert "cut short" in cut.stderr
