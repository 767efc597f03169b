"""``tallystick observe``: stream what a run's graphs compute (docs/spec/observer.md)."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tallystick.cli.extras import require_engine
from tallystick.cli.options import PATH, json_option, model_option, sandbox_option
from tallystick.cli.output import emit, table
from tallystick.cli.progress import WorkProgress
from tallystick.errors import UsageError
from tallystick.receipts.report import as_document


@click.command(name="observe")
@model_option
@click.option(
    "--policy",
    type=click.Choice(["sequential"]),
    default="sequential",
    show_default=True,
    help="Only sequential runs are observed step by step.",
)
@click.option(
    "--observer",
    type=click.Choice(["off", "graph", "sketch"]),
    default="sketch",
    show_default=True,
    help="graph: operations and shapes; sketch: also 256 bits of each product, and the experts.",
)
@click.option("--prompt-stdin", is_flag=True, help="Read the prompt from standard input; required.")
@click.option(
    "-n",
    "--n-predict",
    type=int,
    default=2,
    show_default=True,
    metavar="N",
    help="Most tokens to generate, 1 to 1024.",
)
@click.option(
    "--check",
    "transcript",
    type=PATH,
    metavar="FILE",
    help="Run nothing: hold the transcript in FILE against MODEL and count what it holds.",
)
@click.option("--emit-output-bytes", is_flag=True, help="Put the answer's bytes into the result.")
@sandbox_option
@json_option
def command(
    model: str,
    policy: str,
    observer: str,
    prompt_stdin: bool,
    n_predict: int,
    transcript: Path | None,
    emit_output_bytes: bool,
    sandbox: str,
    as_json: bool,
) -> None:
    """Run MODEL one token at a time and write what its graphs compute, as JSON lines.

    The lines are private output: the last one holds the prompt's and the answer's token ids.
    The result is JSON in any case; --json makes errors JSON too. A transcript without its last
    line, the result, is of a run that failed.

    Exit status: 0 the transcript is complete, 1 a checked one does not hold, 2 a flag is out of
    range or the transcript would be too large, 3 this model cannot be run here, 4 bad prompt or
    model, 5 the sandbox cannot be enforced, 7 the run failed.
    """
    if transcript is not None:
        _check(transcript, model, as_json)
        return
    require_engine()
    from tallystick.execution.observe import ObserveOptions, observe
    from tallystick.sandbox.profiles import strictly
    from tallystick.worker.request import MAX_PROMPT_BYTES, decode_prompt

    if not prompt_stdin:
        raise UsageError("an observed run takes its prompt from a pipe", expected="--prompt-stdin")
    options = ObserveOptions(
        prompt=decode_prompt(sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1)),
        observer=observer,
        policy=policy,
        max_tokens=n_predict,
        output_bytes="emit" if emit_output_bytes else "omit",
    )
    with WorkProgress() as progress:
        observe(
            model,
            options,
            on_line=_write,
            sandbox=strictly(sandbox),
            on_progress=progress.update,
        )


def _check(transcript: Path, model: str, as_json: bool) -> None:
    from tallystick.audit.transcript import check_transcript

    with WorkProgress() as progress:
        report = check_transcript(transcript, model, on_progress=progress.update)
    document = as_document(report)
    assert isinstance(document, dict)
    rows = [(name, str(value)) for name, value in document.items()]
    emit(document, as_json=as_json, lines=table(rows))


def _write(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
