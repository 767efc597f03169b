"""Strict JSON in, canonical JSON (RFC 8785) out (docs/spec/json.md).

The library's parser does the work; what it would let pass is refused here: other encodings, a
byte-order mark, duplicate keys, NaN and Infinity, integers that a double cannot hold exactly,
numbers that overflow, lone surrogates, deep nesting and oversized documents. Error texts give
positions and at most one shortened key, never values.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Final, NoReturn, TypeAlias, cast

import rfc8785

from tallystick.canonical.spelling import outside_texts, spelled_canonically
from tallystick.errors import EvidenceError

JSONValue: TypeAlias = bool | int | float | str | list["JSONValue"] | dict[str, "JSONValue"] | None

MAX_DEPTH: Final = 64
MAX_SAFE_INTEGER: Final = 2**53 - 1
_MAX_INTEGER_CHARACTERS: Final = 17  # a sign and 16 digits; longer texts need not be converted
_BOM: Final = b"\xef\xbb\xbf"
_NOT_STRUCTURE: Final = bytes(byte for byte in range(256) if byte not in b"[]{},")
_TEXTS_AND_WORDS: Final = frozenset({str, bool, type(None)})
_CONTAINERS: Final = frozenset({dict, list})
_PLAIN_KINDS: Final = _TEXTS_AND_WORDS | _CONTAINERS | {int}
_SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much a document may hold at most: ``values`` of any kind, and of these ``containers``.

    Nor has it more texts than values, keys included. All are counted before the first value is
    built, which takes a hundred times the memory of its text. The default is for the largest
    document of ours, a dataset manifest with 100000 objects.
    """

    values: int = 2**21
    containers: int = 2**17


BOUNDS: Final = Bounds()


def parse_strict(
    data: bytes,
    *,
    max_bytes: int,
    max_depth: int = MAX_DEPTH,
    bounds: Bounds = BOUNDS,
) -> JSONValue:
    """Parse one JSON document of at most ``max_bytes`` bytes and ``max_depth`` nested containers.

    It holds at most what ``bounds`` says. Raises EvidenceError for anything that docs/spec/json.md
    refuses.
    """
    text = _text(data, max_bytes)
    _check_structure(data, max_depth, bounds)
    value = _parse(text, max_depth, _DECODER)
    if _SURROGATE_ESCAPE.search(text) is not None:
        _refuse_lone_surrogates(value)
    return value


def _text(data: bytes, max_bytes: int) -> str:
    if len(data) > max_bytes:
        raise EvidenceError(
            "the JSON document is too large",
            expected=f"at most {max_bytes} bytes",
            found=f"{len(data)} bytes",
        )
    if data.startswith(_BOM):
        raise EvidenceError(
            "the JSON document starts with a byte-order mark",
            expected="UTF-8 without one",
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise EvidenceError(
            "the JSON document is not UTF-8",
            found=f"an invalid byte at offset {error.start}",
        ) from None


def _parse(text: str, max_depth: int, decoder: json.JSONDecoder) -> JSONValue:
    try:
        return cast(JSONValue, decoder.decode(text))
    except json.JSONDecodeError as error:
        # The library's messages are fixed phrases: they hold no piece of the document.
        raise EvidenceError(
            "not a JSON document",
            found=f"{error.msg.removesuffix(' at')} at character {error.pos}",
        ) from None
    except RecursionError:
        raise EvidenceError(
            "the JSON document is nested too deeply for this process",
            expected=f"at most {max_depth} levels and a caller with stack to spare",
        ) from None


def jcs(value: JSONValue) -> bytes:
    """Return the canonical (RFC 8785) bytes of ``value``.

    Raises EvidenceError when ``value`` has no canonical form: integers beyond 2^53-1, numbers
    that are not finite, lone surrogates, keys that are not texts, other types.
    """
    try:
        if _is_plain(value):
            return _PLAIN_ENCODER.encode(value).encode("utf-8")
        return rfc8785.dumps(value)
    except (ValueError, RecursionError) as error:
        raise EvidenceError(
            "the value has no canonical JSON form", found=type(error).__name__
        ) from None


def _is_plain(value: JSONValue) -> bool:
    """Say whether the standard encoder, sorting by code point, gives the canonical bytes.

    It does unless a number is no exact integer or a key leaves ASCII. Our own documents are like
    that, and the standard encoder, written in C, makes a verification several times faster.
    """
    if type(value) is dict:
        keys = value.keys()
        if not {*map(type, keys)} <= {str} or not "".join(keys).isascii():
            return False
        return _are_plain([*value.values()])
    return _are_plain(value if type(value) is list else [value])


def _are_plain(values: list[JSONValue]) -> bool:
    """Look at all values of a container at once: there may be thousands of token ids."""
    kinds = {*map(type, values)}
    if kinds <= _TEXTS_AND_WORDS:
        return True
    if not kinds <= _PLAIN_KINDS:
        return False
    integers = [value for value in values if type(value) is int]
    if integers and not -MAX_SAFE_INTEGER <= min(integers) <= max(integers) <= MAX_SAFE_INTEGER:
        return False
    return all(_is_plain(value) for value in values if type(value) in _CONTAINERS)


def parse_canonical(
    data: bytes,
    *,
    max_bytes: int,
    max_depth: int = MAX_DEPTH,
    bounds: Bounds = BOUNDS,
) -> JSONValue:
    """Parse a document whose bytes must be its own canonical form.

    Raises EvidenceError as :func:`parse_strict` does, and when ``jcs(parse(data)) != data``.
    """
    outside = outside_texts(data, texts=bounds.values) if len(data) <= max_bytes else None
    if outside is not None and spelled_canonically(outside):
        try:  # nothing but the order of the keys is left to decide, and the parser sees that
            text = _text(data, max_bytes)
            _check_structure(outside, max_depth, bounds)
            return _parse(text, max_depth, _ORDERED_DECODER)
        except _OrderError:
            pass
    value = parse_strict(data, max_bytes=max_bytes, max_depth=max_depth, bounds=bounds)
    canonical = jcs(value)
    if canonical != data:
        raise EvidenceError(
            "the JSON document is not in its canonical form",
            expected="RFC 8785 bytes: sorted keys, no white space, one spelling per value",
            found=f"a difference at byte {_first_difference(canonical, data)}",
        )
    return value


def shorten(key: str) -> str:
    """Return ``key`` quoted, escaped and cut to 40 characters, fit for an error text."""
    return ascii(key if len(key) <= 40 else key[:40] + "...")


def _first_difference(left: bytes, right: bytes) -> int:
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))


