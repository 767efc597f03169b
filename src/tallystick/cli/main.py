"""The ``tallystick`` program: finds the verb, runs it, turns errors into messages and exit codes.

A verb's module is imported only when the verb is used, so that ``tallystick --help`` stays fast
and the verifier runs without the engine's libraries. Exit codes: docs/spec/exit-codes.md.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import FrameType
from typing import Final

import click

from tallystick.cli.extras import ENGINE_MODULES, missing_engine
from tallystick.cli.output import asks_for_json, print_error
from tallystick.errors import (
    InputError,
    InterruptedRunError,
    RunFailedError,
    TallystickError,
    UnavailableError,
    UsageError,
)

PROGRAM: Final = "tallystick"
ENVIRONMENT_PREFIX: Final = "TALLYSTICK"
DEBUG_VARIABLE: Final = "TALLYSTICK_DEBUG"
_COMPLETION_VARIABLE: Final = "_TALLYSTICK_COMPLETE"
# Nobody reads the result any more: it did not arrive, so "it holds" (0) would be a lie.
_BROKEN_PIPE_EXIT: Final = UnavailableError.exit_code
# What a full, read-only or broken place answers, whoever forgot to say so more exactly.
_PLACE_ERRORS: Final = frozenset({errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO})


@dataclass(frozen=True, slots=True)
class Verb:
    """One command: its name, the module whose ``command`` it is, and its line in the root help."""

    name: str
    module: str
    summary: str


VERBS: Final = (
    Verb("run", "tallystick.cli.run", "Run a model on a prompt; leave a signed receipt."),
    Verb("verify", "tallystick.cli.verify", "Check receipts offline, without the model."),
    Verb("replay", "tallystick.cli.replay", "Execute a receipt again and compare every bit."),
    Verb("inspect", "tallystick.cli.inspect", "Show what a receipt says, without judging it."),
    Verb("observe", "tallystick.cli.observe", "Stream the operations of a run as JSON lines."),
    Verb("diff", "tallystick.cli.diff", "Compare two receipts field by field."),
    Verb("match", "tallystick.cli.match", "Hold two receipts against each other as replicas."),
    Verb("job", "tallystick.cli.job", "Order a job for several workers; execute a slot of one."),
    Verb("bundle", "tallystick.cli.bundle", "Make and check dataset bundles; declare runs on one."),
    Verb("attest", "tallystick.cli.attest", "Attest where data is from; check such attestations."),
    Verb("submit", "tallystick.cli.submit", "Queue declared runs for a worker, each once."),
    Verb("runs", "tallystick.cli.runs", "List, show, cancel and retry queued runs."),
    Verb("worker", "tallystick.cli.worker", "Work off a queue of runs, one child per run."),
    Verb("model", "tallystick.cli.model", "Pull, add, list, check and calibrate models."),
    Verb("units", "tallystick.cli.units", "Price token counts of a model in compute units."),
    Verb("sandbox", "tallystick.cli.sandbox", "Probe what a sandbox closes on this machine."),
    Verb("contracts", "tallystick.cli.contracts", "Check documents against their contracts."),
    Verb(
        "keys",
        "tallystick.cli.keys",
        "Make signing keys, show public keys, hand out a bundle's key.",
    ),
    Verb("demo", "tallystick.cli.demo", "Run, verify and replay a small model from end to end."),
)


class LazyGroup(click.Group):
    """A command group whose members are imported only when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order in which a newcomer meets them."""
        return [verb.name for verb in VERBS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one verb, or None when there is no such verb."""
        for verb in VERBS:
            if verb.name == cmd_name:
                command = import_module(verb.module).command
                assert isinstance(command, click.Command)
                return command
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of verbs from the table, without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(verb.name, verb.summary) for verb in VERBS])


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        number = version("tallystick")
    except PackageNotFoundError:
        number = "(not installed)"
    click.echo(f"{PROGRAM} {number}")
    ctx.exit(0)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    # A variable that a build happens to set must never take the place of a verdict.
    allow_from_autoenv=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """Run a language model, leave a receipt, and let anyone check it bit for bit.

    In a receipt the signer states which model, prompt, engine and sandbox profile gave exactly
    these bytes. `verify` shows who states it, `replay` whether it is so; neither, that it is right.

    Each option can also be set by an environment variable: TALLYSTICK_<COMMAND>_<OPTION>.
    Results go to standard output, everything else to standard error.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code; the entry point of the ``tallystick`` script.

    ``arguments`` are the words after the program's name; None takes them from ``sys.argv``.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    stdout_was_open = _open_standard_streams()
    if _COMPLETION_VARIABLE in os.environ and not words:
        cli.main(words, prog_name=PROGRAM, complete_var=_COMPLETION_VARIABLE)
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:  # a terminal that cannot show a letter must not end the program
        reconfigure(errors="backslashreplace")
    try:
        if not stdout_was_open:
            raise UnavailableError("standard output is closed", hint="send it to /dev/null instead")
        with _terminate_as_interrupt():
            code = _invoke(words)
            sys.stdout.flush()
            return code
    except BrokenPipeError:
        _silence_stdout()
        return _BROKEN_PIPE_EXIT
    except (Exception, KeyboardInterrupt) as error:
        return _report(error, words)


def _open_standard_streams() -> bool:
    """Give descriptors 0 to 2 to the null device where the caller closed them.

    Otherwise the next files to be opened would get these numbers, and a child's streams would
    then take their places. Tells whether standard output was open: a result needs it.
    """
    was_open = True
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            was_open = was_open and number != 1
            descriptor = os.open(os.devnull, os.O_RDONLY if mode == "r" else os.O_WRONLY)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            # It stays open for as long as the program runs, as the stream that it replaces would.
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    return was_open


def _invoke(words: list[str]) -> int:
    """Parse and run; a verb ends by returning, or with ``ctx.exit(code)``."""
    try:
        # make_context parses in place; click's own main() would map errors to other exit codes.
        context = cli.make_context(PROGRAM, list(words), auto_envvar_prefix=ENVIRONMENT_PREFIX)
        with context:
            cli.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    return 0


@contextlib.contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind like Ctrl-C, so that children end and temp files go."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is signal.SIG_DFL:  # nohup and the like keep their say
            signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)


def _report(error: BaseException, words: Sequence[str]) -> int:
    """Tell the user what went wrong, on standard error; return the exit code."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return error.exit_code
    known = _as_known(error)
    if os.environ.get(DEBUG_VARIABLE) == "1":
        import traceback

        traceback.print_exception(error)
    with contextlib.suppress(OSError):
        print_error(known, as_json=asks_for_json(words))
    return known.exit_code


