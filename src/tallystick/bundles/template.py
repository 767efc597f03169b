"""Prompt templates: text with named fields (docs/spec/bundles.md#prompt-templates)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from tallystick.errors import InputError

MAX_TEMPLATE_BYTES: Final = 256 * 1024
MAX_DESCRIPTION_BYTES: Final = 64 * 1024
MAX_PROMPT_BYTES: Final = 1024 * 1024
FIELDS: Final = ("dataset", "split", "tile", "z", "x", "y", "description")
_PART: Final = re.compile(r"\{\{|\}\}|\{([a-z]+)\}|[{}]")


def decode_text(data: bytes, *, what: str, max_bytes: int) -> str:
    """Return ``data`` as text. Raises InputError when it is too large, not UTF-8, or has a NUL."""
    if len(data) > max_bytes:
        raise InputError(f"{what} is too large", expected=f"at most {max_bytes} bytes")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{what} is not UTF-8", found=f"an invalid byte at offset {error.start}"
        ) from None
    if "\x00" in text:
        raise InputError(f"{what} contains a NUL character")
    return text


def template_fields(text: str) -> frozenset[str]:
    """Return the names of the fields in a template.

    Raises InputError for a brace that is neither doubled nor around one of FIELDS.
    """
    names: set[str] = set()
    for part in _PART.finditer(text):
        name = part[1]
        if name in FIELDS:
            names.add(name)
        elif part[0] not in ("{{", "}}"):
            line = text.count("\n", 0, part.start()) + 1
            raise InputError(
                f"the prompt template has a brace in line {line} that means nothing",
                expected=f"one of {{{'}, {'.join(FIELDS)}}}, or {{{{ and }}}} for the braces",
            )
    return frozenset(names)


def render(text: str, values: Mapping[str, str]) -> str:
    """Return a template with its fields replaced, each once: a value is never read as a template.

    Raises InputError for a template that is not one, a field without a value, and a prompt that is
    empty or longer than MAX_PROMPT_BYTES.
    """
    missing = sorted(template_fields(text) - values.keys())
    if missing:
        raise InputError(f"the prompt template asks for a {missing[0]}, and the bundle has none")
    prompt = _PART.sub(lambda part: part[0][0] if part[1] is None else values[part[1]], text)
    if not 0 < len(prompt.encode("utf-8")) <= MAX_PROMPT_BYTES:
        raise InputError(
            "the rendered prompt is empty or too long", expected=f"1 to {MAX_PROMPT_BYTES} bytes"
        )
    return prompt
