"""What the verbs print: results to standard output, words to standard error.

Words are handed over line by line, and every line passes through :func:`printable`: whatever text
of a receipt, a file's name or an error stands in it, it stays that one line and moves no cursor.
Only a model's answer keeps its own line breaks (:func:`printable_text`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import click

from tallystick.errors import TallystickError

if TYPE_CHECKING:
    from tallystick.canonical.json import JSONValue

_TEXT_CONTROLS: Final = frozenset("\n\t")
# C1 controls, line and paragraph separators, bidirectional marks, overrides and isolates: they
# change what a line seems to say.
_DECEPTIVE: Final = frozenset(
    [*range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)]
)
_JSON_ESCAPES: Final = {code: f"\\u{code:04x}" for code in _DECEPTIVE}
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def printable(line: str) -> str:
    """Return ``line`` as one line: control characters, line breaks and lone surrogates escaped."""
    if line.isascii() and line.isprintable():
        return line
    return "".join(character if _is_plain(character) else _escape(character) for character in line)


def printable_text(text: str) -> str:
    """Return ``text``, which may have many lines: line feeds and tabs stay, the rest is escaped."""
    return "".join(
        character if character in _TEXT_CONTROLS else printable(character) for character in text
    )


def _is_plain(character: str) -> bool:
    code = ord(character)
    return code >= 0x20 and code not in _DECEPTIVE and not 0xD800 <= code <= 0xDFFF


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def emit(document: JSONValue, *, as_json: bool, lines: Sequence[str]) -> None:
    """Write a verb's result: ``document`` as one line of JSON, or ``lines`` for people."""
    if as_json:
        emit_json(document)
    else:
        click.echo("\n".join(map(printable, lines)))


def emit_json(document: JSONValue) -> None:
    """Write one JSON value as one line: canonical JSON (RFC 8785), deceptive characters escaped."""
    click.echo(_line(document))


def note(line: str) -> None:
    """Write a line that is not the result (what is being done, where a key was created)."""
    click.echo(printable(line), err=True)


def note_new_key(signer: str) -> None:
    """Say on stderr that the default signing key was made just now; ``signer`` is its id."""
    note(f"made a signing key, because there was none: {signer}")


def note_error(what: str, error: TallystickError) -> None:
    """Write an error that does not end the program, after what it is about."""
    first, *more = error.lines()
    for line in (f"{what}: {first}", *more):
        note(line)


def table(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Return name and value pairs as lines with the values aligned."""
    width = max((len(name) for name, _ in rows), default=0)
    return [f"{name.ljust(width)}  {value}".rstrip() for name, value in rows]


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
        note_error("error", error)
        return
    body: dict[str, JSONValue] = {
        "type": type(error).__name__,
        "exit_code": error.exit_code,
        "message": error.message,
        "expected": error.expected,
        "found": error.found,
        "hint": error.hint,
    }
    shown = {name: printable(v) if isinstance(v, str) else v for name, v in body.items()}
    click.echo(_line({"error": shown}), err=True)


def _line(document: JSONValue) -> str:
    from tallystick.canonical.json import jcs  # `--help` does without it

    # Outside of texts JSON is ASCII, so these are in texts, where the escape means the same.
    return jcs(_encodable(document)).decode("utf-8").translate(_JSON_ESCAPES)


def _encodable(value: JSONValue) -> JSONValue:
    """Return ``value`` with lone surrogates (from undecodable file names) made visible."""
    if isinstance(value, str):
        return _SURROGATE.sub(lambda found: _escape(found[0]), value)
    if isinstance(value, list | tuple):
        return [_encodable(item) for item in value]
    if isinstance(value, dict):
        return {name: _encodable(item) for name, item in value.items()}
    return value
