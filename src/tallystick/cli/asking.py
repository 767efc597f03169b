"""What a run is asked for with: the options that `run`, `job declare` and `job order` share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from tallystick.cli.options import PATH
from tallystick.cli.passphrase import passphrase_options

if TYPE_CHECKING:
    from tallystick.worker.request import RunOptions

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Asked:
    """The values of :func:`request_options`, as the user gave them."""

    prompt_stdin: bool
    prompt_file: Path | None
    n_predict: int | None
    chat: bool
    system: str | None = field(repr=False)
    policy: str
    evidence: str | None
    temperature: str
    seed: int | None

    def options(self, prompt: str, **others: Any) -> RunOptions:
        """Return what is asked for with ``prompt``; ``others`` are more fields of RunOptions."""
        from tallystick.worker.request import RunOptions

        return RunOptions(
            prompt=prompt,
            chat="template" if self.chat else "raw",
            system=self.system,
            max_tokens=self.n_predict,
            temperature=self.temperature,
            seed=self.seed,
            policy=self.policy,
            evidence=_evidence_parts(self.evidence),
            **others,
        )


_OPTIONS: Final = (
    click.option("--prompt-stdin", is_flag=True, help="Read the prompt from standard input."),
    click.option(
        "--prompt-file", type=PATH, metavar="FILE", help="Read the prompt from a file or a pipe."
    ),
    click.option(
        "-n",
        "--n-predict",
        type=int,
        metavar="N",
        help="Most tokens to generate, 1 to 1024. Default: 256, or 2 with --policy sequential.",
    ),
    click.option("--chat", is_flag=True, help="Put the prompt into the model's own chat template."),
    click.option("--system", metavar="TEXT", help="System message; needs --chat."),
    click.option(
        "--policy",
        type=click.Choice(["row-class", "sequential"]),
        default="row-class",
        show_default=True,
        help="How rows are scheduled; sequential is the slow one-token-at-a-time rule.",
    ),
    click.option(
        "--evidence",
        metavar="PARTS",
        help="What is committed to about the computation: states, graph, gemm (joined by commas),"
        " or none. Default: states, or gemm with --policy sequential.",
    ),
    click.option(
        "--temperature",
        default="0",
        show_default=True,
        metavar="T",
        help="0 (greedy) to 2, at most four decimal places.",
    ),
    click.option("--seed", type=int, metavar="S", help="Seed of the draws; needs a temperature."),
)


def request_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options; the verb receives their values as ``asked: Asked``."""

    @functools.wraps(function)
    def gathered(*arguments: Any, **values: Any) -> None:
        asked = Asked(**{item.name: values.pop(item.name) for item in fields(Asked)})
        function(*arguments, asked=asked, **values)

    for option in reversed(_OPTIONS):
        gathered = option(gathered)
    return gathered


def place_options(key_help: str) -> Callable[[F], F]:
    """Add where a set goes and with which keys; ``key_help`` says what ``--key`` is.

    The verb receives ``output_dir``, ``key_file``, ``audit_key_file``: paths or None, and what
    :func:`passphrase_options` gives.
    """

    def added(function: F) -> F:
        function = click.option(
            "--audit-key-file",
            type=PATH,
            metavar="FILE",
            help="32 raw bytes that seal the private half, outside the output. Default: yours.",
        )(function)
        function = passphrase_options(function)
        function = click.option("--key", "key_file", type=PATH, metavar="FILE", help=key_help)(
            function
        )
        return click.option(
            "--output-dir",
            type=PATH,
            metavar="DIR",
            help="New or empty directory for the set. Default: receipts/<id> in the data folder.",
        )(function)

    return added


def _evidence_parts(text: str | None) -> tuple[str, ...] | None:
    """Return ``--evidence`` as parts, None when it was not given; "none" is no part."""
    if text is None:
        return None
    return () if text == "none" else tuple(part.strip() for part in text.split(","))
