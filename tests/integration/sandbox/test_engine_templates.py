"""Runs forked by a template that has loaded the engine: equal bytes, and nothing shared."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tallystick.errors import RunFailedError
from tallystick.execution.launch import ENGINE_ENVIRONMENT, find_engine
from tallystick.execution.templates import Templates
from tests.support.held_run import comparable, held_run
from tests.support.runs import children_of, is_running
from tests.support.sandboxes import need_level

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="templates are for Linux")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("template-home")


@pytest.fixture(scope="module")
def templates() -> Iterator[Templates]:
    with Templates() as running:
        yield running
    assert running.pids() == ()


def made(outcome: Any) -> dict[str, Any]:
    return comparable(outcome.body["generation"])


@pytest.mark.parametrize("level", [None, "process", "namespaces", "full"])
def test_a_forked_run_gives_every_equal_byte(
    level: str | None, toy_llama: Path, toy_moe: Path, home: Path, templates: Templates
) -> None:
    if level is not None:
        need_level(level)
    for model in (toy_llama, toy_moe):
        asked: dict[str, Any] = {}
        if model == toy_moe:
            asked = {"evidence": ("states", "gemm"), "policy": "sequential", "chat": None}
        plain = held_run(model, home, None, **asked)
        outcome = held_run(model, home, level, templates, **asked)
        assert made(outcome) == made(plain)
        assert (outcome.audit is None) == (level is None)
        assert outcome.peak_rss >= max(event.rss for event in outcome.events)
    (template,) = templates.pids()
    assert children_of(template) == ()
    maps = Path(f"/proc/{template}/maps").read_text()
    assert ".gguf" not in maps
    assert "libllama" in maps or "llama" in maps
    assert "Max core file size        0                    0" in (
        Path(f"/proc/{template}/limits").read_text()
    )


def test_a_template_that_was_killed_is_made_again(
    toy_llama: Path, home: Path, templates: Templates
) -> None:
    first = made(held_run(toy_llama, home, None, templates))
    (before,) = templates.pids()
    os.kill(before, signal.SIGKILL)
    assert made(held_run(toy_llama, home, None, templates)) == first
    # At the latest the second run after finds that it is gone.
    assert made(held_run(toy_llama, home, None, templates)) == first
    (after,) = templates.pids()
    assert after != before
    assert not is_running(before)


def test_what_the_engine_reads_when_it_is_loaded_tells_templates_apart(home: Path) -> None:
    setup = find_engine(home).setup(1)
    with Templates() as templates:

        def of(knob: str, identity: str = setup.identity) -> int:
            chosen = replace(setup, identity=identity)
            template = templates.of(chosen, {**ENGINE_ENVIRONMENT, "GGML_X": knob}, ())
            assert template is not None
            return template.pid

        first, second = of("1"), of("2")
        assert first != second
        assert (of("1"), of("2")) == (first, second)
        other = of("1", "another file")
        assert other not in (first, second)
        assert len(templates.pids()) == Templates.MOST == 3
        assert of("1") == first  # now the second is the one that was not used for longest
        of("3")
        assert not is_running(second)
        assert len(templates.pids()) == 3
        pids = templates.pids()
    assert not any(map(is_running, pids))


def test_an_engine_that_cannot_be_loaded_is_said(home: Path, tmp_path: Path) -> None:
    before = children_of(os.getpid())
    setup = replace(find_engine(home).setup(1), library=str(tmp_path / "none.so"))
    with Templates() as templates, pytest.raises(RunFailedError):
        templates.of(setup, {}, ())
    assert children_of(os.getpid()) == before
