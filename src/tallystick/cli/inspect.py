"""``tallystick inspect``: show what a receipt says, without judging it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli.options import PATH, json_option
from tallystick.cli.output import emit, note, table
from tallystick.contracts.codec import encode
from tallystick.receipts.inspect import ReceiptSummary, inspect_receipt
from tallystick.store.sets import read_receipt

if TYPE_CHECKING:
    from tallystick.canonical.json import JSONValue


@click.command(name="inspect")
@click.argument("path", type=PATH)
@json_option
def command(path: Path, as_json: bool) -> None:
    """Show the receipt at PATH: a set's directory, its <id>.complete, or the receipt file.

    Nothing is checked but the form: `tallystick verify` judges.
    """
    summary = inspect_receipt(read_receipt(path))
    document: JSONValue = {
        "receipt_digest": summary.receipt_digest,
        "core_digest": summary.core_digest,
        "chain_digest": summary.chain_digest,
        "proves": [*summary.proves],
        "does_not_prove": [*summary.does_not_prove],
        "receipt": encode(summary.receipt),
        "verified": False,
    }
    emit(document, as_json=as_json, lines=_words(summary))
    note("not verified: `tallystick verify` checks it")


def _words(summary: ReceiptSummary) -> list[str]:
    lines = [*table(summary.rows()), "", "Once verified, it proves:"]
    lines += [f"  - {line}" for line in summary.proves]
    return [*lines, "It does not prove:", *(f"  - {line}" for line in summary.does_not_prove)]
