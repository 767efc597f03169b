"""Scalar fields of documents: what each marker of ``contracts.types`` lets pass, and its schema."""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from tallystick.contracts.types import (
    Base64Text,
    DecimalString,
    IntRange,
    MaxLength,
    OneLine,
    OneOf,
    Pattern,
    UtcTime,
)

JSONSchema = dict[str, Any]

BASE64_REGEX: Final = "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
TIME_REGEX: Final = (
    "[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
    "T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9][.][0-9]{3}Z"
)
# No C0 or C1 control, line or paragraph separator, or bidirectional control.
ONE_LINE_REGEX: Final = (
    r"[^\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]*"
)
DECIMAL_REGEX: Final = "0|[1-9][0-9]*"
_TIME: Final = re.compile(TIME_REGEX)
_BASE64_DIGITS: Final = (string.ascii_letters + string.digits + "+/").encode()
# By the number of "=": the digits whose two, or four, unused bits are zero.
_LAST_DIGITS: Final = (_BASE64_DIGITS, b"AEIMQUYcgkosw048", b"AQgw")


class FieldError(Exception):
    """A value that does not fit; every level on the way out adds its step to ``path``."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(expected)
        self.expected = expected
        self.found = found
        self.path: list[str] = []

    def location(self) -> str:
        """Return the path from the document's root, such as ``core.members[2].name``."""
        return "".join(reversed(self.path)).lstrip(".")


@dataclass(frozen=True, slots=True)
class Plain:
    """A scalar that is the same in Python and in JSON: its exact type, and the test of a value."""

    kind: type
    fits: Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class FieldCodec:
    """The compiled form of one type: JSON to value, value to JSON, and its schema."""

    load: Callable[[Any], Any]
    dump: Callable[[Any], Any]
    schema: JSONSchema
    documents: tuple[type, ...] = ()
    plain: Plain | None = None


def kind_of(value: object) -> str:
    """Say what ``value`` is without saying its value."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return f"a text of {len(value)} characters"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)} items"
    if isinstance(value, dict):
        return f"an object of {len(value)} keys"
    names = {
        bool: "a boolean",
        int: "an integer",
        float: "a number with a fraction or exponent",
    }
    return names.get(type(value), f"a Python {type(value).__name__}")


def exact(
    kind: type, fits: Callable[[Any], object], expected: str, schema: JSONSchema
) -> FieldCodec:
    """Return the codec of a scalar that is the same in Python and in JSON."""

    def same(value: Any) -> Any:
        if type(value) is kind and fits(value):
            return value
        raise FieldError(expected, kind_of(value))

    return FieldCodec(same, same, schema, plain=Plain(kind, fits))


def text_codec(mark: Any) -> FieldCodec:
    """Return the codec of a text field. Raises TypeError for a marker that is not for texts."""
    schema: JSONSchema = {"type": "string"}
    if isinstance(mark, OneOf):
        values = mark.values
        schema = {"const": values[0]} if len(values) == 1 else {"enum": list(values)}
        return exact(str, frozenset(values).__contains__, " or ".join(values), schema)
    if isinstance(mark, MaxLength):
        limit = mark.limit
        schema["maxLength"] = limit
        return exact(
            str,
            lambda value: len(value) <= limit,
            f"a text of at most {limit} characters",
            schema,
        )
    if isinstance(mark, OneLine):
        limit, clean = mark.limit, re.compile(ONE_LINE_REGEX).fullmatch
        schema |= {"maxLength": limit, "pattern": f"^{ONE_LINE_REGEX}$"}
        return exact(
            str,
            lambda value: len(value) <= limit and clean(value) is not None,
            f"one line of at most {limit} characters, none of them a control character",
            schema,
        )
    if isinstance(mark, Base64Text):
        limit = mark.limit
        schema |= {
            "contentEncoding": "base64",
            "maxLength": limit,
            "pattern": f"^{BASE64_REGEX}$",
        }
        return exact(
            str,
            lambda value: len(value) <= limit and _is_base64(value),
            f"canonical base64 of at most {limit} characters",
            schema,
        )
    if isinstance(mark, UtcTime):
        schema |= {"format": "date-time", "pattern": f"^{TIME_REGEX}$"}
        return exact(str, _is_time, "a moment as YYYY-MM-DDTHH:MM:SS.mmmZ", schema)
    if isinstance(mark, Pattern):
        bound = mark.max_length
        # The look-ahead refuses a text that is too long at once; so all of the test runs in C.
        within = rf"(?!(?s:.{{{bound + 1}}}))(?:{mark.regex})"
        schema |= {"maxLength": bound, "pattern": f"^(?:{mark.regex})$"}
        return exact(
            str,
            re.compile(within, re.ASCII).fullmatch,
            f"a text of at most {bound} characters that matches {mark.regex}",
            schema,
        )
    raise TypeError(f"no text can carry the marker {mark!r}")


def _is_base64(text: str) -> bool:
    """Say whether ``text`` is the one spelling of its bytes: whole groups, no unused bits set.

    Looked at and not decoded: an opening holds some fifty thousand characters of it.
    """
    data = text.encode("ascii", errors="replace")  # a question mark is no digit of base64
    digits = data.rstrip(b"=")
    padding = len(data) - len(digits)
    return (
        len(data) % 4 == 0
        and digits.translate(None, _BASE64_DIGITS) == b""
        and padding < len(_LAST_DIGITS)
        and (padding == 0 or digits[-1:] in _LAST_DIGITS[padding])
    )


def base64_size(text: str) -> int:
    """Return how many bytes a base64 text encodes, which has passed as a document's field."""
    return len(text) // 4 * 3 - text[-2:].count("=")


def _is_time(text: str) -> bool:
    if _TIME.fullmatch(text) is None:
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def integer_codec(mark: Any) -> FieldCodec:
    """Return the codec of an integer field. Raises TypeError for other markers."""
    if isinstance(mark, IntRange):
        low, high = mark.low, mark.high
        schema: JSONSchema = {"type": "integer", "minimum": low, "maximum": high}
        return exact(
            int,
            lambda value: low <= value <= high,
            f"an integer within {low}..{high}",
            schema,
        )
    if isinstance(mark, DecimalString):
        return _decimal(mark.high)
    raise TypeError(f"no integer can carry the marker {mark!r}")


def _decimal(high: int) -> FieldCodec:
    digits = len(str(high))
    full = re.compile(DECIMAL_REGEX).fullmatch
    expected = f"an integer within 0..{high} as a decimal text without leading zeros"

    def load(value: Any) -> int:
        if type(value) is str and len(value) <= digits and full(value) is not None:
            number = int(value)
            if number <= high:
                return number
        raise FieldError(expected, kind_of(value))

    def dump(value: Any) -> str:
        if type(value) is int and 0 <= value <= high:
            return str(value)
        raise FieldError(f"an integer within 0..{high}", kind_of(value))

    schema = {
        "type": "string",
        "maxLength": digits,
        "pattern": f"^(?:{DECIMAL_REGEX})$",
    }
    return FieldCodec(load, dump, schema)
