"""The strict reader: bounds, silence about content, and round trips."""

from __future__ import annotations

import json
import math
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tallystick.canonical.json import (
    MAX_SAFE_INTEGER,
    Bounds,
    JSONValue,
    jcs,
    parse_canonical,
    parse_strict,
)
from tallystick.errors import EvidenceError, TallystickError

LIMIT = 4 * 1024 * 1024
SECRET = "the secret prompt"


def has_a_canonical_spelling(number: float) -> bool:
    """Whole doubles from 2^53 to 10^21 canonicalise to integers that the reader refuses."""
    return not MAX_SAFE_INTEGER < abs(number) < 1e21


texts = st.text(st.characters(codec="utf-8"))
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False).filter(has_a_canonical_spelling)
    | texts
)
values: st.SearchStrategy[JSONValue] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None)
@given(values)
@example({"\U0001f30a": 1, "\uff00": 2, "": None})
@example([1e21, 1e-7, 5e-324, 1.7976931348623157e308])
def test_canonical_bytes_are_a_fixed_point(value: JSONValue) -> None:
    canonical = jcs(value)
    parsed = parse_canonical(canonical, max_bytes=LIMIT)

    assert jcs(parsed) == canonical
    assert parsed == json.loads(canonical)


@settings(deadline=None)
@given(values, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_any_spelling_reads_as_the_same_value(
    value: JSONValue, indent: int | str | None, ascii_only: bool
) -> None:
    data = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()

    assert jcs(parse_strict(data, max_bytes=LIMIT)) == jcs(value)


@settings(deadline=None)
@given(
    st.binary(max_size=200)
    | st.text(alphabet='[]{}",:\\u0dD8c1e+-.\n ', max_size=200).map(str.encode)
)
def test_no_input_raises_anything_else(data: bytes) -> None:
    try:
        value = parse_strict(data, max_bytes=LIMIT)
    except EvidenceError:
        return
    assert jcs(value) == jcs(json.loads(data))


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 1_000_000,
        b'{"a":' * 200_000,
        b'[{"' + b'\\"' * 500_000,
        b"[" * 65 + b'"' + b'\\"' * 500_000 + b"\\",
    ],
    ids=["arrays", "objects", "unterminated text", "unterminated escape"],
)
def test_hostile_nesting_ends_in_a_clear_error(data: bytes) -> None:
    with pytest.raises(EvidenceError):
        parse_strict(data, max_bytes=LIMIT)


