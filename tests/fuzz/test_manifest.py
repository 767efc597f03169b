"""Hostile manifests: the decoders and checks raise EvidenceError or accept, nothing else."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.canonical.json import jcs
from tallystick.compute.manifest import verify_manifest
from tallystick.contracts.manifest import RuntimeManifest
from tallystick.errors import EvidenceError
from tests.support.manifests import example_manifest

MANIFESTS = tuple(example_manifest(family) for family in ("llama", "qwen35moe"))
WHOLE = tuple(manifest.canonical_bytes for manifest in MANIFESTS)
FACTS: Any = json.loads(MANIFESTS[0].facts)
SCALARS = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=6)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=6,
)


def accepted(data: bytes) -> bool:
    try:
        manifest = RuntimeManifest.decode_strict(data)
        verify_manifest(manifest)
    except EvidenceError:
        return False
    assert manifest.canonical_bytes == data
    return True


@pytest.mark.parametrize("data", WHOLE, ids=["dense", "hybrid"])
def test_the_whole_is_accepted(data: bytes) -> None:
    assert accepted(data)


@given(st.binary(max_size=300))
def test_random_bytes(data: bytes) -> None:
    assert not accepted(data)


@settings(deadline=None)
@given(st.sampled_from(WHOLE), st.data())
def test_spliced_bytes(data: bytes, draw: st.DataObject) -> None:
    start = draw.draw(st.integers(0, len(data)))
    end = draw.draw(st.integers(start, min(len(data), start + 40)))
    accepted(data[:start] + draw.draw(st.binary(max_size=8)) + data[end:])


@settings(deadline=None)
@given(st.sampled_from(WHOLE), st.data())
def test_one_changed_byte(data: bytes, draw: st.DataObject) -> None:
    edited = bytearray(data)
    edited[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    accepted(bytes(edited))


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
@given(st.data(), VALUES)
def test_one_replaced_fact(draw: st.DataObject, value: Any) -> None:
    facts = copy.deepcopy(FACTS)
    container, key = draw.draw(st.sampled_from(places(facts)))
    same = container[key] == value
    container[key] = value

    manifest = replace(MANIFESTS[0], facts=jcs(facts))

    assert accepted(manifest.canonical_bytes) == same
