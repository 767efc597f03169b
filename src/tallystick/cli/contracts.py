"""``tallystick contracts``: documents against their types (docs/spec/documents.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli.options import PATH, json_option
from tallystick.cli.output import emit, note_error
from tallystick.errors import EvidenceError, NothingToVerifyError, TallystickError

if TYPE_CHECKING:
    from tallystick.canonical.json import JSONValue
    from tallystick.contracts.recognise import ValidDocument


@click.group()
def command() -> None:
    """Check documents against the contracts that they follow."""


@command.command()
@click.argument("files", type=PATH, nargs=-1, required=True, metavar="FILE...")
@json_option
@click.pass_context
def validate(context: click.Context, files: Sequence[Path], as_json: bool) -> None:
    """Say what each document is, and whether it is a valid one.

    What it is, its schema field says. Strict: every declared field, no other, and canonical bytes
    wherever a digest is over them. What is wrong is named by field, never by value.

    Exit status: 0 all are valid, 1 a document is not, 4 a file cannot be read or holds no document
    that is known here.
    """
    outcomes = [(path, _outcome(path)) for path in files]
    failed = [(path, found) for path, found in outcomes if isinstance(found, TallystickError)]
    emit(
        {"documents": [_document(path, found) for path, found in outcomes]},
        as_json=as_json,
        lines=[_line(path, found) for path, found in outcomes],
    )
    for path, error in failed:
        note_error(str(path), error)
    codes = {error.exit_code for _, error in failed}
    # One invalid document outweighs files that are none.
    context.exit(EvidenceError.exit_code if EvidenceError.exit_code in codes else max(codes or {0}))


def _outcome(path: Path) -> ValidDocument | TallystickError:
    from tallystick.contracts.recognise import MAX_DOCUMENT_BYTES, validate_document
    from tallystick.store.files import read_given

    try:
        data = read_given(path, max_bytes=MAX_DOCUMENT_BYTES, what="the file")
        _require_document(data)
        return validate_document(data)
    except TallystickError as error:
        return error


def _require_document(data: bytes) -> None:
    # A damaged document still begins as one, and is invalid; this is none at all.
    if not data.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
        raise NothingToVerifyError(
            "not a document that is known here",
            expected="a JSON object with a schema field",
            found="no JSON object" if data else "an empty file",
            hint="name a document of a kind that `tallystick` writes",
        )


def _document(path: Path, found: ValidDocument | TallystickError) -> JSONValue:
    if isinstance(found, TallystickError):
        return {
            "file": str(path),
            "valid": False,
            "message": found.message,
            "expected": found.expected,
            "found": found.found,
        }
    return {
        "file": str(path),
        "valid": True,
        "schema": found.schema,
        "type": found.name,
        "digest": found.digest,
        "bytes": found.size,
        "spelling": found.spelling,
    }


def _line(path: Path, found: ValidDocument | TallystickError) -> str:
    # Why is said once, on standard error.
    if isinstance(found, EvidenceError):
        return f"{path}: not valid"
    if isinstance(found, TallystickError):
        return f"{path}: no document known here"
    return f"{path}: valid {found.schema}, {found.digest}"
