"""Rulesets v1 and v2: the table, rounding, limits; which ruleset takes which operation."""

from __future__ import annotations

from dataclasses import fields
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.compute.operations import (
    KINDS,
    Attention,
    Elementwise,
    ElementwiseAdd,
    ElementwiseMultiply,
    EmbeddingLookup,
    ExpertRoute,
    Gemm,
    Generic,
    KvCacheRead,
    KvCacheWrite,
    LayerNorm,
    Operation,
    RmsNorm,
    Rotary,
    Silu,
    Softmax,
    TensorCopy,
)
from tallystick.compute.rules import (
    RULES_V1,
    RULES_V2,
    RULES_V3,
    RULESETS,
    ComputeUnitCounter,
    matching_ruleset_id,
    ruleset_of_version,
)
from tallystick.errors import EvidenceError

GEMM_REFERENCE = 4096**3
MIB = 1024 * 1024
U32_MAX, U64_MAX = 2**32 - 1, 2**64 - 1


@pytest.mark.parametrize(
    ("operation", "units"),
    [
        (Gemm(4096, 4096, 4096, 1), 120),
        (Gemm(4096, 4096, 4096, 7), 840),
        (Attention(4096, 4096, 32, 128, 1), 80),
        (LayerNorm(4096, 1), 8),
        (RmsNorm(64, 64), 8),
        (Rotary(4, 8, 128), 4),
        (ExpertRoute(2, 256, 8), 16),
        (KvCacheRead(MIB), 1),
        (KvCacheWrite(5 * MIB), 5),
        (TensorCopy(5 * MIB + 1), 6),
        (Silu(4096), 2),
        (ElementwiseMultiply(4096), 2),
        (ElementwiseAdd(2048), 1),
        (ElementwiseAdd(2049), 2),
        (Softmax(4096), 4),
        (EmbeddingLookup(4096), 1),
        (EmbeddingLookup(4097), 2),
        (Gemm(1, 1, 1, 1), 1),
        (Silu(0), 1),
        (Gemm(0, 4096, 4096, 1), 1),
    ],
)
def test_the_table(operation: Operation, units: int) -> None:
    assert RULES_V1.cost(operation) == RULES_V2.cost(operation) == units


def test_generic_is_priced_by_v2_alone() -> None:
    assert [RULES_V2.cost(Generic(c, 4097)) for c in (1, 11, 2**32 - 1)] == [3, 3, 3]
    with pytest.raises(EvidenceError, match="ruleset v1 does not price a generic operation"):
        RULES_V1.cost(Generic(1, 1))
    with pytest.raises(EvidenceError, match="ruleset v3 does not price a generic operation"):
        RULES_V3.cost(Generic(1, 1))


def test_which_ruleset_prices_what() -> None:
    operations = [kind(*(1 for _ in fields(kind))) for kind in KINDS]
    for rules, tags in zip(RULESETS, (range(14), range(15), range(0)), strict=True):
        for operation in operations:
            if operation.tag in tags:
                assert rules.cost(operation) >= 1
            else:
                with pytest.raises(EvidenceError, match="does not price"):
                    rules.cost(operation)


def test_v3_prices_no_single_operation() -> None:
    with pytest.raises(EvidenceError) as caught:
        RULES_V3.cost(Gemm(1, 1, 1, 1))
    assert "as a whole" in (caught.value.expected or "")


@given(*(st.integers(0, U32_MAX) for _ in range(3)), st.integers(0, 2**20))
def test_a_price_is_the_rounded_up_quotient(m: int, n: int, k: int, batch: int) -> None:
    exact = ceil(Fraction(m * n * k * batch * 120, GEMM_REFERENCE))
    rules, operation = RULES_V1, Gemm(m, n, k, batch)
    if m * n * k * batch * 120 >= 2**128 or exact > U64_MAX:
        with pytest.raises(EvidenceError, match="overflows"):
            rules.cost(operation)
    else:
        assert rules.cost(operation) == max(1, exact)


@pytest.mark.parametrize(
    "operation",
    [
        Gemm(U32_MAX, U32_MAX, U32_MAX, U32_MAX),  # work fits 128 bits, work * 120 does not
        Attention(U32_MAX, U32_MAX, U32_MAX, U32_MAX, U32_MAX),  # work does not
        Gemm(U32_MAX, U32_MAX, U32_MAX, 2**12),  # the price does not fit 64 bits
    ],
)
def test_overflow_is_refused_at_every_step(operation: Operation) -> None:
    with pytest.raises(EvidenceError, match="overflows"):
        RULES_V1.cost(operation)


def test_a_refused_operation_leaves_the_counter_as_it_was() -> None:
    counter = ComputeUnitCounter(RULES_V1)
    assert (counter.record(Gemm(4096, 4096, 4096, 1)), counter.record(Silu(1))) == (120, 1)
    for refused in (
        Generic(1, 1),
        Elementwise(1),
        Attention(U32_MAX, U32_MAX, U32_MAX, U32_MAX, 1),
    ):
        with pytest.raises(EvidenceError):
            counter.record(refused)
        assert (counter.total, counter.operations) == (121, 2)
    assert counter.record(Silu(1)) == 1
    assert (counter.total, counter.operations) == (122, 3)


def test_what_is_executed_often_counts_as_often() -> None:
    counter = ComputeUnitCounter(RULES_V1)
    assert counter.record(Gemm(4096, 4096, 4096, 1), 3) == 120
    with pytest.raises(EvidenceError, match="sum of compute units overflows"):
        counter.record(Silu(1), U64_MAX)
    assert (counter.total, counter.operations) == (360, 3)


def test_the_sum_is_within_64_bits() -> None:
    counter = ComputeUnitCounter(RULES_V1)
    large = Gemm(2**32 - 1, 2**32 - 1, 2**26, 1)
    cost = RULES_V1.cost(large)
    recorded = 0
    while counter.total + cost <= U64_MAX:
        counter.record(large)
        recorded += 1
    before = counter.total
    with pytest.raises(EvidenceError, match="sum of compute units overflows"):
        counter.record(large)
    assert 1 <= recorded < 100
    assert (counter.total, counter.operations) == (before, recorded)


def test_rulesets_are_found_by_id_and_by_version() -> None:
    assert len({rules.ruleset_id for rules in RULESETS}) == 3
    for rules in RULESETS:
        assert matching_ruleset_id(rules.ruleset_id) is rules
        assert ruleset_of_version(rules.version) is rules
    assert matching_ruleset_id(bytes(32)) is None
    assert matching_ruleset_id(RULES_V1.ruleset_id[:-1]) is None
    for version in (0, 4):
        with pytest.raises(EvidenceError, match="unknown version"):
            ruleset_of_version(version)


def test_v2_is_v1_with_one_more_term() -> None:
    assert RULES_V2.payload == RULES_V1.payload.replace(b"ceil;min1", b"generic=2/4096;ceil;min1")
