"""Passphrases of private key files: asked on the terminal, or read from a file, never an argument.

An argument or an environment variable would show the passphrase to other processes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from tallystick.attest.keyfiles import MAX_PASSPHRASE, PassphraseSource
from tallystick.cli.options import PATH
from tallystick.errors import InputError, UsageError
from tallystick.store.files import read_given

F = TypeVar("F", bound=Callable[..., Any])


def passphrase_options(function: F) -> F:
    """Add the two ways to give a key's passphrase: ``passphrase_prompt``, ``passphrase_file``."""
    add_prompt = click.option(
        "--passphrase-prompt", is_flag=True, help="Ask for the passphrase of the signing key."
    )
    add_file = click.option(
        "--passphrase-file",
        type=PATH,
        metavar="FILE",
        help="Open the signing key with the passphrase in FILE, or a pipe (one line).",
    )
    return add_prompt(add_file(function))


def new_passphrase(*, prompt: bool, file: Path | None) -> bytes | None:
    """Return the passphrase of a key to be made, asked for twice; None when none was asked for.

    Raises UsageError when both ways were given, InputError when the file holds no passphrase.
    """
    _check(prompt, file)
    if prompt:
        return _ask(confirm=True)
    return None if file is None else _first_line(file)


def passphrase_source(*, prompt: bool, file: Path | None) -> PassphraseSource | None:
    """Return what opens an existing key, used only when the key is encrypted; None for no way.

    Raises UsageError when both ways were given.
    """
    _check(prompt, file)
    if prompt:
        return lambda: _ask(confirm=False)
    return None if file is None else lambda: _first_line(file)


def _check(prompt: bool, file: Path | None) -> None:
    if prompt and file is not None:
        raise UsageError("give --passphrase-prompt or --passphrase-file, not both")


def _ask(*, confirm: bool) -> bytes:
    text: str = click.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm, err=True)
    return text.encode("utf-8")


def _first_line(path: Path) -> bytes:
    # Room for a passphrase, a line end, and one more.
    data = read_given(path, max_bytes=MAX_PASSPHRASE + 2, what="the passphrase file", pipe="wait")
    line = data.removesuffix(b"\n").removesuffix(b"\r")
    if b"\n" in line or not 1 <= len(line) <= MAX_PASSPHRASE:
        raise InputError(
            "the passphrase file does not hold one passphrase",
            expected=f"one line of 1 to {MAX_PASSPHRASE} bytes",
            found=str(path),
        )
    return line
