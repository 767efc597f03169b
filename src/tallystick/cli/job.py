"""``tallystick job``: order a job for several workers, and execute one slot of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli.asking import Asked, place_options, request_options
from tallystick.cli.extras import require_engine
from tallystick.cli.options import (
    PATH,
    json_option,
    model_option,
    network_of,
    network_option,
    ring_depth_option,
    threads_option,
)
from tallystick.cli.output import emit, note_new_key, printable
from tallystick.cli.passphrase import passphrase_options, passphrase_source
from tallystick.cli.progress import WorkProgress
from tallystick.cli.run import Stream, read_prompt, show

if TYPE_CHECKING:
    from tallystick.canonical.json import JSONValue
    from tallystick.worker.order import PlacedOrder


_declared_sandbox = click.option(
    "--sandbox",
    default="none",
    show_default=True,
    metavar="PROFILE",
    help="What has to hold the engine that executes it: none, process, namespaces or full.",
)


@click.group(name="job")
def command() -> None:
    """Order one job for one or two workers, and execute a slot of an ordered job.

    Two receipts of one job, made by two workers, can be held against each other with `match`.
    """


@command.command(name="declare")
@model_option
@request_options
@_declared_sandbox
@click.option(
    "--output", type=PATH, required=True, metavar="FILE", help="New file for the declaration."
)
@json_option
def declare(
    model: str,
    asked: Asked,
    sandbox: str,
    output: Path,
    as_json: bool,
) -> None:
    """Declare a run, as a RUN.json for `submit`, without executing it.

    The file is private: it holds the prompt. No engine is needed.

    Exit status: 0 the file exists, 2 a flag is out of range, 4 bad prompt, model or file, 6 the
    file cannot be written.
    """
    from tallystick.worker.order import declare_run

    options = asked.options(
        read_prompt(None, asked.prompt_stdin, asked.prompt_file), sandbox=sandbox
    )
    with WorkProgress() as progress:
        run = declare_run(model, options, output=output, on_progress=progress.update)
    emit(
        {"run_id": run.run_id, "model_digest": run.model_digest, "file": printable(str(output))},
        as_json=as_json,
        lines=[f"run {run.run_id}  {output}"],
    )


@command.command(name="order")
@model_option
@click.option(
    "--worker",
    type=PATH,
    multiple=True,
    required=True,
    metavar="FILE",
    help="Public key (PEM) of a worker; once for a solo job, twice for two replicas.",
)
@request_options
@_declared_sandbox
@click.option(
    "--output-dir", type=PATH, required=True, metavar="DIR", help="New or empty, for the tickets."
)
@network_option
@click.option(
    "--key", "key_file", type=PATH, metavar="FILE", help="Private key that signs. Default: yours."
)
@passphrase_options
@json_option
def order(
    model: str,
    worker: Sequence[Path],
    asked: Asked,
    sandbox: str,
    output_dir: Path,
    network: str | None,
    key_file: Path | None,
    passphrase_prompt: bool,
    passphrase_file: Path | None,
    as_json: bool,
) -> None:
    """Sign a job and write a ticket for each worker.

    They are slot-0.ticket and slot-1.ticket. A ticket is private: it holds the prompt. Nothing is
    executed, and no engine is needed.

    Exit status: 0 the tickets exist, 2 a flag is out of range, 3 the model has no compute units,
    4 bad prompt, model or key, 6 no place for the tickets.
    """
    from tallystick.worker.keys import SignerChoice
    from tallystick.worker.order import place_order

    passphrase = passphrase_source(prompt=passphrase_prompt, file=passphrase_file)
    options = asked.options(
        read_prompt(None, asked.prompt_stdin, asked.prompt_file), sandbox=sandbox
    )
    with WorkProgress() as progress:
        placed = place_order(
            model,
            options,
            workers=tuple(worker),
            network_id=network_of(network),
            output_dir=output_dir,
            signer=SignerChoice(key_file, passphrase),
            on_progress=progress.update,
        )
    if placed.default_key_created:
        note_new_key(placed.signer)
    emit(_document(placed), as_json=as_json, lines=_words(placed))


def _document(placed: PlacedOrder) -> JSONValue:
    return {
        "job_class": placed.job_class,
        "scheduler_job_id": placed.scheduler_job_id,
        "tickets": [printable(str(path)) for path in placed.tickets],
    }


def _words(placed: PlacedOrder) -> list[str]:
    lines = [f"job {placed.scheduler_job_id}  {placed.job_class}"]
    return [*lines, *(f"  {path}" for path in placed.tickets)]


@command.command(name="run")
@click.argument("ticket", type=PATH, metavar="TICKET")
@model_option
@place_options("The ticket's private key. Default: yours.")
@click.option(
    "--bundle-dir",
    type=PATH,
    metavar="DIR",
    help="Where the dataset bundle of the ticket's run is, if it names one.",
)
@threads_option
@ring_depth_option
@json_option
def run(
    ticket: Path,
    model: str,
    output_dir: Path | None,
    key_file: Path | None,
    passphrase_prompt: bool,
    passphrase_file: Path | None,
    audit_key_file: Path | None,
    bundle_dir: Path | None,
    threads: int | None,
    ring_depth: int,
    as_json: bool,
) -> None:
    """Execute the slot of TICKET on MODEL, as `run` does.

    It leaves a signed set of files.

    Exit status: as `run`; 4 also for a ticket of another key or model, an expired one, one that
    cannot give a receipt, or a file that others can reach.
    """
    require_engine()
    from tallystick.worker.keys import SignerChoice
    from tallystick.worker.papers import read_ticket
    from tallystick.worker.run import Place, run_ticket

    passphrase = passphrase_source(prompt=passphrase_prompt, file=passphrase_file)
    with WorkProgress() as progress:
        stream = Stream(progress, live=not as_json)
        result = run_ticket(
            model,
            read_ticket(ticket),
            threads=threads,
            ring_depth=ring_depth,
            place=Place(
                output_dir=output_dir,
                signer=SignerChoice(key_file, passphrase),
                audit_key=audit_key_file,
                bundles=() if bundle_dir is None else (bundle_dir,),
            ),
            on_text=stream.write,
            on_progress=progress.update,
        )
    stream.end()
    show(result, as_json=as_json)
