"""Descriptions from real headers: the weights of a file are the products that are priced."""

from __future__ import annotations

import os
from math import prod
from pathlib import Path

import pytest

from tallystick.compute.families import describe
from tallystick.compute.semantic import semantic_units
from tallystick.contracts.model import ModelFacts
from tallystick.models.facts import facts_of
from tallystick.models.gguf import Header, read_header
from tests.conftest import ToyModel

# Every family, tied and untied heads, dense and expert layers, full and windowed attention.
NAMES = ("llama-q8_0", "qwen2", "qwen3", "gemma2", "gemma3", "moe", "mixtral", "hybrid-small")
UNPRICED = ("token_embd.weight", "ffn_gate_inp_shexp.weight")


def read(path: Path) -> tuple[Header, ModelFacts]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return read_header(descriptor), facts_of(descriptor)
    finally:
        os.close(descriptor)


def weights_of_one_token(header: Header, facts: ModelFacts) -> int:
    """Add up the matrices (and convolutions) that a token meets, from the file's own tensors."""
    tied = all(tensor.name != "output.weight" for tensor in header.tensors)
    total = 0
    for tensor in header.tensors:
        if tensor.name == "token_embd.weight" and tied:
            total += tensor.elements
        elif len(tensor.shape) >= 2 and not tensor.name.endswith(UNPRICED):
            experts = facts.experts_used if tensor.name.endswith("_exps.weight") else 1
            total += prod(tensor.shape[:2]) * experts
    return total


@pytest.mark.parametrize("name", NAMES)
def test_the_price_of_a_token_is_the_weights_it_meets(name: str, toy_model: ToyModel) -> None:
    header, facts = read(toy_model(name))
    parts = semantic_units(describe(facts), 1, 0).parts
    priced = parts.total() - parts.attention - parts.recurrent_state
    assert priced == weights_of_one_token(header, facts)
    assert parts.attention > 0
    assert (parts.recurrent_state > 0) == (facts.architecture == "qwen35moe")


def test_the_toy_hybrid_has_the_published_pattern(toy_model: ToyModel) -> None:
    _, facts = read(toy_model("hybrid-small"))
    kinds = [type(layer.mixer).__name__ for layer in describe(facts).layers]
    assert kinds == ["DeltaNetMixer"] * 3 + ["AttentionMixer"]
