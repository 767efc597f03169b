"""The vectors of compute units: the project's code and a second implementation both give them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tallystick.compute.architecture import encode_architecture
from tallystick.compute.operations import NAMES, ExpertRoute, encode_operation
from tallystick.compute.profiles import profile_architecture
from tallystick.compute.rules import RULESETS, matching_ruleset_id, ruleset_of_version
from tallystick.compute.schedule import semantic_schedule
from tallystick.compute.semantic import semantic_units
from tallystick.errors import EvidenceError
from tests.golden import write_compute_vectors
from tests.support.decoding import decode_operation
from tests.support.vectors import spec_vectors

VECTORS: Any = json.loads((spec_vectors() / "compute_units.json").read_text(encoding="utf-8"))


def counts_of(vector: dict[str, Any]) -> str:
    return f"{vector['prefill']}-{vector['generated']}"


def test_the_second_implementation_gives_the_vectors() -> None:
    assert write_compute_vectors.vector() == VECTORS


def test_the_published_values_are_among_them() -> None:
    found = {counts_of(vector): vector["compute_units"] for vector in VECTORS["semantic_units"]}
    published = {"5-2": "41692", "1-1": "11912", "512-128": "3844971"}
    assert found.items() >= published.items()


@pytest.mark.parametrize("vector", VECTORS["rulesets"], ids=lambda vector: f"v{vector['version']}")
def test_ruleset(vector: dict[str, Any]) -> None:
    rules = ruleset_of_version(vector["version"])
    assert rules.payload.decode() == vector["payload"]
    assert rules.ruleset_id.hex() == vector["ruleset_id"]
    assert matching_ruleset_id(bytes.fromhex(vector["ruleset_id"])) is rules


@pytest.mark.parametrize("vector", VECTORS["operations"], ids=lambda v: f"{v['name']}")
def test_operation(vector: dict[str, Any]) -> None:
    operation = NAMES[vector["name"]](*map(int, vector["fields"]))
    assert encode_operation(operation).hex() == vector["encoding"]
    assert decode_operation(bytes.fromhex(vector["encoding"])) == operation
    for rules, price in zip(RULESETS, (vector["v1"], vector["v2"], None), strict=True):
        if price is None:
            with pytest.raises(EvidenceError, match="does not price"):
                rules.cost(operation)
        else:
            assert rules.cost(operation) == int(price)


@pytest.mark.parametrize("encoding", VECTORS["refused_encodings"])
def test_refused_encoding(encoding: str) -> None:
    with pytest.raises(EvidenceError):
        decode_operation(bytes.fromhex(encoding))


@pytest.mark.parametrize("vector", VECTORS["architectures"], ids=lambda vector: vector["profile"])
def test_architecture(vector: dict[str, Any]) -> None:
    architecture = profile_architecture(vector["profile"])
    assert encode_architecture(architecture).hex() == vector["encoding"]
    assert architecture.architecture_id.hex() == vector["architecture_id"]


@pytest.mark.parametrize("vector", VECTORS["semantic_units"], ids=counts_of)
def test_semantic_units(vector: dict[str, Any]) -> None:
    counts = vector["prefill"], vector["generated"]
    found = semantic_units(profile_architecture(vector["profile"]), *counts)
    assert str(found.parts.total()) == vector["mac"]
    assert str(found.compute_units) == vector["compute_units"]


@pytest.mark.parametrize("vector", VECTORS["semantic_schedules"], ids=counts_of)
def test_semantic_schedule(vector: dict[str, Any]) -> None:
    counts = vector["prefill"], vector["generated"]
    found = semantic_schedule(profile_architecture(vector["profile"]), *counts)
    assert found.operations == vector["operations"]
    assert found.count(ExpertRoute) == vector["expert_routes"]
    assert found.commitment.hex() == vector["commitment"]
