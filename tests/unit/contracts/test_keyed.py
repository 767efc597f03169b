"""Lists of documents that travel as one object: every member by its key, in one order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from tallystick.contracts.codec import decode, encode, json_schema
from tallystick.contracts.types import U8, KeyedBy, MaxLength
from tallystick.errors import EvidenceError, InputError


@dataclass(frozen=True, slots=True)
class Item:
    """One member; its key is not its first field."""

    size: U8
    name: Annotated[str, MaxLength(3)]


@dataclass(frozen=True, slots=True)
class Holder:
    """A document with members."""

    items: Annotated[tuple[Item, ...], KeyedBy("name", 2)]


def test_members_are_read_in_the_order_of_their_keys() -> None:
    document: Any = {"items": {"b": {"size": 2}, "a": {"size": 1}}}
    holder = decode(Holder, document)
    assert holder == Holder((Item(1, "a"), Item(2, "b")))
    assert encode(holder) == document
    assert decode(Holder, {"items": {}}) == Holder(())


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "bad field items"),
        ({"a": {"size": 1, "name": "a"}}, r"bad field items\['a'\]"),
        ({"a": {}}, r"bad field items\['a'\]"),
        ({"a": 1}, r"bad field items\['a'\]"),
        ({"a": {"size": 256}}, r"bad field items\['a'\].size"),
        ({"long": {"size": 1}}, r"bad field items\['long'\]"),
        ({"a": {"size": 1}, "b": {"size": 1}, "c": {"size": 1}}, "bad field items"),
    ],
)
def test_other_members_are_refused_by_name(items: Any, message: str) -> None:
    with pytest.raises(EvidenceError, match=message):
        decode(Holder, {"items": items})
    schema = Draft202012Validator(json_schema(Holder, "tag:example"))
    assert not schema.is_valid({"items": items})


@pytest.mark.parametrize(
    "items",
    [
        (Item(1, "b"), Item(1, "a")),
        (Item(1, "a"), Item(2, "a")),
        (Item(1, "a"), Item(1, "b"), Item(1, "c")),
        (Item(1, "long"),),
        [Item(1, "a")],
        ("a",),
    ],
)
def test_nothing_is_written_that_would_be_read_otherwise(items: Any) -> None:
    with pytest.raises(InputError, match="bad field items"):
        encode(Holder(items))


def test_the_schema_says_what_a_member_is() -> None:
    schema = json_schema(Holder, "tag:example")
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    assert validator.is_valid({"items": {"a": {"size": 1}}})
    member = schema["properties"]["items"]["additionalProperties"]
    assert member["required"] == ["size"]