def test_depth_counts_open_containers_only() -> None:
    wide = b"[" + b"[],{}," * 500 + b'"[[[[\\"[[[[{{{{"]'

    assert parse_strict(wide, max_bytes=LIMIT, max_depth=2) == json.loads(wide)
    with pytest.raises(EvidenceError, match="nested too deeply") as caught:
        parse_strict(wide, max_bytes=LIMIT, max_depth=1)
    assert caught.value.expected == "at most 1 levels"
    assert caught.value.found == "level 2"


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (b"[],", "arrays and objects"),
        (b"{},", "arrays and objects"),
        (b"1,", "values"),
        (b"-300,", "values"),
        (b'"a",', "texts"),
        (b'"\\"\\\\",', "texts"),
        (b'{"a":[""]},', "texts"),
    ],
    ids=repr,
)
def test_the_number_of_values_is_bounded_before_they_are_built(item: bytes, message: str) -> None:
    size = 32 * 1024 * 1024
    data = b"[" + item * (size // len(item)) + b"[]]"
    started = time.process_time()
    with pytest.raises(EvidenceError, match=f"too many {message}"):
        parse_strict(data, max_bytes=2 * size)
    assert time.process_time() - started < 3.0  # 0.4 s on an idle machine


def test_what_stands_in_texts_is_not_counted() -> None:
    bounds = Bounds(values=100, containers=1)
    texts: list[JSONValue] = [',[{"\\' * 200, '\\",', *[",[" * 3] * 98]

    assert parse_strict(json.dumps(texts).encode(), max_bytes=LIMIT, bounds=bounds) == texts
    with pytest.raises(EvidenceError, match="too many values"):
        parse_strict(json.dumps([*texts, 1]).encode(), max_bytes=LIMIT, bounds=bounds)
    with pytest.raises(EvidenceError, match="too many arrays"):
        parse_strict(json.dumps([*texts[2:], []]).encode(), max_bytes=LIMIT, bounds=bounds)


@settings(deadline=None)
@given(values, st.booleans())
def test_what_is_counted_is_the_number_of_values(value: JSONValue, ascii_only: bool) -> None:
    def count(part: JSONValue) -> int:
        if isinstance(part, dict):
            return 1 + sum(map(count, part.values()))
        return 1 + sum(map(count, part)) if isinstance(part, list) else 1

    data, number = json.dumps(value, ensure_ascii=ascii_only).encode(), count(value)
    enough = Bounds(values=2 * number, containers=number)  # what is empty counts twice
    assert jcs(parse_strict(data, max_bytes=LIMIT, bounds=enough)) == jcs(value)
    if number > 2:
        with pytest.raises(EvidenceError, match="too many"):
            parse_strict(data, max_bytes=LIMIT, bounds=Bounds(values=number - 2))


def test_whole_doubles_beyond_2_53_have_no_canonical_document() -> None:
    assert parse_strict(b"1e20", max_bytes=LIMIT) == 1e20
    with pytest.raises(EvidenceError, match="canonical form"):
        parse_canonical(b"1e20", max_bytes=LIMIT)
    with pytest.raises(EvidenceError, match="out of range"):
        parse_canonical(jcs(1e20), max_bytes=LIMIT)


def test_size_is_bounded_before_anything_else() -> None:
    with pytest.raises(EvidenceError, match="too large") as caught:
        parse_strict(b"\xff" * 11, max_bytes=10)
    assert caught.value.expected == "at most 10 bytes"
    assert parse_strict(b"1234567890", max_bytes=10) == 1234567890


@pytest.mark.parametrize(
    "data",
    [
        f'{{"prompt":"{SECRET}","prompt":1}}',
        f'{{"prompt":"{SECRET}"',
        f'["{SECRET}",]',
        f'["{SECRET}\n"]',
        f'["{SECRET}", NaN]',
        f'["{SECRET}", 1e999]',
        f'["{SECRET}", 99999999999999999999]',
        f'["{SECRET}\\ud800"]',
        f'["{SECRET}", ' + "[" * 100,
        f'{{"prompt": "{SECRET}"}}',
    ],
)
def test_errors_do_not_quote_the_document(data: str) -> None:
    with pytest.raises(EvidenceError) as caught:
        parse_canonical(data.encode(), max_bytes=1000)
    assert "secret" not in str(caught.value)


def test_a_repeated_key_is_named_but_cut() -> None:
    key = "k" * 1000
    with pytest.raises(EvidenceError) as caught:
        parse_strict(f'{{"{key}":1,"{key}":2}}'.encode(), max_bytes=LIMIT)
    assert caught.value.found == repr("k" * 40 + "...")


def test_difference_from_the_canonical_form_is_located() -> None:
    with pytest.raises(EvidenceError) as caught:
        parse_canonical(b'{"a":1, "b":2}', max_bytes=LIMIT)
    assert caught.value.found == "a difference at byte 7"
    with pytest.raises(EvidenceError) as caught:
        parse_canonical(b'{"a":1}\n', max_bytes=LIMIT)
    assert caught.value.found == "a difference at byte 7"


@pytest.mark.parametrize(
    "value",
    [2**53, -(2**53), math.inf, math.nan, "\ud800", {"\ud800": 1}, {1: 2}, b"x", [{1}], 10**5000],
    ids=range(10),
)
def test_what_has_no_canonical_form_is_refused(value: JSONValue) -> None:
    with pytest.raises(EvidenceError, match="no canonical"):
        jcs(value)


def test_a_value_nested_beyond_the_stack_is_refused() -> None:
    value: JSONValue = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(TallystickError, match="no canonical"):
        jcs(value)
    while isinstance(value, list) and value:  # take it apart without recursion
        value = value.pop()
