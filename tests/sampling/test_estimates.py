"""Figures follow from weights, sums can be merged, and intervals have the stated coverage."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from shared.sampling.estimates import Sums, t_975
from shared.sampling.model import Weight
from tests.sampling.reference import Item, figures

ITEMS = st.lists(
    st.builds(
        Item,
        st.builds(
            Weight,
            st.sampled_from([1.0, 1.5, 2.0, 4.0, 10.0]),
            st.booleans(),
        ),
        st.none() | st.integers(-100, 100).map(float),
        st.sampled_from(["", "a", "b", "c"]),
    ),
    max_size=30,
)


def item(k: float, x: float | None = None, operation_id: str = "") -> Item:
    return Item(Weight(k), x, operation_id)


@given(ITEMS)
def test_without_sampling_all_errors_are_zero(items: list[Item]) -> None:
    unsampled = [Item(Weight(1.0, i.weight.trusted), i.value, i.operation_id) for i in items]
    estimates = figures(unsampled)
    assert estimates.count.standard_error == estimates.total.standard_error == 0
    assert estimates.count.low == estimates.count.high == len(items)
    assert estimates.total.low == estimates.total.high == estimates.raw_sum
    assert estimates.sampling_rate_percent == (100 if items else None)
    assert estimates.effective_records == len(items)


@given(ITEMS)
def test_figures_are_finite_and_ordered(items: list[Item]) -> None:
    estimates = figures(items)
    for estimate in (estimates.count, estimates.total):
        assert estimate.low <= estimate.value <= estimate.high
        assert math.isfinite(estimate.high)
    assert estimates.count.low >= estimates.records
    assert estimates.effective_records <= len(items) + 1e-9


def test_figures_agree_with_a_calculation_by_hand() -> None:
    doubtful = Item(Weight(1.0, trusted=False), 7, "b")
    estimates = figures([item(4, 2, "a"), item(4, 3, "a"), item(2, 5), doubtful])
    assert (estimates.records, estimates.raw_sum, estimates.weight_max) == (4, 17, 4)
    assert estimates.count.value == 11
    assert estimates.total.value == 8 + 12 + 10 + 7
    assert estimates.sampling_rate_percent == pytest.approx(400 / 11)
    assert estimates.effective_records == pytest.approx(121 / 37)
    assert estimates.total.standard_error**2 == pytest.approx(4 * 3 * 5**2 + 2 * 5**2)
    assert estimates.sum_variance == pytest.approx(4 * 3 * 13 + 2 * 5**2)
    assert estimates.count.standard_error**2 == pytest.approx(4 * 3 * 2**2 + 2)
    assert estimates.doubtful == 1


def test_the_sampling_rate_is_the_share_of_kept_records_and_not_the_mean_rate() -> None:
    weights = [1, 1, 1, 5]
    assert figures([item(k) for k in weights]).sampling_rate_percent == 100 * 4 / 8
    assert sum(100 / k for k in weights) / len(weights) == 80


def test_enumerating_all_outcomes_shows_that_the_variance_of_mixed_rates_is_unbiased() -> None:
    """Three rates in one operation share one random number."""
    population = [(2, 3), (4, 5), (4, 1), (8, 2)]
    total = sum([x for _, x in population])
    true_variance = expected_variance = expected_total = Fraction(0)
    thresholds = [Fraction(0), *[Fraction(1, k) for k in (8, 4, 2, 1)]]
    for below, above in pairwise(thresholds):
        kept = [(k, x) for k, x in population if Fraction(1, k) >= above]
        estimate = sum([k * x for k, x in kept])
        share = Fraction(figures([item(k, x, "op") for k, x in kept]).sum_shares)
        probability = above - below
        expected_total += probability * estimate
        expected_variance += probability * share
        true_variance += probability * (estimate - total) ** 2
    assert expected_total == total
    assert float(expected_variance) == pytest.approx(float(true_variance))


@pytest.mark.parametrize("degrees", [*range(1, 40), 100, 1000, 10**6])
def test_quantiles_of_t_agree_with_scipy(degrees: int) -> None:
    assert t_975(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=1e-3)


Rule = Callable[[np.random.Generator, int], np.ndarray]
ROUNDS = 400


def one_in(k: float) -> Rule:
    return lambda _, operations: np.full(operations, k)


def mixed(rng: np.random.Generator, operations: int) -> np.ndarray:
    return rng.choice([1, 2, 5, 20], operations)


class MonteCarlo:
    """Samples one population many times by whole operations, and counts how often the intervals
    contain the true value."""

    def __init__(self, operations: int, weights: Rule, seed: int) -> None:
        rng = np.random.default_rng(seed)
        sizes = 1 + rng.poisson(2.0, operations)
        owner = np.repeat(np.arange(operations), sizes)
        values = rng.gamma(2, 10, operations)[owner] * rng.gamma(4, 0.25, owner.size)
        k = weights(rng, operations)
        truth = values.sum()
        self.held = self.held_by_record = self.count_held = 0
        ratios = []
        for _ in range(ROUNDS):
            kept = (rng.random(operations) < 1 / k)[owner]
            estimates = self._figures(k[owner][kept], values[kept], owner[kept])
            ratios.append(estimates.total.value / truth)
            miss = abs(estimates.total.value - truth)
            self.held += estimates.total.low <= truth <= estimates.total.high
            self.held_by_record += miss <= 1.96 * math.sqrt(estimates.sum_variance)
            self.count_held += estimates.count.low <= owner.size <= estimates.count.high
        self.bias = float(np.mean(ratios)) - 1
        self.bias_error = float(np.std(ratios)) / math.sqrt(ROUNDS)

    @staticmethod
    def _figures(k: np.ndarray, x: np.ndarray, owner: np.ndarray) -> Sums:
        kept = zip(k.tolist(), x.tolist(), owner.tolist(), strict=True)
        return figures([item(a, b, str(c)) for a, b, c in kept])


@pytest.mark.parametrize(
    ("operations", "weights", "at_least"),
    [
        (800, one_in(4), 0.92),
        (800, one_in(10), 0.91),
        (800, mixed, 0.91),
        (100, one_in(10), 0.85),
    ],
    ids=["one in 4", "one in 10", "mixed", "few operations"],
)
def test_intervals_by_operation_have_the_stated_coverage_and_those_by_record_do_not(
    operations: int, weights: Rule, at_least: float
) -> None:
    run = MonteCarlo(operations, weights, seed=11)
    assert abs(run.bias) < 4 * run.bias_error
    assert run.held / ROUNDS >= at_least
    assert run.count_held / ROUNDS >= at_least
    assert run.held / ROUNDS <= 0.985
    assert run.held_by_record / ROUNDS < 0.85


@pytest.mark.parametrize(("operations", "t"), [(2, 12.7062), (3, 4.3027), (5, 2.7764)])
def test_the_interval_of_n_equal_shares_has_n_minus_1_degrees_of_freedom(
    operations: int, t: float
) -> None:
    """A variance from two operations is very uncertain: t is 12.7, and not 4.3."""
    estimates = figures([item(4, 10, f"operation {n}") for n in range(operations)])
    for estimate in (estimates.count, estimates.total):
        assert estimate.high - estimate.value == pytest.approx(t * estimate.standard_error)
    alone = figures([item(4, 10) for _ in range(operations)])
    assert alone.total.high - alone.total.value == pytest.approx(t * alone.total.standard_error)


def test_the_relative_width_of_an_interval_does_not_depend_on_the_unit() -> None:
    small, large = (figures([item(4, x, "a"), item(4, x, "b")]).total for x in (0.001, 1000))
    assert small.high / small.value == pytest.approx(large.high / large.value)
    assert small.high > small.value


def test_sums_of_two_parts_add_up_and_keep_the_largest_weight() -> None:
    names = [each.name for each in fields(Sums)]
    one = Sums(**{name: 2**n for n, name in enumerate(names)})
    two = Sums(**{name: 3 * 2**n for n, name in enumerate(names)})
    for merged_sums in (one.merge(two), two.merge(one)):
        for name in names:
            largest = getattr(two, name)
            added = getattr(one, name) + largest
            expected = largest if name == "weight_max" else added
            assert getattr(merged_sums, name) == expected, name
