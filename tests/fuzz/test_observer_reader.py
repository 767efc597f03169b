"""Hostile transcripts: the reader raises the project's error or accepts, nothing else."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.errors import EvidenceError
from tallystick.evidence.observer.reader import read_transcript
from tests.golden import reference_observer as reference

WHOLE = reference.transcript("sketch")
RECORDS = reference.records("sketch")
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=6,
)


def accepted(*pieces: bytes) -> bool:
    try:
        read_transcript(pieces)
    except EvidenceError:
        return False
    return True


def test_the_whole_is_accepted() -> None:
    assert accepted(WHOLE)


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes(data: bytes) -> None:
    assert not accepted(data)


@settings(deadline=None)
@given(st.data())
def test_spliced_bytes(draw: st.DataObject) -> None:
    start = draw.draw(st.integers(0, len(WHOLE)))
    end = draw.draw(st.integers(start, min(len(WHOLE), start + 40)))
    edited = WHOLE[:start] + draw.draw(st.binary(max_size=8)) + WHOLE[end:]
    cut = draw.draw(st.integers(0, len(edited)))
    accepted(edited[:cut], edited[cut:])


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every (container, key) below ``value``."""
    found: list[tuple[Any, Any]] = []
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    for key in keys:
        found.append((value, key))
        if isinstance(value[key], dict | list):
            found += places(value[key])
    return found


@settings(deadline=None)
@given(st.integers(0, len(RECORDS) - 1), st.data(), VALUES)
def test_one_replaced_value(index: int, draw: st.DataObject, value: Any) -> None:
    records = copy.deepcopy(RECORDS)
    container, key = draw.draw(st.sampled_from(places(records[index])))
    container[key] = value
    lines = [json.dumps(r, sort_keys=True, separators=(",", ":")).encode() for r in records]
    accepted(b"\n".join(lines) + b"\n")
