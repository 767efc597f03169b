"""Strict YAML in: settings that people write, read as the JSON values that they look like.

Only what JSON can say is accepted: one document of mappings, lists, texts, integers, true, false
and null. Tags, anchors, aliases, merge keys, duplicate keys, dates and fractions are refused, and
a word such as ``yes`` is a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from tallystick.canonical.json import JSONValue, shorten
from tallystick.errors import InputError

MAX_DEPTH: Final = 16
_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]{0,15}")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_CONSTANTS: Final[dict[str, JSONValue]] = {"true": True, "false": False, "null": None, "~": None}
# What a reader of YAML 1.1 takes for something else than a text or an integer.
_AMBIGUOUS: Final = re.compile(
    r"[-+]?[0-9.][0-9a-fA-FxXoO_.:+-]*(?:[Tt ][0-9:.Z+ -]+)?|<<|=|[-+]?[.](?i:inf|nan)"
)


def parse_yaml(data: bytes, *, max_bytes: int, where: str) -> JSONValue:
    """Return the one document in ``data`` (UTF-8). ``where`` begins each error's text.

    Raises InputError with the line of what is not accepted, and when the library that reads YAML
    is not installed.
    """
    if len(data) > max_bytes:
        raise InputError(
            f"{where}: too large", expected=f"at most {max_bytes} B", found=f"{len(data)} B"
        )
    try:
        import yaml
    except ModuleNotFoundError:
        raise InputError(
            f"{where}: nothing here can read YAML",
            expected="the Python module yaml",
            hint="pip install 'tallystick[worker]'",
        ) from None
    try:
        text = data.decode("utf-8")
        events = _to_depth(yaml.parse(text, Loader=yaml.SafeLoader))
    except UnicodeDecodeError:
        raise InputError(f"{where}: not UTF-8 text") from None
    except (ValueError, OverflowError):  # the library's own, for an escape or a version too large
        raise InputError(f"{where}: not YAML", found="a number that is out of range") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f" in line {mark.line + 1}"
        raise InputError(f"{where}: not YAML{line}") from None
    return _Reader(events, where).document()


def _to_depth(events: Iterable[Any]) -> list[Any]:
    """Return the events up to the one that is nested too deeply, which the reader refuses.

    The library takes minutes for a file of nothing but brackets.
    """
    found: list[Any] = []
    depth = 0
    for event in events:
        found.append(event)
        depth += type(event).__name__ in ("SequenceStartEvent", "MappingStartEvent")
        depth -= type(event).__name__ in ("SequenceEndEvent", "MappingEndEvent")
        if depth > MAX_DEPTH:
            break
    return found


class _Reader:
    """Builds values from the parser's events, which know every spelling."""

    def __init__(self, events: list[Any], where: str) -> None:
        self._events = iter(events)
        self._where = where

    def _refuse(self, event: Any, found: str) -> InputError:
        return InputError(
            f"{self._where}: line {event.start_mark.line + 1} is not accepted",
            expected="mappings, lists, texts, integers, true, false, null",
            found=found,
        )

    def _next(self) -> tuple[str, Any]:
        event = next(self._events)
        return type(event).__name__.removesuffix("Event"), event

    def document(self) -> JSONValue:
        """Return the value of the only document."""
        self._next()  # the stream's start
        kind, event = self._next()
        if kind != "DocumentStart":
            raise InputError(f"{self._where}: empty")
        value = self._value(*self._next(), depth=1)
        self._next()  # the document's end
        kind, event = self._next()
        if kind != "StreamEnd":
            raise self._refuse(event, "a second document")
        return value

    def _value(self, kind: str, event: Any, depth: int) -> JSONValue:
        if depth > MAX_DEPTH:
            raise self._refuse(event, f"more than {MAX_DEPTH} levels")
        if kind == "Alias" or event.anchor is not None:
            raise self._refuse(event, "an anchor or alias")
        if event.tag is not None:
            raise self._refuse(event, "a tag")
        if kind == "Scalar":
            return self._scalar(event)
        if kind == "SequenceStart":
            items: list[JSONValue] = []
            while (pair := self._next())[0] != "SequenceEnd":
                items.append(self._value(*pair, depth + 1))
            return items
        mapping: dict[str, JSONValue] = {}
        while (pair := self._next())[0] != "MappingEnd":
            key = self._value(*pair, depth + 1)
            if not isinstance(key, str) or key in mapping:
                raise self._refuse(pair[1], "a key that is no text, or twice the same key")
            mapping[key] = self._value(*self._next(), depth + 1)
        return mapping

    def _scalar(self, event: Any) -> JSONValue:
        text: str = event.value
        if _SURROGATE.search(text) is not None:  # an escape can say what no JSON text holds
            raise self._refuse(event, "half of a surrogate pair")
        if event.style is not None:  # quoted, or a block
            return text
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        if text == "":
            raise self._refuse(event, "nothing (write null, or quotes)")
        if _INTEGER.fullmatch(text):
            return int(text)
        if _AMBIGUOUS.fullmatch(text):
            raise self._refuse(event, f"{shorten(text)} (put it into quotes if it is a text)")
        return text
