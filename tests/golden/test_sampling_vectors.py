"""docs/spec/vectors/sampling.json: the program and the second implementation both give it."""

from __future__ import annotations

import json
import struct
from typing import Any, Final

import numpy as np
import pytest

from tallystick.errors import RunFailedError
from tallystick.execution import sampling
from tests.golden import reference_sampling as reference
from tests.golden.write_sampling_vectors import document, lines
from tests.support.vectors import spec_vectors

TEXT: Final = (spec_vectors() / "sampling.json").read_text(encoding="utf-8")
VECTORS: Final = json.loads(TEXT)


def row(vector: Any) -> memoryview:
    return memoryview(b"".join(struct.pack("=I", int(bits, 16)) for bits in vector["logits"]))


def test_the_second_implementation_writes_this_file() -> None:
    assert lines(document()) == TEXT


def test_the_printed_tables_are_the_program_s() -> None:
    assert sampling.COARSE.tolist() == VECTORS["coarse"]
    assert sampling.FINE.tolist() == VECTORS["fine"]
    assert VECTORS["log2_e"] == sampling.LOG2_E
    assert (len(VECTORS["coarse"]), len(VECTORS["fine"])) == (256, 256)


@pytest.mark.parametrize("vector", VECTORS["fixed_point"], ids=lambda vector: vector["float32"])
def test_fixed_point(vector: dict[str, Any]) -> None:
    values = np.array([int(vector["float32"], 16)], np.uint32).view(np.float32)

    assert sampling.fixed_point(values).tolist() == [vector["fixed"]]


@pytest.mark.parametrize("vector", VECTORS["weights"], ids=lambda vector: vector["distance"])
def test_weights(vector: dict[str, Any]) -> None:
    assert reference.weight(vector["distance"]) == vector["weight"]
    if vector["distance"] < 2**30:
        # At temperature 1 the distance of two logits is the difference of their fixed points.
        low = np.float32(-vector["distance"] / 65536)
        assert sampling.fixed_point(np.array([low])).tolist() == [-vector["distance"]]
        row = np.array([0, low], np.float32)
        assert sampling.weights(row, 10_000).tolist() == [2**30, vector["weight"]]


def test_greedy() -> None:
    for vector in VECTORS["greedy"]:
        assert sampling.greedy(row(vector)) == vector["token"]


def test_draws() -> None:
    for vector in VECTORS["draws"]:
        temperature = sampling.parse_temperature(vector["temperature"])
        values = np.frombuffer(row(vector), np.float32)

        assert sampling.weights(values, temperature).tolist() == vector["weights"]
        found = sampling.seeded(row(vector), temperature, int(vector["seed"]), vector["position"])
        assert found == vector["token"]


def test_the_draws_are_worth_having() -> None:
    """More than one token is drawn, more than one way of drawing is seen."""
    tokens = [vector["token"] for vector in VECTORS["draws"]]

    assert len(set(tokens)) > 4
    assert {vector["temperature"] for vector in VECTORS["draws"] if vector["token"]} >= {"1", "2"}


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=lambda vector: str(vector["logits"]))
def test_refused(vector: dict[str, Any]) -> None:
    bits = [int(text, 16) for text in vector["logits"]]
    assert reference.seeded(bits, "1", 0, 0) is None
    with pytest.raises(RunFailedError):
        sampling.seeded(row(vector), 10_000, 0, 0)
    if vector["sampling"] == "both":
        assert reference.greedy(bits) is None
        with pytest.raises(RunFailedError, match="not finite"):
            sampling.greedy(row(vector))
    else:
        assert sampling.greedy(row(vector)) == reference.greedy(bits)
