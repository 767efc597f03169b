"""Ruleset v3: published values, the rule by hand for each family, and its properties."""

from __future__ import annotations

import ast
from dataclasses import replace
from fractions import Fraction
from math import ceil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tallystick.compute
from tallystick.compute.architecture import (
    Architecture,
    AttentionMixer,
    DeltaNetMixer,
    DenseFeedForward,
    ExpertFeedForward,
    LayerDescription,
)
from tallystick.compute.profiles import profile_architecture
from tallystick.compute.semantic import MAX_TOKENS, pairs, semantic_units
from tallystick.errors import InputError, UsageError

QWEN = profile_architecture("qwen3.6-35b-a3b")
DENSE = Architecture(
    "llama",
    hidden=576,
    vocabulary=49152,
    layers=(LayerDescription(AttentionMixer(9, 3, 64, 64), DenseFeedForward(1536)),) * 30,
)

mixers = st.one_of(
    st.builds(
        lambda few, times, width, window, gated: AttentionMixer(
            few * times, few, width, width, window, gated
        ),
        st.integers(1, 4), st.integers(1, 4), st.integers(1, 64), st.integers(0, 20), st.booleans(),
    ),
    st.builds(
        lambda few, times, width, kernel: DeltaNetMixer(few, few * times, width, width, kernel),
        st.integers(1, 4), st.integers(1, 4), st.integers(1, 32), st.integers(1, 4),
    ),
)  # fmt: skip
feed_forwards = st.one_of(
    st.builds(DenseFeedForward, st.integers(1, 200)),
    st.builds(
        lambda used, more, width, shared: ExpertFeedForward(used + more, used, width, shared),
        st.integers(1, 8), st.integers(0, 30), st.integers(1, 50), st.integers(0, 50),
    ),
)  # fmt: skip
architectures = st.builds(
    Architecture,
    st.just("any"),
    st.integers(1, 512),
    st.integers(1, 5000),
    st.lists(st.builds(LayerDescription, mixers, feed_forwards), min_size=1, max_size=4).map(tuple),
)


@pytest.mark.parametrize(
    ("prefill", "generated", "units"), [(5, 2, 41692), (1, 1, 11912), (512, 128, 3844971)]
)
def test_the_published_values(prefill: int, generated: int, units: int) -> None:
    assert semantic_units(QWEN, prefill, generated).compute_units == units


def test_a_dense_model_by_hand() -> None:
    n = 7
    weights = 30 * (576 * (576 + 192 + 192) + 576 * 576 + 3 * 576 * 1536) + 576 * 49152
    mac = n * weights + 30 * 28 * 9 * 64 * 2
    found = semantic_units(DENSE, 5, 2)
    assert found.parts.total() == mac
    assert found.compute_units == ceil(Fraction(2 * mac, 10**6)) == 1885


def test_a_window_bounds_what_a_token_sees() -> None:
    (layer,) = set(DENSE.layers)
    near = replace(layer, mixer=AttentionMixer(9, 3, 64, 64, window=4))
    windowed = replace(DENSE, layers=(near, layer))
    found = semantic_units(windowed, 6, 4).parts.attention
    assert found == (1 + 2 + 3 + 7 * 4 + 55) * 9 * 64 * 2
    assert semantic_units(windowed, 2, 2).parts.attention == (10 + 10) * 9 * 64 * 2


@given(st.integers(0, 200), st.integers(0, 60))
def test_pairs_are_what_counting_gives(tokens: int, window: int) -> None:
    counted = sum(min(i, window) if window else i for i in range(1, tokens + 1))
    assert pairs(tokens, window) == counted


@given(architectures, st.integers(1, 400), st.integers(0, 400), st.integers(0, 400))
def test_only_the_sum_of_the_counts_matters(
    architecture: Architecture, prefill: int, generated: int, moved: int
) -> None:
    """However the tokens are split over the phases, the price is the same."""
    moved = min(moved, prefill - 1)
    once = semantic_units(architecture, prefill, generated)
    other = semantic_units(architecture, prefill - moved, generated + moved)
    assert once.parts == other.parts
    assert once.compute_units == other.compute_units


@given(architectures, st.integers(1, 10**6), st.integers(0, 10**6), st.integers(1, 10**6))
def test_more_tokens_never_cost_less(
    architecture: Architecture, prefill: int, generated: int, more: int
) -> None:
    base = semantic_units(architecture, prefill, generated)
    longer = semantic_units(architecture, prefill + more, generated)
    assert longer.parts.total() > base.parts.total()
    assert longer.compute_units >= base.compute_units >= 1


@given(architectures, st.integers(1, 10**6), st.integers(0, 10**6))
def test_the_only_division_is_the_last(
    architecture: Architecture, prefill: int, generated: int
) -> None:
    found = semantic_units(architecture, prefill, generated)
    assert found.compute_units == ceil(Fraction(2 * found.parts.total(), 10**6))
    assert found.compute_units - 1 < Fraction(2 * found.parts.total(), 10**6)


def test_the_number_of_experts_counts_in_the_router_alone() -> None:
    layer = QWEN.layers[0]
    assert isinstance(layer.feed_forward, ExpertFeedForward)
    doubled = replace(layer, feed_forward=replace(layer.feed_forward, experts=512))
    one, other = (replace(QWEN, layers=(x,)) for x in (layer, doubled))
    difference = semantic_units(other, 1, 0).parts.total() - semantic_units(one, 1, 0).parts.total()
    assert difference == 256 * 2048


@pytest.mark.parametrize("counts", [(0, 1), (-1, 1), (1, -1), (MAX_TOKENS + 1, 0), (1, 2**32)])
def test_counts_out_of_range_are_refused(counts: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="tokens is out of range"):
        semantic_units(QWEN, *counts)


def test_large_numbers_are_exact_and_64_bits_are_the_end() -> None:
    found = semantic_units(QWEN, MAX_TOKENS, MAX_TOKENS)
    n = 2 * MAX_TOKENS
    mac = n * 2977628160 + n * (n + 1) // 2 * 16 * 256 * 2 * 10
    assert found.parts.total() == mac
    assert found.compute_units == -(-2 * mac // 10**6)
    wide = replace(QWEN, hidden=2**32 - 1, vocabulary=2**32 - 1)
    assert semantic_units(wide, 1, 0).compute_units > 2**44
    with pytest.raises(InputError, match="overflow"):
        semantic_units(wide, MAX_TOKENS, MAX_TOKENS)


def test_an_unknown_profile_is_refused_with_the_list() -> None:
    with pytest.raises(UsageError) as caught:
        profile_architecture("gpt-5")
    assert caught.value.expected == "qwen3.6-35b-a3b"


def test_no_float_anywhere() -> None:
    """No literal, no true division, no float type and no mathematics module."""
    files = sorted(Path(next(iter(tallystick.compute.__path__))).glob("*.py"))
    assert len(files) >= 7
    for file in files:
        for node in ast.walk(ast.parse(file.read_bytes())):
            assert not (isinstance(node, ast.Constant) and isinstance(node.value, float)), file
            assert not isinstance(node, ast.Div), file
            assert not (isinstance(node, ast.Name) and node.id in {"float", "round"}), file
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
                assert not names & {"math", "decimal", "fractions", "numpy"}, file