def _check_structure(data: bytes, max_depth: int, bounds: Bounds) -> None:
    """Bound depth and number of values before anything is built: a few passes in C, no recursion.

    What is counted is right up to where a text stops being JSON, and there the parser stops.
    """
    containers = data.count(b"[") + data.count(b"{")
    few = min(max_depth, bounds.containers)
    if containers <= few and data.count(b",") <= bounds.values - few:
        return
    structure = _structure(data, bounds)
    containers = structure.count(b"[") + structure.count(b"{")
    if containers > bounds.containers:
        raise _too_many("arrays and objects", bounds.containers, containers)
    values = containers + structure.count(b",")
    if values > bounds.values:
        raise _too_many("values", bounds.values, values)
    depth = 0
    for byte in structure.replace(b",", b""):
        depth += 1 if byte in b"[{" else -1
        if depth > max_depth:
            raise EvidenceError(
                "the JSON document is nested too deeply",
                expected=f"at most {max_depth} levels",
                found=f"level {depth}",
            )
        if depth < 0:
            return


def _structure(data: bytes, bounds: Bounds) -> bytes:
    """Return the brackets and commas of ``data`` that stand in no string."""
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    quotes = plain.count(b'"')
    if quotes > 2 * bounds.values:
        raise _too_many("texts", bounds.values, quotes // 2)
    return b"".join(plain.split(b'"')[::2]).translate(None, _NOT_STRUCTURE)


def _too_many(what: str, limit: int, found: int) -> EvidenceError:
    return EvidenceError(
        f"the JSON document has too many {what}",
        expected=f"at most {limit}",
        found=f"{found}",
    )


def _refuse_lone_surrogates(value: JSONValue) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise EvidenceError(
            "a text in the JSON document holds half of a surrogate pair",
            expected="Unicode scalar values only",
        ) from None


def _object(pairs: list[tuple[str, JSONValue]]) -> dict[str, JSONValue]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise EvidenceError("a JSON object repeats a key", found=shorten(key))
            seen.add(key)
    return result


def _integer(text: str) -> int:
    if len(text) <= _MAX_INTEGER_CHARACTERS:
        value = int(text)
        if -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
            return value
    raise EvidenceError(
        "a JSON integer is out of range",
        expected="-(2^53-1) to 2^53-1; larger numbers travel as decimal strings",
        found=f"a number of {len(text)} characters",
    )


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise EvidenceError("a JSON number is out of range", expected="a finite double")
    return value


class _OrderError(Exception):
    """The keys of an object are not in their canonical order, or one is there twice."""


def _ordered_object(pairs: list[tuple[str, JSONValue]]) -> dict[str, JSONValue]:
    result = dict(pairs)
    keys = [*result]
    order = sorted(keys) if "".join(keys).isascii() else sorted(keys, key=_utf16)
    if keys != order or len(keys) != len(pairs):
        raise _OrderError
    return result


def _utf16(key: str) -> bytes:
    return key.encode("utf-16-be")


def _constant(name: str) -> NoReturn:
    raise EvidenceError("not a JSON number", expected="a finite number", found=name)


_PLAIN_ENCODER: Final = json.JSONEncoder(
    ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False
)
_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=_integer,
    parse_float=_float,
    parse_constant=_constant,
)
# For a text that is spelled canonically: its integers are short.
_ORDERED_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_ordered_object, parse_constant=_constant
)
