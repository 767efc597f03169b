"""Sampling: the draw is what the specification says, whatever the row looks like."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.canonical.hashing import domain_hash, u64le
from tallystick.errors import RunFailedError
from tallystick.execution import sampling

BAD = (math.nan, -math.nan, math.inf, -math.inf)
LOGITS = st.lists(
    st.one_of(
        st.floats(-60, 60, width=32),
        st.floats(-16000, 16000, width=32),
        st.sampled_from([0.0, -0.0, 1e-45, 7.0, 7.5, -3.0e38]),
    ),
    min_size=1,
    max_size=40,
).filter(lambda row: abs(max(row)) < 16000)
TEMPERATURES = st.one_of(st.integers(1, 20_000), st.sampled_from([1, 10_000, 20_000]))
SEEDS = st.integers(0, 2**64 - 1)


def row(values: Sequence[float]) -> memoryview:
    return memoryview(np.array(values, np.float32).tobytes())


def unfiltered(values: Sequence[float], temperature: int, seed: int, position: int) -> int:
    """The draw over the whole row, plainly."""
    masses = sampling.weights(np.array(values, np.float32), temperature).tolist()
    digest = domain_hash("tallystick.sample", 1, [u64le(seed), u64le(position)])
    bound = int.from_bytes(digest[:8], "big") * sum(masses) >> 64
    running = 0
    for token, mass in enumerate(masses):
        running += mass
        if running > bound:
            return token
    raise AssertionError("the bound is below the sum")


@settings(deadline=None)
@given(LOGITS, TEMPERATURES, SEEDS, st.integers(0, 4096))
def test_the_candidate_filter_never_changes_a_draw(
    values: list[float], temperature: int, seed: int, position: int
) -> None:
    found = sampling.seeded(row(values), temperature, seed, position)

    assert found == unfiltered(values, temperature, seed, position)


@settings(deadline=None)
@given(LOGITS, TEMPERATURES)
def test_every_id_with_a_weight_is_a_candidate(values: list[float], temperature: int) -> None:
    array = np.array(values, np.float32)
    kept = sampling.candidates(array, float(array.max()), temperature)

    assert set(np.flatnonzero(sampling.weights(array, temperature))) <= set(kept)


def test_the_filter_drops_what_has_no_weight() -> None:
    array = np.array([0, -30, -24, 0, -1000], np.float32)

    assert sampling.candidates(array, 0.0, 10_000).tolist() == [0, 2, 3]


@settings(deadline=None)
@given(LOGITS, TEMPERATURES)
def test_larger_logits_never_weigh_less(values: list[float], temperature: int) -> None:
    array = np.sort(np.array(values, np.float32))
    masses = sampling.weights(array, temperature).tolist()

    assert masses == sorted(masses)
    assert masses[-1] == 2**30


@settings(deadline=None)
@given(LOGITS)
def test_greedy_is_the_first_of_the_largest(values: list[float]) -> None:
    array = np.array(values, np.float32).tolist()

    assert sampling.greedy(row(values)) == array.index(max(array))


@settings(deadline=None)
@given(LOGITS)
def test_a_low_temperature_draws_among_the_largest(values: list[float]) -> None:
    array = np.array(values, np.float32)
    token = sampling.seeded(row(values), 1, 0, 0)

    # Logits nearer than 2^-16 are one fixed-point number, and one temperature unit is 10^-4.
    assert float(array.max()) - float(array[token]) < 0.0021


def test_ties_go_to_the_lowest_index() -> None:
    assert sampling.greedy(row([1, 5, 5, 5])) == 1
    assert sampling.greedy(row([-0.0, 0.0])) == 0
    assert sampling.greedy(row([0.0, -0.0])) == 0


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("place", [0, 1, 499, 998, 999])
def test_a_logit_that_is_not_finite_fails_the_run_wherever_it_is(bad: float, place: int) -> None:
    values = [math.sin(i) for i in range(1000)]
    values[place] = bad
    with pytest.raises(RunFailedError, match="not finite"):
        sampling.greedy(row(values))
    with pytest.raises(RunFailedError, match="not finite"):
        sampling.seeded(row(values), 10_000, 1, 1)


@pytest.mark.parametrize("value", [16384.0, -16384.0, 32768.0, 3.0e38, -3.0e38])
def test_a_largest_logit_beyond_the_bound_fails_a_seeded_run(value: float) -> None:
    with pytest.raises(RunFailedError, match="beyond"):
        sampling.seeded(row([value, value]), 10_000, 0, 0)
    assert sampling.greedy(row([value, value])) == 0


def test_masked_logits_are_no_obstacle() -> None:
    """Some graphs write the most negative float over ids that may not be sampled."""
    lowest = float(np.finfo(np.float32).min)
    drawn = {sampling.seeded(row([lowest, 1, lowest, 1]), 20_000, 3, i) for i in range(50)}

    assert drawn == {1, 3}


def test_seed_and_position_are_all_that_the_draw_hangs_on() -> None:
    logits = row([0.0] * 64)
    draws = {(s, p): sampling.seeded(logits, 10_000, s, p) for s in range(8) for p in range(8)}

    assert len(set(draws.values())) > 30
    assert draws == {(s, p): sampling.seeded(logits, 10_000, s, p) for s, p in draws}
    assert draws[0, 1] != draws[1, 0]


@pytest.mark.parametrize("temperature", [5_000, 10_000, 20_000])
def test_the_distribution_is_the_softmax(temperature: int) -> None:
    """On fixed seeds, so the outcome is the same on every day."""
    values = [2.0, 1.0, 0.0, -1.0, 1.5]
    exact = [math.exp(value * 10_000 / temperature) for value in values]
    draws = 2000
    counts = Counter(
        sampling.seeded(row(values), temperature, seed, seed % 97) for seed in range(draws)
    )
    chi2 = sum(
        (counts[token] - draws * share / sum(exact)) ** 2 / (draws * share / sum(exact))
        for token, share in enumerate(exact)
    )

    assert chi2 < 13.3  # the 99th percentile for 4 degrees of freedom


@settings(deadline=None)
@given(st.lists(st.floats(-20, 0, width=32), min_size=2, max_size=20), TEMPERATURES)
def test_weights_are_near_the_exponential(values: list[float], temperature: int) -> None:
    fixed = sampling.fixed_point(np.array(values, np.float32))
    masses = sampling.weights(np.array(values, np.float32), temperature)
    for level, mass in zip(fixed, masses, strict=True):
        exact = 2**30 * math.exp(-float(fixed.max() - level) / 65536 * 10_000 / temperature)
        assert abs(int(mass) - exact) <= 2 + exact * 3e-5


@pytest.mark.parametrize(
    ("text", "unit"), [("0", 0), ("0.0001", 1), ("0.75", 7500), ("1", 10_000), ("2", 20_000)]
)
def test_a_temperature_is_counted_in_ten_thousandths(text: str, unit: int) -> None:
    assert sampling.parse_temperature(text) == unit
