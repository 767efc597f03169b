"""``tallystick keys``: make signing keys and show public keys (docs/spec/keys.md)."""

from __future__ import annotations

from pathlib import Path

import click

from tallystick.attest.keyfiles import create_default_key, default_key_path, write_key
from tallystick.attest.keys import ALGORITHM, SigningKey
from tallystick.cli.options import PATH, json_option
from tallystick.cli.output import emit, note, printable, table
from tallystick.cli.passphrase import new_passphrase
from tallystick.store.home import home
from tallystick.worker.keys import show_key


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
    passphrase = new_passphrase(prompt=passphrase_prompt, file=passphrase_file)
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
    _show(path, as_json)


def _show(path: Path | None, as_json: bool) -> None:
    key = show_key(path)
    rows = [
        ("key_id", key.public.key_id),
        ("public_key", key.public.raw.hex()),
        ("algorithm", ALGORITHM),
        ("public_key_file", printable(str(key.public_key_file))),
    ]
    emit(
        {**dict(rows), "encrypted": key.encrypted},
        as_json=as_json,
        text=table([*rows, ("encrypted", "yes" if key.encrypted else "no")]),
    )
