"""``tallystick keys``: make signing keys and show public keys (docs/spec/keys.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from tallystick.attest.keyfiles import (
    MAX_PASSPHRASE,
    create_default_key,
    default_key_path,
    describe_key,
    ensure_public_key,
    write_key,
)
from tallystick.attest.keys import ALGORITHM, SigningKey
from tallystick.cli.options import PATH, json_option
from tallystick.cli.output import emit, note, printable, table
from tallystick.errors import InputError, UsageError
from tallystick.store.home import home

_READ_LIMIT: Final = MAX_PASSPHRASE + 3  # one more than a passphrase and a line end


@click.group(name="keys")
def command() -> None:
    """Make signing keys and show public keys.

    The private key stays in its file; only the public key (PEM) is meant to be handed out.
    """


@command.command()
@click.argument("path", type=PATH, required=False)
@click.option("--passphrase-prompt", is_flag=True, help="Ask for a passphrase, encrypt the key.")
@click.option(
    "--passphrase-file",
    type=PATH,
    metavar="FILE",
    help="Encrypt the key with the passphrase in FILE (one line).",
)
@json_option
def new(
    path: Path | None, passphrase_prompt: bool, passphrase_file: Path | None, as_json: bool
) -> None:
    """Make a signing key in the new file PATH, and its public key beside it.

    Without PATH: the default key, which `run` signs with. No file is ever overwritten.
    """
    passphrase = _passphrase(passphrase_prompt, passphrase_file)
    if path is None:
        path = default_key_path(home())
        create_default_key(home(), passphrase)
    else:
        write_key(path, SigningKey.generate(), passphrase)
    note(f"created {path}: keep it private; hand out the public key file only")
    _show(path, as_json)


@command.command()
@click.argument("path", type=PATH, required=False)
@json_option
def show(path: Path | None, as_json: bool) -> None:
    """Show the public half of the key in PATH (default: the default key), never the secret."""
    _show(default_key_path(home()) if path is None else path, as_json)


def _show(path: Path, as_json: bool) -> None:
    key = describe_key(path)
    public_file = ensure_public_key(path, key.public)
    rows = [
        ("key_id", key.public.key_id),
        ("public_key", key.public.raw.hex()),
        ("algorithm", ALGORITHM),
        ("public_key_file", printable(str(public_file))),
    ]
    emit(
        {**dict(rows), "encrypted": key.encrypted},
        as_json=as_json,
        text=table([*rows, ("encrypted", "yes" if key.encrypted else "no")]),
    )


def _passphrase(prompt: bool, file: Path | None) -> bytes | None:
    if prompt and file is not None:
        raise UsageError("give --passphrase-prompt or --passphrase-file, not both")
    if prompt:
        text: str = click.prompt("Passphrase", hide_input=True, confirmation_prompt=True, err=True)
        return text.encode("utf-8")
    return None if file is None else _first_line(file)


def _first_line(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_READ_LIMIT)
    except OSError as error:
        raise InputError(
            "the passphrase file cannot be read", found=f"{path}: {error.strerror}"
        ) from None
    line = data.removesuffix(b"\n").removesuffix(b"\r")
    if b"\n" in line or not 1 <= len(line) <= MAX_PASSPHRASE:
        raise InputError(
            "the passphrase file does not hold one passphrase",
            expected=f"one line of 1 to {MAX_PASSPHRASE} bytes",
            found=str(path),
        )
    return line
