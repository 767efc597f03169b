"""Records of fixed width: one encoding a value, misfits named, never padded or cut."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Annotated

import pytest

from tallystick.contracts.fixed import U8, U64, FixedLayout, Hash
from tallystick.errors import EvidenceError, InputError


class Colour(IntEnum):
    RED = 0
    GREEN = 1


@dataclass(frozen=True, slots=True)
class Sample:
    small: U8
    name: Hash
    large: U64
    colour: Annotated[Colour, "B"]


LAYOUT = FixedLayout(Sample, "sample")
SAMPLE = Sample(3, bytes(range(32)), 2**64 - 1, Colour.GREEN)


def test_fields_follow_each_other_little_endian() -> None:
    assert LAYOUT.encode(SAMPLE) == b"\x03" + bytes(range(32)) + b"\xff" * 8 + b"\x01"
    assert LAYOUT.size == 42
    assert LAYOUT.hash_fields == ("name",)


def test_a_record_comes_back() -> None:
    assert LAYOUT.decode(LAYOUT.encode(SAMPLE)) == SAMPLE
    assert LAYOUT.decode(LAYOUT.encode(SAMPLE)).colour is Colour.GREEN


@pytest.mark.parametrize("length", [0, 41, 43])
def test_another_length_is_refused(length: int) -> None:
    with pytest.raises(EvidenceError, match="another length"):
        LAYOUT.decode(bytes(length))


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(EvidenceError, match=r"sample\.colour is no known kind") as caught:
        LAYOUT.decode(LAYOUT.encode(SAMPLE)[:-1] + b"\x02")
    assert caught.value.expected == "0 (red), 1 (green)"
    assert caught.value.found == "2"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"small": 256}, "small"),
        ({"small": -1}, "small"),
        ({"large": 2**64}, "large"),
        ({"name": bytes(31)}, "name"),
        ({"name": bytes(33)}, "name"),
    ],
)
def test_a_value_that_does_not_fit_is_named_and_not_shown(
    changes: dict[str, object], named: str
) -> None:
    with pytest.raises(InputError, match=rf"sample\.{named}"):
        LAYOUT.encode(replace(SAMPLE, **changes))  # type: ignore[arg-type]


def test_a_field_without_a_width_is_a_mistake_in_the_program() -> None:
    @dataclass
    class Wrong:
        number: int

    with pytest.raises(TypeError):
        FixedLayout(Wrong, "wrong")
