"""The semantic schedule agrees with the rule of the compute units, and changes with every input."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tallystick.compute.architecture import Architecture, AttentionMixer, ExpertFeedForward
from tallystick.compute.families import describe
from tallystick.compute.operations import (
    Attention,
    EmbeddingLookup,
    ExpertGemm,
    ExpertRoute,
    GatedDeltaNet,
    Gemm,
    Generic,
    Operation,
    SsmConv,
)
from tallystick.compute.profiles import PROFILES, profile_architecture
from tallystick.compute.schedule import (
    ScheduledOperation,
    SemanticSchedule,
    SemanticSummary,
    semantic_schedule,
    summarise_schedule,
)
from tallystick.compute.semantic import semantic_units
from tallystick.errors import InputError
from tests.unit.compute.descriptions import FAMILY_NUMBERS

QWEN = profile_architecture("qwen3.6-35b-a3b")
ARCHITECTURES = {
    **{name: profile_architecture(name) for name in PROFILES},
    **{name: describe(numbers) for name, numbers in FAMILY_NUMBERS.items()},
}


def mac(operation: Operation) -> int:
    """Return the multiply-accumulates of an operation; those of attention are counted apart."""
    if isinstance(operation, Gemm):
        return operation.m * operation.n * operation.k * operation.batch
    if isinstance(operation, ExpertGemm):
        return operation.m * operation.n * operation.k * operation.top_k
    if isinstance(operation, SsmConv):
        return operation.tokens * operation.channels * operation.kernel
    if isinstance(operation, GatedDeltaNet):
        state = operation.heads * operation.key_dim * operation.value_dim
        return 2 * operation.tokens * state
    return 0


def both(schedule: SemanticSchedule) -> tuple[ScheduledOperation, ...]:
    return schedule.prefill + schedule.decode


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("counts", [(5, 2), (1, 0), (1, 1), (40, 30)])
def test_the_products_of_the_schedule_are_what_is_priced(
    name: str, counts: tuple[int, int]
) -> None:
    architecture = ARCHITECTURES[name]
    scheduled = sum(mac(x.operation) for x in both(semantic_schedule(architecture, *counts)))
    parts = semantic_units(architecture, *counts).parts
    assert scheduled == parts.total() - parts.attention


def test_the_expert_routes_of_the_qwen_model_are_eighty() -> None:
    schedule = semantic_schedule(QWEN, 5, 2)
    assert schedule.count(ExpertRoute) == 80
    assert semantic_schedule(QWEN, 512, 128).count(ExpertRoute) == 80
    assert semantic_schedule(QWEN, 5, 0).count(ExpertRoute) == 40
    assert schedule.operations == len(both(schedule)) == 3046
    assert schedule.count(GatedDeltaNet) == schedule.count(SsmConv) == 60
    assert schedule.count(Attention) == 20
    # 10 layers of 4 mixer products, 30 of 5, 40 of router and shared expert, and the head.
    assert schedule.count(Gemm) == 2 * (10 * 4 + 30 * 5 + 40 * 4 + 1)
    assert schedule.count(ExpertGemm) == 2 * 40 * 3
    assert schedule.count(Generic) == 0


def test_stages_are_the_embedding_the_layers_and_the_head() -> None:
    schedule = semantic_schedule(QWEN, 5, 2)
    for phase, tokens in ((schedule.prefill, 5), (schedule.decode, 2)):
        stages = [x.stage for x in phase]
        assert stages == sorted(stages)
        assert set(stages) == set(range(42))
        assert phase[0].operation == EmbeddingLookup(2048 * tokens)
        assert phase[-1].operation == Gemm(248320, tokens, 2048, 1)


def reaches(architecture: Architecture, prefill: int, generated: int) -> list[tuple[int, int]]:
    schedule = semantic_schedule(architecture, prefill, generated)
    found = [x.operation for x in both(schedule) if isinstance(x.operation, Attention)]
    return sorted({(x.query_tokens, x.kv_tokens) for x in found})


def test_attention_reaches_over_both_phases_and_no_further_than_its_window() -> None:
    assert reaches(QWEN, 5, 2) == [(2, 7), (5, 5)]
    gemma = ARCHITECTURES["gemma3"]
    windows = {x.mixer.window for x in gemma.layers if isinstance(x.mixer, AttentionMixer)}
    assert windows == {0, 16}
    assert reaches(gemma, 20, 3) == [(3, 18), (3, 23), (20, 20)]


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("counts", [(5, 2), (1, 0), (40, 30)])
def test_the_summary_is_that_of_the_schedule(name: str, counts: tuple[int, int]) -> None:
    whole = semantic_schedule(ARCHITECTURES[name], *counts)
    routes = whole.count(ExpertRoute)
    expected = SemanticSummary(whole.commitment, whole.operations, routes)
    assert summarise_schedule(ARCHITECTURES[name], *counts) == expected


def test_the_commitment_changes_with_every_input() -> None:
    layer = QWEN.layers[-1]
    assert isinstance(layer.feed_forward, ExpertFeedForward)
    other = replace(layer, feed_forward=replace(layer.feed_forward, used=7))
    variants = [
        semantic_schedule(QWEN, 5, 2),
        semantic_schedule(QWEN, 2, 5),
        semantic_schedule(QWEN, 6, 1),
        semantic_schedule(QWEN, 7, 0),
        semantic_schedule(replace(QWEN, name="qwen36moe"), 5, 2),
        semantic_schedule(replace(QWEN, vocabulary=248321), 5, 2),
        semantic_schedule(replace(QWEN, layers=QWEN.layers[:-1]), 5, 2),
        semantic_schedule(replace(QWEN, layers=(*QWEN.layers[:-1], other)), 5, 2),
    ]
    assert len({x.commitment for x in variants}) == len(variants)
    assert semantic_schedule(QWEN, 5, 2) == variants[0]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="out of range"):
        semantic_schedule(QWEN, 0, 1)
    with pytest.raises(InputError, match="does not fit"):
        semantic_schedule(QWEN, 2**31, 1)
