"""RFC 8785: the vectors of the reference implementation."""

from __future__ import annotations

import struct

import pytest

from tallystick.canonical.json import jcs, parse_canonical, parse_strict
from tallystick.errors import EvidenceError
from tests.support.vectors import vector_dir

NAMES = ("arrays", "french", "structures", "unicode", "values", "weird")
NUMBERS = "es6_numbers_first10000_generated.txt"


@pytest.mark.parametrize("name", NAMES)
def test_canonical_form(name: str) -> None:
    base = vector_dir("jcs")
    given = (base / "input" / f"{name}.json").read_bytes()
    expected = (base / "output" / f"{name}.json").read_bytes()
    in_hex = (base / "outhex" / f"{name}.txt").read_text(encoding="ascii")

    assert bytes.fromhex(in_hex) == expected
    assert jcs(parse_strict(given, max_bytes=10_000)) == expected


@pytest.mark.parametrize("name", NAMES)
def test_only_the_canonical_form_is_canonical(name: str) -> None:
    base = vector_dir("jcs")
    given = (base / "input" / f"{name}.json").read_bytes()
    expected = (base / "output" / f"{name}.json").read_bytes()

    assert jcs(parse_canonical(expected, max_bytes=10_000)) == expected
    with pytest.raises(EvidenceError, match="canonical"):
        parse_canonical(given, max_bytes=10_000)


def test_every_vector_is_used() -> None:
    present = {path.stem for path in (vector_dir("jcs") / "input").iterdir()}

    assert present == set(NAMES)


def test_numbers_as_ecmascript_writes_them() -> None:
    lines = (vector_dir("jcs") / NUMBERS).read_text(encoding="ascii").splitlines()
    wrong = []
    for line in lines:
        bits, _, expected = line.partition(",")
        (value,) = struct.unpack(">d", bytes.fromhex(bits.zfill(16)))
        if jcs(value) != expected.encode():
            wrong.append(line)

    assert len(lines) == 10_000
    assert wrong == []
