"""From a model's numbers to its description: defaults, families, and what has no description."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tallystick.compute.architecture import (
    MAX_LAYERS,
    Architecture,
    AttentionMixer,
    DeltaNetMixer,
    DenseFeedForward,
    ExpertFeedForward,
    LayerDescription,
)
from tallystick.compute.families import FAMILIES, ModelNumbers, describe
from tallystick.compute.profiles import PublishedNumbers
from tallystick.errors import IncomparableError, InputError, TallystickError
from tests.unit.compute.descriptions import DENSE, FAMILY_NUMBERS, GEMMA, HYBRID, NOTHING


def layers(numbers: ModelNumbers) -> tuple[LayerDescription, ...]:
    return describe(numbers).layers


def attention(layer: LayerDescription) -> AttentionMixer:
    assert isinstance(layer.mixer, AttentionMixer)
    return layer.mixer


def changed(numbers: PublishedNumbers, **widths: int) -> PublishedNumbers:
    return replace(numbers, shape=replace(numbers.shape, **widths))


def test_every_family_is_described() -> None:
    described = {describe(numbers).name for numbers in FAMILY_NUMBERS.values()}
    assert described == set(FAMILIES)
    assert len({describe(x).architecture_id for x in FAMILY_NUMBERS.values()}) == 8


def test_a_dense_model() -> None:
    expected = LayerDescription(AttentionMixer(4, 2, 64, 64), DenseFeedForward(512))
    assert describe(DENSE) == Architecture("llama", 256, 1000, (expected,) * 3)


def test_absent_widths_follow_from_the_others() -> None:
    bare = replace(DENSE, shape=replace(NOTHING, heads=8, feed_forward=512))
    assert attention(layers(bare)[0]) == AttentionMixer(8, 8, 32, 32)
    wide = changed(DENSE, key_length=128, value_length=96)
    assert attention(layers(wide)[0]) == AttentionMixer(4, 2, 128, 96)


def test_what_the_dense_families_add() -> None:
    for name, biased, head_norms in (("qwen2", True, False), ("qwen3", False, True)):
        mixer = attention(layers(FAMILY_NUMBERS[name])[0])
        assert (mixer.biased, mixer.head_norms) == (biased, head_norms)


def test_experts_and_their_widths() -> None:
    experts = replace(DENSE, experts=16, experts_used=4)
    assert layers(experts)[0].feed_forward == ExpertFeedForward(16, 4, 512)
    moe = replace(experts, architecture="qwen3moe")
    assert layers(moe)[0].feed_forward == ExpertFeedForward(16, 4, 128)
    stated = changed(moe, expert_feed_forward=96)
    assert layers(stated)[0].feed_forward == ExpertFeedForward(16, 4, 96)


def windows(numbers: PublishedNumbers) -> list[int]:
    return [attention(layer).window for layer in layers(numbers)]


def test_windows_of_the_gemmas() -> None:
    assert windows(GEMMA) == [16, 16, 16, 16, 16, 0, 16]
    assert windows(replace(GEMMA, architecture="gemma2")) == [16, 0, 16, 0, 16, 0, 16]
    assert windows(changed(GEMMA, sliding_window_period=3)) == [16, 16, 0, 16, 16, 0, 16]
    assert windows(changed(GEMMA, sliding_window=0)) == [0] * 7
    bare = changed(replace(GEMMA, architecture="gemma2"), sliding_window=0)
    assert windows(bare) == [4096, 0, 4096, 0, 4096, 0, 4096]
    layer = layers(GEMMA)[0]
    assert layer.post_norms
    assert layer.feed_forward == DenseFeedForward(512, "gelu")
    assert attention(layer).head_norms
    assert not attention(layers(replace(GEMMA, architecture="gemma2"))[0]).head_norms


def test_the_layers_of_a_hybrid() -> None:
    found = layers(HYBRID)
    assert [isinstance(x.mixer, AttentionMixer) for x in found] == [False, False, False, True] * 2
    assert found[0].mixer == DeltaNetMixer(4, 8, 32, 32, 4)
    assert attention(found[3]) == AttentionMixer(4, 2, 64, 64, gated=True, head_norms=True)
    assert {x.feed_forward for x in found} == {ExpertFeedForward(16, 4, 32, 48, shared_gate=True)}
    assert layers(changed(HYBRID, full_attention_interval=0)) == found
    assert len(layers(changed(HYBRID, draft_layers=1))) == 7
    bare = changed(HYBRID, shared_feed_forward=0, expert_feed_forward=0)
    assert layers(bare)[0].feed_forward == ExpertFeedForward(16, 4, 8, 32, shared_gate=True)


def test_an_unknown_architecture_has_no_price_and_names_those_that_have() -> None:
    with pytest.raises(IncomparableError) as caught:
        describe(replace(DENSE, architecture="mamba"))
    assert caught.value.found == "mamba"
    assert set((caught.value.expected or "").split(" or ")) == set(FAMILIES)
    assert {"llama", "qwen2", "qwen3", "gemma3", "qwen35moe"} <= set(FAMILIES)


class _Uneven:
    architecture, layers, embedding, vocabulary, experts, experts_used = "llama", 3, 256, 9, 0, 0
    shape = None


def test_a_model_of_uneven_layers_has_no_price() -> None:
    with pytest.raises(IncomparableError, match="from layer to layer"):
        describe(_Uneven())


@pytest.mark.parametrize(
    "numbers",
    [
        replace(DENSE, layers=0),
        replace(DENSE, layers=MAX_LAYERS + 1),
        replace(DENSE, layers=2**32 - 1),
        replace(DENSE, embedding=0),
        replace(DENSE, vocabulary=0),
        replace(DENSE, experts=4, experts_used=0),
        replace(DENSE, experts=4, experts_used=5),
        replace(DENSE, architecture="qwen3moe"),
        changed(DENSE, heads=0),
        changed(DENSE, heads=4, heads_kv=3),
        changed(DENSE, feed_forward=0),
        changed(replace(DENSE, embedding=3), key_length=0),
        changed(HYBRID, ssm_inner=255),
        changed(HYBRID, ssm_groups=3),
        changed(HYBRID, ssm_kernel=0),
        changed(HYBRID, ssm_rank=0, ssm_inner=0),
        changed(HYBRID, ssm_groups=0),
        changed(HYBRID, draft_layers=8),
        changed(HYBRID, draft_layers=9),
    ],
)
def test_missing_and_contradicting_numbers_are_refused(numbers: PublishedNumbers) -> None:
    with pytest.raises(InputError):
        describe(numbers)


def test_hostile_numbers_end_in_our_errors() -> None:
    for name in FAMILIES:
        for huge in (0, 1, 2**32 - 1):
            shape = replace(NOTHING, **dict.fromkeys(NOTHING.__dataclass_fields__, huge))
            numbers = PublishedNumbers(name, min(huge, MAX_LAYERS), huge, huge, huge, huge, shape)
            try:
                described = describe(numbers)
            except TallystickError:
                continue
            assert len(described.architecture_id) == 32
