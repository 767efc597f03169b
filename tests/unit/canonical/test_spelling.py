"""The quick look at a text's spelling says of every document what writing it again would say."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tallystick.canonical.json import JSONValue, jcs, parse_canonical, parse_strict
from tallystick.canonical.spelling import outside_texts, spelled_canonically
from tallystick.errors import EvidenceError
from tests.unit.canonical.test_json import values

LIMIT = 1024 * 1024
#: Pieces that are put into, or taken out of, canonical documents.
PIECES = (
    *(" ", "\t", "\n", "\r", "\x00", "\x1f", "\x7f", "\u2028", "\U0001f30a", "\ufb33"),
    *('"', "\\", "\\\\", '\\"', "\\/", "\\b", "\\f", "\\n", "\\r", "\\t", "\\v", "\\u"),
    *(f"\\u{code:04x}" for code in range(0x22)),
    *("\\u000B", "\\u001F", "\\u005c", "\\u0061", "\\ud83c\\udf0a", "\\ud800"),
    *("0", "-0", "-", "1", "1.0", "1.5", "1e5", "1E5", "0e0", "9" * 15, "9" * 16, "9" * 17),
    *("-" + "9" * 15, str(2**53 - 1), str(2**53), "true", "false", "null", "NaN", "Infinity"),
    *("{", "}", "[", "]", ":", ",", '"a":1,', '"b":2,', '"":0,', "\ufeff"),
)
documents = values.map(jcs)


def slow(data: bytes) -> JSONValue:
    """Parse, write, compare: what a canonical document is."""
    value = parse_strict(data, max_bytes=LIMIT)
    if jcs(value) != data:
        raise EvidenceError("the JSON document is not in its canonical form")
    return value


def same(data: bytes) -> bool:
    """Require one verdict, or one message, of both ways; return whether the document passed."""
    expected, found = (outcome(read, data) for read in (slow, quick))
    assert found == expected
    return found[0]


def quick(data: bytes) -> JSONValue:
    return parse_canonical(data, max_bytes=LIMIT)


def outcome(read: Callable[[bytes], JSONValue], data: bytes) -> tuple[bool, str]:
    try:
        return True, json.dumps(read(data))  # where True is no 1, and keys keep their order
    except EvidenceError as error:
        return False, error.message


@settings(deadline=None)
@given(documents, st.integers(0), st.sampled_from(PIECES), st.integers(0, 3))
@example(b'{"a":"b"}', 8, "\\", 0)
@example(b'"\\\\"', 1, "\\u000b", 0)
def test_one_edit_gets_one_verdict(data: bytes, place: int, piece: str, cut: int) -> None:
    at = place % (len(data) + 1)
    assert same(data)
    same(data[:at] + piece.encode() + data[at + cut :])


@pytest.mark.parametrize("seed", range(4))
def test_many_edits_get_one_verdict(seed: int) -> None:
    chance = random.Random(seed)
    passed = 0
    base = '{"a":[1,-5,{"":"\\\\","\\u001f":"割\\"🪵"}],"b":null,"c":{"x":true,"y":false},"z":""}'
    for _ in range(2500):
        text = base
        for _ in range(chance.choice((1, 1, 2, 3))):
            at = chance.randrange(len(text) + 1)
            cut = chance.choice((0, 0, 1, 2))
            text = text[:at] + chance.choice(PIECES) + text[at + cut :]
        passed += same(text.encode("utf-8"))
    assert passed > 50


@pytest.mark.parametrize(
    ("data", "spelled"),
    [
        (b'{"a":[1,-20,true,false,null],"b":"a b\\n\\u001f\\\\\\""}', True),
        (b'{"a": 1}', False),
        (b'"\\u000a"', False),
        (b'"\\/"', False),
        (b"[-0]", False),
        (b"[1e5]", False),
        (b"[" + b"9" * 15 + b"]", True),
        (b"[" + b"9" * 16 + b"]", False),
        (b'["a","b"]', True),
    ],
)
def test_what_it_looks_at(data: bytes, spelled: bool) -> None:
    outside = outside_texts(data, texts=10)

    assert (outside is not None and spelled_canonically(outside)) is spelled


def test_too_many_texts_are_not_looked_at() -> None:
    data = b'["a","b"]'

    assert outside_texts(data, texts=2) == b"[,]"
    assert outside_texts(data, texts=1) is None


@pytest.mark.parametrize(
    "data", [b'{"b":1,"a":2}', b'{"a":1,"a":1}', '{"\ufb33":1,"🪵":2}'.encode()]
)
def test_keys_out_of_order_are_refused(data: bytes) -> None:
    with pytest.raises(EvidenceError):
        parse_canonical(data, max_bytes=LIMIT)


def test_keys_are_ordered_by_their_utf16_units() -> None:
    data = '{"a":0,"🪵":1,"\ufb33":2}'.encode()
    value = parse_canonical(data, max_bytes=LIMIT)

    assert isinstance(value, dict)
    assert [*value] == ["a", "🪵", "\ufb33"]
