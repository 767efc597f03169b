"""The verbs that declare a run ask for it in the same words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tallystick.cli import asking, job, run
from tallystick.cli.asking import Asked, request_options
from tallystick.worker.request import RunOptions

VERBS = {"run": run.command, "declare": job.declare, "order": job.order}
NAMES = set(Asked.__dataclass_fields__)


def shared(verb: click.Command) -> list[dict[str, Any]]:
    return [item.to_info_dict() for item in verb.params if item.name in NAMES]


def test_three_verbs_share_the_options_of_a_request() -> None:
    options = {name: shared(verb) for name, verb in VERBS.items()}
    assert len(options["run"]) == len(asking._OPTIONS) == len(NAMES) == 9
    assert options["declare"] == options["run"]
    assert options["order"] == options["run"]


def ask(*words: str) -> RunOptions:
    found: list[RunOptions] = []

    @click.command()
    @request_options
    def verb(asked: Asked) -> None:
        found.append(asked.options("a prompt", threads=3))

    result = CliRunner().invoke(verb, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return found[0]


def test_what_was_not_asked_for_is_the_default() -> None:
    assert ask() == RunOptions(prompt="a prompt", threads=3)


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (("--chat", "--system", "be brief"), {"chat": "template", "system": "be brief"}),
        (("-n", "7"), {"max_tokens": 7}),
        (("--policy", "sequential"), {"policy": "sequential"}),
        (("--evidence", "none"), {"evidence": ()}),
        (("--evidence", "states, gemm"), {"evidence": ("states", "gemm")}),
        (("--temperature", "0.7", "--seed", "0"), {"temperature": "0.7", "seed": 0}),
    ],
)
def test_what_is_asked_for_is_what_is_declared(
    words: tuple[str, ...], changes: dict[str, Any]
) -> None:
    assert ask(*words) == RunOptions(prompt="a prompt", threads=3, **changes)


def test_a_system_message_shows_in_no_repr() -> None:
    asked = Asked(False, Path("p"), 1, True, "private text", "row-class", None, "0", None)
    assert "private text" not in repr(asked)
