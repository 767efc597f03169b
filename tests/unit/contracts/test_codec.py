"""Documents: what fits is read and written back, everything else is refused by name."""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.canonical.json import jcs
from tallystick.contracts.codec import decode, decode_bytes, encode, encode_bytes
from tallystick.contracts.generation import Generation
from tallystick.contracts.receipt import Receipt
from tallystick.contracts.request import InferenceRun
from tallystick.contracts.scalars import base64_size
from tallystick.contracts.types import (
    U8,
    U64,
    Base64,
    Digest,
    MaxLength,
    OneOf,
    Temperature,
    Timestamp,
    UuidText,
)
from tallystick.errors import EvidenceError, InputError
from tests.support.documents import every_example, example_receipt, example_run
from tests.unit.canonical.test_json import values

LIMIT = 1024 * 1024
EXAMPLES = every_example()
# Objects whose member names are data (test_keyed.py).
MAPS = (("files",), ("splits",))


@dataclass(frozen=True, slots=True)
class Inner:
    """A part."""

    name: Annotated[str, MaxLength(5)]


@dataclass(frozen=True, slots=True)
class Sample:
    """One field of every kind."""

    flag: bool
    small: U8
    large: U64
    digest: Digest
    word: Annotated[str, OneOf(("yes", "no"))]
    time: Timestamp
    data: Base64
    warmth: Temperature
    ident: UuidText
    maybe: U8 | None
    few: Annotated[tuple[U8, ...], MaxLength(2)]
    parts: tuple[Inner, ...]


GOOD: dict[str, Any] = {
    "flag": True,
    "small": 255,
    "large": "18446744073709551615",
    "digest": "sha256:" + "0a" * 32,
    "word": "no",
    "time": "2028-02-29T23:59:59.999Z",
    "data": "AAE=",
    "warmth": "1.25",
    "ident": "01890a5d-ac96-774b-bcce-b302099a8057",
    "maybe": None,
    "few": [1, 2],
    "parts": [{"name": "a"}, {"name": ""}],
}


def test_every_kind_of_field_is_read_and_written() -> None:
    sample = decode(Sample, GOOD)

    assert sample.large == 2**64 - 1
    assert sample.few == (1, 2)
    assert sample.parts == (Inner("a"), Inner(""))
    assert encode(sample) == GOOD


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("flag", [0, 1, None, "true"]),
        ("small", [True, False, 256, -1, 1.0, "1", None]),
        (
            "large",
            [
                1,
                "01",
                "",
                "-1",
                "+1",
                "1.0",
                "18446744073709551616",
                "9" * 5000,
                "\u0661",
                "1\n",
            ],
        ),
        (
            "digest",
            ["sha256:" + "0A" * 32, "0a" * 32, "sha256:" + "0a" * 31, GOOD["digest"] + "\n", None],
        ),
        ("word", ["Yes", "", "yesno", None, 1]),
        (
            "time",
            [
                "2027-02-29T00:00:00.000Z",
                "0000-01-01T00:00:00.000Z",
                "2026-01-01T24:00:00.000Z",
                "2026-01-01T00:00:60.000Z",
                "2026-01-01T00:00:00Z",
                "2026-01-01T00:00:00.000+00:00",
                "2026-01-01 00:00:00.000Z",
                "2026-01-01T00:00:00.000z",
                "\u0662026-01-01T00:00:00.000Z",
            ],
        ),
        ("data", ["AAE", "AAF=", "AA==\n", "A A=", "AAE=AAE=", "-_8=", "=", "\u00e9AAA", 1]),
        ("warmth", ["1.250", "2.1", "0.0", "00", ".5", "1.", "-1", "0.00001", 1, "1.25\n"]),
        ("ident", ["01890a5d-ac96-474b-bcce-b302099a8057", "01890A5D-AC96-774B-BCCE-B302099A8057"]),
        ("maybe", [False, "", 256]),
        ("few", [[1, 2, 3], (1, 2), None, {}, "12"]),
        ("parts", [[None], [{}], [{"name": "a", "x": 1}], [{"name": "abcdef"}], {"name": "a"}]),
    ],
)
def test_everything_else_is_refused_by_name(field: str, bad: list[Any]) -> None:
    for value in bad:
        with pytest.raises(EvidenceError, match=rf"^sample: bad field {field}") as caught:
            decode(Sample, {**GOOD, field: value}, where="sample")
        assert caught.value.expected


def test_the_path_leads_to_the_field() -> None:
    document = {**GOOD, "parts": [{"name": "a"}, {"name": "toolong"}]}
    with pytest.raises(EvidenceError) as caught:
        decode(Sample, document, where="sample")

    assert caught.value.message == "sample: bad field parts[1].name"
    assert caught.value.found == "a text of 7 characters"


