"""``tallystick keys``: make signing keys, show public keys, hand out a bundle's key."""

from __future__ import annotations

from pathlib import Path

import click

from tallystick.attest.keyfiles import create_default_key, default_key_path, write_key
from tallystick.attest.keys import ALGORITHM, SigningKey
from tallystick.cli.options import PATH, json_option
from tallystick.cli.output import emit, emit_json, note, printable, table
from tallystick.cli.passphrase import new_passphrase
from tallystick.store.home import home
from tallystick.worker.keys import show_key


@click.group(name="keys")
def command() -> None:
    """Make signing keys, show public keys, and hand out the key of one bundle.

    The private key stays in its file; only the public key (PEM) is meant to be handed out.
    """


@command.command()
@click.argument("path", type=PATH, required=False)
@click.option("--passphrase-prompt", is_flag=True, help="Ask for a passphrase, encrypt the key.")
@click.option(
    "--passphrase-file",
    type=PATH,
    metavar="FILE",
    help="Encrypt the key with the passphrase in FILE, or a pipe (one line).",
)
@json_option
def new(
    path: Path | None, passphrase_prompt: bool, passphrase_file: Path | None, as_json: bool
) -> None:
    """Make a signing key in the new file PATH.

    Its public key is written beside it. Without PATH: the default key, which `run` signs with. No
    file is ever overwritten.
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
    """Show the public half of a key, never the secret.

    Without PATH: that of the default key.
    """
    _show(path, as_json)


@command.command()
@click.argument("path", type=PATH, metavar="SET")
@click.option(
    "--audit-key-file",
    type=PATH,
    metavar="FILE",
    help="32 raw bytes that sealed the bundle. Default: your own audit key.",
)
@click.option(
    "--output",
    type=PATH,
    required=True,
    metavar="FILE",
    help="New file for the bundle's key, outside SET.",
)
@json_option
def bundle(path: Path, audit_key_file: Path | None, output: Path, as_json: bool) -> None:
    """Write the key of the bundle of SET, for one auditor.

    It opens no other bundle. Who has it sees prompt and answer, and can check and replay the
    receipt with --bundle-key-file.
    """
    from tallystick.attest.auditkeys import default_audit_key_path, read_audit_key
    from tallystick.receipts.files import hand_out_bundle_key, set_directory

    key = read_audit_key(audit_key_file or default_audit_key_path(home()), (set_directory(path),))
    location = hand_out_bundle_key(path, key, output)
    note(f"created {output}: it opens the bundle of {location.set_id}, and no other")
    if as_json:
        emit_json({"receipt_id": location.set_id, "bundle_key_file": printable(str(output))})


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
        lines=table([*rows, ("encrypted", "yes" if key.encrypted else "no")]),
    )
