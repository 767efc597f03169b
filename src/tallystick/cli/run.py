"""``tallystick run``: run a model on a prompt and leave a signed receipt (docs/spec/receipt.md)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click
from click.core import ParameterSource

from tallystick.cli.asking import Asked, place_options, request_options
from tallystick.cli.extras import require_engine
from tallystick.cli.options import (
    PATH,
    json_option,
    model_option,
    ring_depth_option,
    threads_option,
)
from tallystick.cli.output import emit_json, note, note_new_key, printable_text
from tallystick.cli.passphrase import passphrase_source
from tallystick.cli.progress import WorkProgress
from tallystick.errors import UsageError

if TYPE_CHECKING:
    from tallystick.canonical.json import JSONValue
    from tallystick.worker.request import RunOptions
    from tallystick.worker.run import RunResult


@click.command(name="run")
@click.argument("prompt", required=False, metavar="[PROMPT]")
@model_option
@request_options
@click.option(
    "--chat-clock",
    type=click.IntRange(0, 2**40),
    metavar="SECONDS",
    help="Unix time that a dated chat template sees. Default: now.",
)
@click.option("--self-check", is_flag=True, help="Re-execute in one pass before signing.")
@click.option(
    "--disclosure",
    type=click.Choice(["private", "public"]),
    default="private",
    show_default=True,
    help="public adds plain digests of prompt and output to the receipt.",
)
@click.option(
    "--sandbox",
    default="none",
    show_default=True,
    metavar="PROFILE",
    help="What has to hold the engine: none, process, namespaces, full, or a .yaml file.",
)
@click.option(
    "--bundle-dir",
    type=PATH,
    metavar="DIR",
    help="Dataset bundle that gives the prompt and says how to run; checked first.",
)
@click.option("--tile", metavar="Z/X/Y", help="The tile of the bundle that is asked about.")
@click.option("--split", metavar="NAME", help="Its split, where the tile is in several.")
@place_options("Private key that signs. Default: yours.")
@threads_option
@ring_depth_option
@json_option
@click.pass_context
def command(
    context: click.Context,
    prompt: str | None,
    model: str,
    asked: Asked,
    chat_clock: int | None,
    self_check: bool,
    disclosure: Literal["private", "public"],
    sandbox: str,
    bundle_dir: Path | None,
    tile: str | None,
    split: str | None,
    output_dir: Path | None,
    key_file: Path | None,
    passphrase_prompt: bool,
    passphrase_file: Path | None,
    audit_key_file: Path | None,
    threads: int | None,
    ring_depth: int,
    as_json: bool,
) -> None:
    """Run MODEL on a prompt, stream the answer, and leave a signed set of files.

    Give the prompt as an argument, with --prompt-file, or with --prompt-stdin (an argument is
    visible to other users of this machine while the program runs). With --bundle-dir, prompt and
    parameters are those of a dataset bundle, and the receipt names it.

    Exit status: 0 a receipt exists, 1 the bundle is not what it declares, 2 a flag is out of range,
    3 this model cannot be run exactly here, 4 bad prompt, model or tile, 5 the sandbox cannot be
    enforced, 6 no place for the output, 7 the run failed.
    """
    require_engine()
    from tallystick.worker.keys import SignerChoice
    from tallystick.worker.run import Place, run
    from tallystick.worker.tiles import run_bundle

    passphrase = passphrase_source(prompt=passphrase_prompt, file=passphrase_file)
    signer = SignerChoice(key_file, passphrase)
    with WorkProgress() as progress:
        stream = Stream(progress, live=not as_json)
        if bundle_dir is None:
            _refuse(context, ("tile", "split"), "it needs --bundle-dir")
            result = run(
                model,
                _options(
                    prompt,
                    asked,
                    clock=chat_clock,
                    disclosure=disclosure,
                    self_check="yes" if self_check else "no",
                    threads=threads,
                    ring_depth=ring_depth,
                    sandbox=sandbox,
                ),
                output_dir=output_dir,
                signer=signer,
                audit_key=audit_key_file,
                on_text=stream.write,
                on_progress=progress.update,
            )
        else:
            _refuse(context, _OF_THE_BUNDLE, "the bundle says it")
            result = run_bundle(
                model,
                bundle_dir,
                tile=tile,
                split=split,
                threads=threads,
                ring_depth=ring_depth,
                place=Place(output_dir=output_dir, signer=signer, audit_key=audit_key_file),
                on_text=stream.write,
                on_progress=progress.update,
            )
    stream.end()
    show(result, as_json=as_json)


def _options(prompt: str | None, asked: Asked, **others: Any) -> RunOptions:
    if asked.policy == "sequential" and prompt is not None:
        raise UsageError(
            "the sequential policy takes its prompt from a pipe or a file",
            expected="--prompt-stdin or --prompt-file",
        )
    return asked.options(read_prompt(prompt, asked.prompt_stdin, asked.prompt_file), **others)


#: What a bundle's own run parameters and template decide.
_OF_THE_BUNDLE: Final = (
    "prompt",
    "prompt_stdin",
    "prompt_file",
    "n_predict",
    "chat",
    "system",
    "policy",
    "evidence",
    "temperature",
    "seed",
    "chat_clock",
    "self_check",
    "disclosure",
    "sandbox",
)


def _refuse(context: click.Context, names: tuple[str, ...], why: str) -> None:
    """Raise UsageError for an option that was given and has no meaning here."""
    given = [
        name
        for name in names
        if context.get_parameter_source(name)
        not in (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP, None)
    ]
    if given:
        option = "a prompt" if given[0] == "prompt" else f"--{given[0].replace('_', '-')}"
        raise UsageError(f"{option} does not go here: {why}")


class Stream:
    """Writes the answer as it comes; whole characters only, control characters made visible."""

    def __init__(self, progress: WorkProgress, *, live: bool) -> None:
        import codecs

        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._progress = progress
        self._live = live

    def write(self, data: bytes) -> None:
        """Show the bytes of one token."""
        self._show(self._decoder.decode(data))

    def end(self) -> None:
        """Show what is left, and end the line."""
        self._show(self._decoder.decode(b"", final=True) + "\n")

    def _show(self, text: str) -> None:
        if self._live and text:
            self._progress.clear()
            click.echo(printable_text(text), nl=False)
            sys.stdout.flush()


def read_prompt(argument: str | None, stdin: bool, file: Path | None) -> str:
    """Return the prompt from the one place where it was given."""
    from tallystick.store.files import read_given
    from tallystick.worker.request import MAX_PROMPT_BYTES, decode_prompt

    given = [argument is not None, stdin, file is not None]
    if sum(given) != 1:
        raise UsageError(
            "give the prompt exactly once",
            expected="an argument, --prompt-stdin or --prompt-file",
            found=f"{sum(given)} of them",
        )
    if argument is not None:
        return argument
    if stdin:
        return decode_prompt(sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1))
    assert file is not None
    data = read_given(file, max_bytes=MAX_PROMPT_BYTES, what="the prompt file", pipe="wait")
    return decode_prompt(data)


def _document(result: RunResult) -> JSONValue:
    import base64

    core = result.receipt.core
    return {
        "receipt_id": result.receipt_id,
        "compute_receipt_id": result.compute_receipt_id,
        "receipt_digest": result.receipt_digest,
        "core_digest": result.core_digest,
        "directory": str(result.directory),
        "output_base64": base64.b64encode(result.output).decode(),
        "text": result.text,
        "prompt_tokens": core.prompt_tokens,
        "sampled_tokens": core.sampled_tokens,
        "stop_reason": core.stop_reason,
        "canonical_compute_units": str(core.canonical_compute_units),
        "seed": None if result.seed is None else str(result.seed),
        "signer": result.signer,
    }


def show(result: RunResult, *, as_json: bool) -> None:
    """Show a finished run whose text is already out."""
    if as_json:
        emit_json(_document(result))
    if result.default_key_created:
        note_new_key(result.signer)
    if result.default_audit_key_created:
        note(
            "made an audit key, because there was none: it opens the private half of your receipts"
        )
    if result.seed is not None:
        note(f"seed      {result.seed}")
    note(f"receipt   {result.receipt_digest}")
    note(f"files     {result.directory}")
