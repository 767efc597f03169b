"""Hostile transcripts: the reader raises the project's error or accepts, nothing else."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.errors import EvidenceError
from tallystick.evidence.observer.reader import read_transcript
from tests.golden import reference_observer as reference
from tests.golden import reference_sealing_pass

KINDS = {
    "run": reference.records("sketch"),
    "pass": reference_sealing_pass.records(reference_sealing_pass.Pass()),
}
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


def whole(kind: str) -> bytes:
    return b"".join(map(reference.line, KINDS[kind]))


@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_is_accepted(kind: str) -> None:
    assert accepted(whole(kind))


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes(data: bytes) -> None:
    assert not accepted(data)


@settings(deadline=None)
@given(st.sampled_from([*KINDS]), st.data())
def test_spliced_bytes(kind: str, draw: st.DataObject) -> None:
    data = whole(kind)
    start = draw.draw(st.integers(0, len(data)))
    end = draw.draw(st.integers(start, min(len(data), start + 40)))
    edited = data[:start] + draw.draw(st.binary(max_size=8)) + data[end:]
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
@given(st.sampled_from([*KINDS]), st.data(), VALUES)
def test_one_replaced_value(kind: str, draw: st.DataObject, value: Any) -> None:
    records = copy.deepcopy(KINDS[kind])
    index = draw.draw(st.integers(0, len(records) - 1))
    container, key = draw.draw(st.sampled_from(places(records[index])))
    container[key] = value
    lines = [json.dumps(r, sort_keys=True, separators=(",", ":")).encode() for r in records]
    accepted(b"\n".join(lines) + b"\n")
