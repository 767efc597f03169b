"""``tallystick diff``: compare two receipts field by field."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.audit.diff import ReceiptDiff, diff_receipts
from tallystick.cli.options import PATH, json_option
from tallystick.cli.output import emit
from tallystick.receipts.report import as_document
from tallystick.store.sets import read_receipt

if TYPE_CHECKING:
    from tallystick.canonical.json import JSONValue


@click.command(name="diff")
@click.argument("left", type=PATH, metavar="A")
@click.argument("right", type=PATH, metavar="B")
@json_option
@click.pass_context
def command(context: click.Context, left: Path, right: Path, as_json: bool) -> None:
    """Compare the receipts at A and B (directories, or receipt files) field by field.

    Exit status: 0 the cores are equal, 1 they differ. Observed fields differ from run to run.
    """
    result = diff_receipts(read_receipt(left), read_receipt(right))
    emit(_document(result), as_json=as_json, lines=_words(result))
    context.exit(result.exit_code)


def _document(result: ReceiptDiff) -> JSONValue:
    document = as_document(result)
    assert isinstance(document, dict)
    return {**document, "first": as_document(result.first)}


def _words(result: ReceiptDiff) -> list[str]:
    lines = [f"cores {'equal' if result.core_equal else 'differ'}"]
    if result.first is not None:
        lines.append(f"first difference: {result.first.field}")
    if not result.core_equal and not result.same_request:
        lines.append("the requests differ (or their blinds do)")
    if not result.core_equal and not result.same_runtime_class:
        lines.append("the runtime classes differ: differing outputs mean nothing")
    for item in result.differences:
        lines += [f"  {item.field}", f"    A: {item.left}", f"    B: {item.right}"]
    return lines
