from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.autoscaling.deciding.samples import SAMPLES_KEPT_MAX, MergeOutcome, merge
from shared.autoscaling.errors import BadMessage
from shared.autoscaling.measurements import CAPACITY_METRIC
from shared.autoscaling.state import ScalingState
from tests.builders import NOW, ago, metric, sample

WINDOW_SECONDS = 600


def test_a_second_sample_of_the_same_time_is_a_duplicate_and_changes_nothing() -> None:
    once = merge(ScalingState(), metric(5, 30), NOW, WINDOW_SECONDS).state
    again = merge(once, metric(6, 30), NOW, WINDOW_SECONDS)
    assert again.outcome is MergeOutcome.DUPLICATE
    assert again.state is once


def test_a_late_sample_is_inserted_in_order_of_time() -> None:
    state = merge(ScalingState(), metric(1, 10), NOW, WINDOW_SECONDS).state
    state = merge(state, metric(2, 20), NOW, WINDOW_SECONDS).state
    assert state.histories["backlog"].samples == (sample(2, 20), sample(1, 10))


def test_a_sample_older_than_the_window_is_dropped_and_changes_nothing() -> None:
    before = ScalingState()
    merged = merge(before, metric(5, 601), NOW, WINDOW_SECONDS)
    assert merged.outcome is MergeOutcome.STALE
    assert merged.state is before


def test_a_sample_exactly_as_old_as_the_window_is_accepted() -> None:
    assert (
        merge(ScalingState(), metric(5, 600), NOW, WINDOW_SECONDS).outcome is MergeOutcome.ACCEPTED
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 1e200])
def test_a_value_that_is_not_a_valid_measurement_is_refused(value: float) -> None:
    with pytest.raises(BadMessage, match="not a number from 0 to 1e\\+15"):
        merge(ScalingState(), metric(value), NOW, WINDOW_SECONDS)


def test_a_sample_from_the_future_is_refused_beyond_the_tolerance_of_clocks() -> None:
    assert (
        merge(ScalingState(), metric(5, -59), NOW, WINDOW_SECONDS).outcome is MergeOutcome.ACCEPTED
    )
    with pytest.raises(BadMessage, match="in the future"):
        merge(ScalingState(), metric(5, -61), NOW, WINDOW_SECONDS)


def test_samples_that_have_left_the_window_are_dropped() -> None:
    state = merge(ScalingState(), metric(1, 599), NOW, WINDOW_SECONDS).state
    state = merge(state, metric(2, 0), ago(-2), WINDOW_SECONDS).state
    assert state.histories["backlog"].samples == (sample(2),)


def test_a_history_keeps_a_bounded_number_of_samples() -> None:
    state = ScalingState()
    for i in range(SAMPLES_KEPT_MAX + 5):
        state = merge(state, metric(i, 500 - i / 10), NOW, WINDOW_SECONDS).state
    assert len(state.histories["backlog"].samples) == SAMPLES_KEPT_MAX
    assert state.histories["backlog"].samples[-1].value == SAMPLES_KEPT_MAX + 4


def test_only_changes_of_the_capacity_and_its_newest_sample_are_kept_in_any_arrival_order() -> None:
    state = ScalingState()
    for value, age in ((4, 5), (3, 65), (3, 95), (3, 80), (4, 20), (4, 35)):
        sent = metric(value, age, CAPACITY_METRIC)
        state = merge(state, sent, NOW, WINDOW_SECONDS).state
    kept = (sample(3, 95), sample(3, 65), sample(4, 35), sample(4, 5))
    assert state.histories[CAPACITY_METRIC].samples == kept


def test_the_capacity_at_the_start_of_the_history_stays_known() -> None:
    state = ScalingState()
    for value, age in ((3, 500), (4, 400)):
        sent = metric(value, age, CAPACITY_METRIC)
        state = merge(state, sent, NOW, WINDOW_SECONDS).state
    later = ago(-550)
    state = merge(state, metric(5, -550, CAPACITY_METRIC), later, WINDOW_SECONDS).state
    assert [s.value for s in state.histories[CAPACITY_METRIC].samples] == [4, 5]


def test_samples_may_be_kept_for_longer_than_the_window() -> None:
    state = merge(ScalingState(), metric(1, 599), NOW, WINDOW_SECONDS, 3600).state
    late = merge(state, metric(2, 0), ago(-900), WINDOW_SECONDS, 3600)
    assert late.outcome is MergeOutcome.STALE
    state = merge(late.state, metric(2, -900), ago(-900), WINDOW_SECONDS, 3600).state
    assert [s.value for s in state.histories["backlog"].samples] == [1, 2]


@pytest.mark.parametrize("value", [0, 2.5, 1001])
def test_a_capacity_that_no_target_can_have_is_refused(value: float) -> None:
    with pytest.raises(BadMessage, match="not a whole number of 1 to 1000 instances"):
        merge(ScalingState(), metric(value, 0, CAPACITY_METRIC), NOW, WINDOW_SECONDS)


@given(st.lists(st.integers(0, 900), max_size=60), st.randoms(use_true_random=False))
def test_any_order_and_repetition_of_samples_gives_the_same_history(
    ages: list[int], shuffler: random.Random
) -> None:
    shuffled = ages + ages
    shuffler.shuffle(shuffled)
    states = []
    for order in (sorted(set(ages), reverse=True), shuffled):
        state = ScalingState()
        for age in order:
            state = merge(state, metric(age, age), NOW, WINDOW_SECONDS).state
        history = state.histories.get("backlog")
        states.append(history.samples if history else ())
    assert states[0] == states[1]
