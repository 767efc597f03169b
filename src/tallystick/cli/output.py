"""What the verbs print: results to standard output, words to standard error.

Text that came from a file or a model may hold terminal control characters: everything printed
here passes through :func:`printable`, so that a hostile receipt cannot repaint the screen.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import click

from tallystick.errors import TallystickError

if TYPE_CHECKING:
    from tallystick.canonical.json import JSONValue

_KEPT_CONTROLS: Final = "\n\t"
# C1 controls, bidirectional overrides and isolates: they change what a line seems to say.
_DECEPTIVE: Final = frozenset(
    [*range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
)


def printable(text: str) -> str:
    """Return ``text`` with control characters and lone surrogates written as escapes."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(character if _is_plain(character) else _escape(character) for character in text)


def _is_plain(character: str) -> bool:
    code = ord(character)
    if code < 0x20:
        return character in _KEPT_CONTROLS
    return code not in _DECEPTIVE and not 0xD800 <= code <= 0xDFFF


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def emit(document: JSONValue, *, as_json: bool, text: str) -> None:
    """Write a verb's result: ``document`` as one line of canonical JSON, or ``text`` for people."""
    if as_json:
        emit_json(document)
    else:
        click.echo(printable(text))


def emit_json(document: JSONValue) -> None:
    """Write one JSON value as one line of canonical JSON (RFC 8785)."""
    click.echo(_canonical(document))


def note(text: str) -> None:
    """Write words that are not the result (what is being done, where a key was created)."""
    click.echo(printable(text), err=True)


def table(rows: Sequence[tuple[str, str]]) -> str:
    """Return name and value pairs as lines with the values aligned."""
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name.ljust(width)}  {value}".rstrip() for name, value in rows)


def asks_for_json(words: Sequence[str], environment: Mapping[str, str] = os.environ) -> bool:
    """Say whether a command line asks for JSON, even one that could not be parsed."""
    options = words[: words.index("--")] if "--" in words else words
    if "--json" in options:
        return True
    path: list[str] = []
    for word in words[:2]:
        path.append(word.upper().replace("-", "_"))
        value = environment.get("_".join(["TALLYSTICK", *path, "JSON"]), "")
        if value.lower() in {"1", "true", "t", "yes", "y", "on"}:
            return True
    return False


def print_error(error: TallystickError, *, as_json: bool) -> None:
    """Write an error to standard error, as words or as ``{"error": {...}}``."""
    if not as_json:
        click.echo(f"error: {printable(str(error))}", err=True)
        return
    body: dict[str, JSONValue] = {
        "type": type(error).__name__,
        "exit_code": error.exit_code,
        "message": error.message,
        "expected": error.expected,
        "found": error.found,
        "hint": error.hint,
    }
    click.echo(_canonical({"error": {k: _encodable(v) for k, v in body.items()}}), err=True)


def _canonical(document: JSONValue) -> bytes:
    from tallystick.canonical.json import jcs  # `--help` does without it

    return jcs(document)


def _encodable(value: JSONValue) -> JSONValue:
    """Return ``value`` with lone surrogates (from undecodable file names) made visible."""
    return printable(value) if isinstance(value, str) else value