@pytest.mark.parametrize("value", [None, [], "x", 1, True, 1.5])
def test_a_document_is_an_object(value: Any) -> None:
    with pytest.raises(EvidenceError, match="not such a document"):
        decode(Sample, value)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every container and of everything in them."""
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    document = copy.deepcopy(document)
    inner = document
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return document


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_examples_survive_the_way_there_and_back(example: object) -> None:
    data = encode_bytes(example)

    assert decode_bytes(type(example), data, max_bytes=LIMIT) == example
    assert data == jcs(encode(example))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_no_key_may_be_missing_or_added_anywhere(example: object) -> None:
    document = encode(example)
    objects = [
        path
        for path in places(document)
        if isinstance(at(document, path), dict) and path[-1:] not in MAPS
    ]
    assert objects
    for path in objects:
        whole = at(document, path)
        for key in whole:
            less = {name: value for name, value in whole.items() if name != key}
            with pytest.raises(EvidenceError) as caught:
                decode(type(example), changed(document, path, less))
            assert caught.value.expected == f"the key {key}"
        with pytest.raises(EvidenceError, match="only the declared keys"):
            decode(type(example), changed(document, path, {**whole, "extra": 1}))


def at(document: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        document = document[step]
    return document


@settings(deadline=None)
@given(st.data())
def test_an_arbitrary_value_anywhere_is_kept_or_refused(
    data: st.DataObject,
) -> None:
    example = data.draw(st.sampled_from(EXAMPLES))
    document = encode(example)
    path = data.draw(st.sampled_from(list(places(document))))
    mutated = changed(document, path, data.draw(values))
    try:
        decoded = decode(type(example), mutated)
    except EvidenceError:
        return
    assert encode(decoded) == mutated


def test_private_values_are_not_in_errors() -> None:
    secret = "a secret prompt"
    document: Any = encode(example_run())
    tampered = [
        {**document, "blind": secret},
        {**document, "prompt": [secret]},
        {**document, "chat": secret},
        {**document, "chat": {secret: 1, "system": None}},
        {**document, "temperature": secret},
    ]
    for bad in tampered:
        with pytest.raises(EvidenceError) as caught:
            decode(InferenceRun, bad)
        assert "secret" not in str(caught.value)
    with pytest.raises(InputError) as wrong:
        encode(replace(example_run(), blind=secret))
    assert "secret" not in str(wrong.value)
    assert wrong.value.message == "InferenceRun: bad field blind"


def bent(document: Any, **changes: Any) -> Any:
    """Return ``document`` with values that the type checker would refuse too."""
    return replace(document, **changes)


@pytest.mark.parametrize(
    "bad",
    [
        bent(example_run(), seed=2**64),
        bent(example_run(), seed=-1),
        bent(example_run(), max_tokens=0),
        bent(example_run(), max_tokens=True),
        bent(example_run(), evidence=["states"]),
        bent(example_run(), chat=None, task=None),
        bent(example_run(), prompt=b"bytes"),
        bent(example_receipt(), core=example_receipt().observed),
    ],
    ids=range(8),
)
def test_nothing_is_written_that_would_not_be_read(bad: object) -> None:
    with pytest.raises(InputError, match="bad field"):
        encode(bad)


@pytest.mark.parametrize(
    "data", [b'{"core": 1}', b"\xff", b"", b'{"core":{},"core":{}}', b"[" * 100]
)
def test_bytes_are_read_strictly_and_errors_say_where(data: bytes) -> None:
    with pytest.raises(EvidenceError, match=r"^x\.geoai\.json: "):
        decode_bytes(Receipt, data, max_bytes=LIMIT, where="x.geoai.json")


def test_the_size_bound_holds() -> None:
    data = encode_bytes(example_receipt())

    assert decode_bytes(Receipt, data, max_bytes=len(data)) == example_receipt()
    with pytest.raises(EvidenceError, match="too large"):
        decode_bytes(Receipt, data, max_bytes=len(data) - 1)


def test_a_generation_is_a_document() -> None:
    with pytest.raises(EvidenceError, match="not such a document") as caught:
        decode(Generation, {})
    assert caught.value.expected == "the key chat_template_digest"


@dataclass(frozen=True, slots=True)
class Unmarked:
    """A text without a bound."""

    text: str


@dataclass(frozen=True, slots=True)
class Pair:
    """A tuple of fixed length."""

    pair: tuple[U8, U8]


@dataclass(frozen=True, slots=True)
class Either:
    """Two types at once."""

    either: U8 | U64


@pytest.mark.parametrize("cls", [Unmarked, Pair, Either, int])
def test_a_type_without_a_rule_is_a_programming_error(cls: type) -> None:
    with pytest.raises(TypeError):
        decode(cls, {"text": "a"})


@settings(deadline=None, max_examples=300)
@given(
    st.binary(max_size=40).map(lambda raw: base64.b64encode(raw).decode()),
    st.integers(0),
    st.sampled_from(["", "=", "==", "A", "B", "Q", "+/", "-_", " ", "\n", "\u00e9", "\ud800"]),
    st.integers(0, 4),
)
def test_base64_has_one_spelling(text: str, place: int, piece: str, cut: int) -> None:
    at = place % (len(text) + 1)
    for given_text in (text, text[:at] + piece + text[at + cut :]):
        raw = spelt_by(given_text)
        if raw is not None:
            assert decode(Sample, {**GOOD, "data": given_text}).data == given_text
            assert base64_size(given_text) == len(raw)
        else:
            with pytest.raises(EvidenceError):
                decode(Sample, {**GOOD, "data": given_text})


def spelt_by(text: str) -> bytes | None:
    """Return the bytes whose canonical base64 is ``text``."""
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    return raw if base64.b64encode(raw).decode() == text else None
