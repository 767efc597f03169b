"""Scalar types of the documents, as annotations that the codec and the JSON Schemas both read.

A document is a frozen, slotted dataclass whose field types come from here. ``U64`` values are
``int`` in Python and decimal strings in JSON, because JSON numbers are exact only to 2^53-1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True, slots=True)
class Pattern:
    """A text that matches ``regex`` as a whole and has at most ``max_length`` characters.

    ``regex`` uses only what Python and ECMA-262 read alike (no ``\\d``, no look-around): the JSON
    Schemas carry it too.
    """

    regex: str
    max_length: int


@dataclass(frozen=True, slots=True)
class MaxLength:
    """A text (or list) of at most ``limit`` characters (or items)."""

    limit: int


@dataclass(frozen=True, slots=True)
class OneLine:
    """A text of at most ``limit`` characters that no terminal takes for a command or a new line.

    It has no control characters, no line or paragraph separators, and no bidirectional controls.
    """

    limit: int


@dataclass(frozen=True, slots=True)
class KeyedBy:
    """A list of documents that travels as one JSON object of at most ``limit`` members.

    The field ``key`` of each item is the member's name and is not repeated in its value. In Python
    the items are in ascending order of their keys (code points), each key once.
    """

    key: str
    limit: int


@dataclass(frozen=True, slots=True)
class Base64Text:
    """Padded standard base64 in its one canonical spelling, of at most ``limit`` characters."""

    limit: int


@dataclass(frozen=True, slots=True)
class UtcTime:
    """An existing moment as ``YYYY-MM-DDTHH:MM:SS.mmmZ`` (RFC 3339, UTC, milliseconds)."""


@dataclass(frozen=True, slots=True)
class IntRange:
    """An integer within ``low``..``high``, both included; a JSON number."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class DecimalString:
    """An integer within 0..``high`` that travels as a decimal string without leading zeros."""

    high: int


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of the listed texts."""

    values: tuple[str, ...]


Digest = Annotated[str, Pattern(r"sha256:[0-9a-f]{64}", 71)]
Hex32 = Annotated[str, Pattern(r"[0-9a-f]{64}", 64)]
Base64 = Annotated[str, Base64Text(64 * 1024 * 1024)]
UuidText = Annotated[
    str,
    Pattern(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", 36),
]
Timestamp = Annotated[str, UtcTime()]
Temperature = Annotated[str, Pattern(r"0|[01]\.[0-9]{0,3}[1-9]|1|2", 6)]  # one spelling per value
ShortText = Annotated[str, MaxLength(200)]
LineText = Annotated[str, OneLine(200)]
LongText = Annotated[str, MaxLength(1024 * 1024)]
U8 = Annotated[int, IntRange(0, 2**8 - 1)]
U32 = Annotated[int, IntRange(0, 2**32 - 1)]
Count = Annotated[int, IntRange(1, 2**32 - 1)]
U64 = Annotated[int, DecimalString(2**64 - 1)]
TokenId = Annotated[int, IntRange(0, 2**31 - 1)]
UnixSeconds = Annotated[int, IntRange(0, 2**40)]