def _as_known(error: BaseException) -> TallystickError:
    """Return the error of our own tree that says what ``error`` means to the user.

    An unexpected exception's own text is not repeated: it may carry private values.
    """
    if isinstance(error, TallystickError):
        return error
    if isinstance(error, click.ClickException):
        return _usage_error(error)
    if isinstance(error, KeyboardInterrupt | click.exceptions.Abort):
        return InterruptedRunError("interrupted")
    if isinstance(error, ModuleNotFoundError):
        if (error.name or "").partition(".")[0] in ENGINE_MODULES:
            return missing_engine(error.name or "")
    elif isinstance(error, MemoryError):
        return RunFailedError("out of memory", hint="use a smaller model, prompt or context")
    elif isinstance(error, OSError) and error.strerror:
        return _system_error(error)
    return RunFailedError(
        f"internal error ({type(error).__name__})",
        hint=f"this is a defect: set {DEBUG_VARIABLE}=1 to see where, and report it",
    )


def _usage_error(error: click.ClickException) -> UsageError:
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return UsageError(_one_line(error.format_message()))
    return UsageError(
        _one_line(error.format_message()),
        expected=_one_line(context.get_usage().removeprefix("Usage: ")),
        hint=f"{context.command_path} --help",
    )


def _one_line(text: str) -> str:
    """Return text that click wrapped as one line."""
    return " ".join(text.split())


def _system_error(error: OSError) -> TallystickError:
    where = f": {os.fsdecode(error.filename)}" if isinstance(error.filename, str | bytes) else ""
    kind = UnavailableError if error.errno in _PLACE_ERRORS else InputError
    return kind(f"{error.strerror}{where}")


def _silence_stdout() -> None:
    """Point standard output at nothing, so that the interpreter's last flush stays quiet."""
    with contextlib.suppress(OSError, ValueError):
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())
        os.close(sink)


if __name__ == "__main__":
    sys.exit(main())
