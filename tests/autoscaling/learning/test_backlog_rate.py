"""The rate per instance, estimated from a simulated queue whose throughput is known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.autoscaling.learning.backlog_rate import (
    CAUTION,
    DRAIN_GROWTH_MAX,
    FORGETTING,
    low_end,
    posterior,
    with_backlog,
    with_finished,
)
from shared.autoscaling.policy import RateEstimate
from shared.autoscaling.state import BacklogTrend
from shared.values.measurements import MetricValue
from tests.builders import NOW

MINUTE = timedelta(minutes=1)
RATE = 40.0
MAXIMUM = 20
Load = Callable[[int], float]


def at(minute: float, value: float) -> MetricValue:
    return MetricValue(NOW + MINUTE * minute, value)


def series(*values: float) -> list[MetricValue]:
    return [at(minute, value) for minute, value in enumerate(values)]


def simulated(
    arrivals: Load, instances: Sequence[int], backlog: float = 0.0, rate: float = RATE
) -> BacklogTrend:
    """What a queue teaches that is sampled once a minute."""
    waiting, capacities = [at(0, backlog)], [at(0, instances[0])]
    for minute, count in enumerate(instances, start=1):
        backlog = max(backlog + arrivals(minute) - rate * count, 0.0)
        waiting.append(at(minute, backlog))
        capacities.append(at(minute, count))
    return with_backlog(BacklogTrend(), waiting, capacities, MAXIMUM)


def known(trend: BacklogTrend) -> RateEstimate:
    found = posterior(trend)
    assert found is not None
    return found


def around(mean: float, spread: float, seed: int = 1) -> Load:
    chance = random.Random(seed)
    return lambda _: max(mean * chance.gauss(1, spread), 0.0)


STEPS = [2] * 10 + [8] * 10 + [4] * 10 + [7] * 10


def test_changes_of_capacity_show_the_throughput() -> None:
    few, many = (known(simulated(around(200, 0.05), STEPS * n, 20_000)) for n in (1, 8))
    assert few.likely == pytest.approx(RATE, rel=0.3)
    assert many.likely == pytest.approx(RATE, rel=0.1)
    assert many.relative_error < 0.15 < few.relative_error


def test_a_change_within_a_minute_counts_for_its_part_of_the_growth() -> None:
    """Samples every 15 s; every third minute, the number changes after its first quarter."""
    backlog, counts = 20_000.0, [2] + ([6] * 12 + [2] * 12) * 6
    waiting, capacities = [at(0, backlog)], [at(0, 2)]
    for sample, count in enumerate(counts, start=1):
        backlog += (200 - RATE * count) / 4
        waiting.append(at(sample / 4, backlog))
        capacities.append(at(sample / 4, count))
    found = known(with_backlog(BacklogTrend(), waiting, capacities, MAXIMUM))
    assert found.likely == pytest.approx(RATE, rel=0.02)


@pytest.mark.parametrize("scale", [0.01, 1e4])
def test_the_estimate_does_not_depend_on_the_unit_of_work(scale: float) -> None:
    one = known(simulated(around(200, 0.05), STEPS, 5000))
    other = known(simulated(around(200 * scale, 0.05), STEPS, 5000 * scale, RATE * scale))
    assert other.likely == pytest.approx(scale * one.likely)
    assert other.relative_error == pytest.approx(one.relative_error)


def test_the_noise_of_the_arrivals_makes_the_estimate_less_sure() -> None:
    calm, wild = (known(simulated(around(200, s), STEPS * 8, 20_000)) for s in (0.05, 0.5))
    assert wild.relative_error > 1.5 * calm.relative_error


@given(st.integers(0, 10_000), st.floats(0.02, 0.5))
def test_the_true_throughput_lies_within_the_stated_uncertainty(seed: int, noise: float) -> None:
    found = known(simulated(around(200, noise, seed), STEPS, 9000))
    assert abs(math.log(found.likely / RATE)) <= 5 * found.relative_error


def test_a_burst_that_ends_as_instances_start_is_not_taken_for_their_work() -> None:
    """It ended just then once. The low end must stay near the true throughput."""
    load = [100.0] * 20 + [400.0] * 4 + [100.0] * 20
    instances = [3] * 24 + [6] * 20
    found = known(simulated(lambda minute: load[minute - 1], instances, 200))
    assert found.low < 1.25 * RATE


def test_the_low_end_lies_below_the_likely_value_by_the_uncertainty() -> None:
    assert low_end(40, 0.0) == 40
    assert low_end(40, 0.2) == pytest.approx(40 * math.exp(-0.2 * CAUTION))


def test_an_instance_finishes_at_least_its_share_of_what_the_backlog_falls() -> None:
    trend = with_backlog(BacklogTrend(), series(900, 780, 660), [at(-5, 3), at(2, 3)], MAXIMUM)
    assert trend.drained == pytest.approx(40, rel=2 * FORGETTING)
    assert known(trend).likely >= 0.9 * 40


def test_a_change_within_the_minute_counts_with_the_higher_capacity() -> None:
    """A scale-in that was seen at the end of the minute may have happened during it."""
    capacities = [at(-5, 6), at(0, 6), at(1, 2)]
    trend = with_backlog(BacklogTrend(), series(900, 660), capacities, MAXIMUM)
    assert trend.drained == pytest.approx(40)


def test_messages_that_are_purged_raise_the_lower_bound_only_a_little() -> None:
    calm = simulated(around(200, 0.05), STEPS, 50_000)
    last = calm.until
    assert last is not None
    purged = [MetricValue(last, 50_000), MetricValue(last + MINUTE, 10)]
    after = with_backlog(calm, purged, [MetricValue(last, 7.0)], MAXIMUM)
    assert after.drained <= DRAIN_GROWTH_MAX * calm.drained


@pytest.mark.parametrize(("left", "bound"), [(10.0, 15.0), (2000.0, 30.0)])
def test_a_fall_that_leaves_work_is_no_purge_and_raises_the_lower_bound_more(
    left: float, bound: float
) -> None:
    known_before = BacklogTrend(until=NOW, busy=9, variance=1, drained=10.0)
    after = with_backlog(known_before, series(9000, left), [at(-5, 1)], MAXIMUM)
    assert after.drained == pytest.approx(bound, rel=2 * FORGETTING)


def test_the_fastest_fall_within_a_minute_bounds_the_rate_although_work_ran_out() -> None:
    """Four instances finish 330 a minute each within 15 s, then 200 a minute arrive."""
    seconds = [at(0.25 * n, value) for n, value in enumerate((600, 300, 100, 50, 50))]
    trend = with_backlog(BacklogTrend(), seconds, [at(-5, 4)], MAXIMUM)
    assert trend.drained == pytest.approx(4 * (300 - 2 * math.sqrt(300)) / 4)


def test_a_purge_between_two_samples_is_not_taken_for_fast_instances() -> None:
    seconds = [at(0.25 * n, value) for n, value in enumerate((9000, 10, 20, 30, 40))]
    known_before = BacklogTrend(until=NOW, busy=9, variance=1, drained=10.0)
    after = with_backlog(known_before, seconds, [at(-5, 1)], MAXIMUM)
    assert after.drained <= DRAIN_GROWTH_MAX * 10


def test_counts_of_finished_items_bound_the_rate_while_instances_start() -> None:
    """One instance works, and four are read: at least a quarter of the count, less chance."""
    counts = series(0, 400, 400)
    trend = with_finished(BacklogTrend(), counts, None, counts[-1].time, [at(-5, 1), at(0.5, 4)])
    assert trend.drained == pytest.approx((400 - 2 * 20) / 4, rel=FORGETTING)
    assert trend == with_finished(trend, counts, counts[-1].time, counts[-1].time, [at(-5, 1)])


def test_one_count_is_no_proof_of_a_rate_that_its_chance_explains() -> None:
    counts = series(0, 4)
    trend = with_finished(BacklogTrend(), counts, None, counts[-1].time, [at(-5, 1)])
    assert trend.drained == 0


def test_the_lower_bound_is_forgotten_if_nothing_supports_it() -> None:
    fast = replace(simulated(around(200, 0.05), STEPS, 9000), drained=4 * RATE)
    assert fast.until is not None
    later = [MetricValue(fast.until + MINUTE * m, 500 + 10 * (m % 3)) for m in range(1500)]
    slow = with_backlog(fast, later, [MetricValue(fast.until, 7.0)], MAXIMUM)
    assert slow.drained < RATE


def test_an_interval_that_lacks_samples_teaches_nothing_but_time() -> None:
    trend = simulated(around(200, 0.05), [2] * 9, 500)
    assert trend.until is not None
    late = [MetricValue(trend.until, 900.0), MetricValue(trend.until + 10 * MINUTE, 9000.0)]
    after = with_backlog(trend, late, [MetricValue(trend.until, 2.0)], MAXIMUM)
    assert after == replace(trend, until=late[-1].time, gap=10)


def test_samples_within_the_same_minute_are_skipped() -> None:
    seconds = [MetricValue(NOW + timedelta(seconds=15 * i), 100.0 + 10 * i) for i in range(9)]
    trend = with_backlog(BacklogTrend(), seconds, [at(-5, 1)], MAXIMUM)
    assert trend.until == NOW + 2 * MINUTE
    assert trend.busy == 2
    assert trend.growth == pytest.approx(40)


def test_each_interval_teaches_once() -> None:
    backlog, capacities = series(*range(100, 1000, 50)), [at(-5, 2)]
    whole = with_backlog(BacklogTrend(), backlog, capacities, MAXIMUM)
    early = with_backlog(BacklogTrend(), backlog[:7], capacities, MAXIMUM)
    assert with_backlog(early, backlog, capacities, MAXIMUM) == whole
    assert with_backlog(whole, backlog, capacities, MAXIMUM) == whole


def test_learning_goes_on_after_the_clock_was_set_back() -> None:
    ahead = BacklogTrend(until=NOW + timedelta(days=1))
    resumed = with_backlog(ahead, series(100, 200, 300), [at(-5, 1)], MAXIMUM)
    assert resumed.until == NOW + 2 * MINUTE


def test_an_idle_queue_only_makes_the_arrivals_less_sure() -> None:
    busy = simulated(around(200, 0.05), STEPS, 9000)
    assert busy.until is not None
    idle = [MetricValue(busy.until + MINUTE * m, 0.0) for m in range(60)]
    after = with_backlog(busy, idle, [MetricValue(busy.until, 20.0)], MAXIMUM)
    assert after.information == busy.information
    assert after.busy == busy.busy
    assert after.gap == 30


def test_a_slower_release_is_followed_within_a_day() -> None:
    instances = [count for _ in range(100) for count in (4, 6, 9, 5, 8, 6) for _ in range(3)]
    fast = simulated(around(300, 0.1), instances[:600], 40_000)
    assert fast.until is not None
    backlog, waiting, capacities = 90_000.0, [], []
    load = around(150, 0.1)
    for minute, count in enumerate(instances[:1440]):
        time = fast.until + MINUTE * (minute + 1)
        backlog += load(minute) - RATE / 2 * count
        waiting.append(MetricValue(time, backlog))
        capacities.append(MetricValue(time, count))
    assert backlog > 0
    slow = with_backlog(fast, waiting, capacities, MAXIMUM)
    assert known(fast).likely == pytest.approx(RATE, rel=0.2)
    assert known(slow).likely == pytest.approx(RATE / 2, rel=0.3)
    assert known(slow).low < RATE / 2


# --- single minutes ---------------------------------------------------------------------------

CALM = BacklogTrend(NOW, 30, 0, 20.0, 4.0, 100.0, 0.04, 1.6, 30.0, 0)
"""Four instances, 20 more a minute, a noise of 10 items, and 40 ± 5 items a minute and instance."""


def minute_later(trend: BacklogTrend, before: float, after: float, count: int) -> BacklogTrend:
    return with_backlog(trend, [at(0, before), at(1, after)], [at(-5, count)], MAXIMUM)


def test_the_noise_is_learned_also_where_the_capacity_never_rests() -> None:
    """The load of the first minute is a burst. Then, 600 a minute arrive evenly at 10 to 14."""
    load = around(15 * RATE, 0.04)
    cycle = [13, 13, 17, 17, 17, 14, 14, 13] * 30
    found = simulated(lambda minute: 10_000 if minute == 1 else load(minute), cycle, 5_000)
    assert found.variance < (2 * 0.04 * 15 * RATE) ** 2
    assert known(found).likely == pytest.approx(RATE, rel=0.15)
    assert known(found).relative_error < 0.3


def test_a_fall_of_the_backlog_is_shared_among_all_instances_that_are_read() -> None:
    waiting, read = series(900, 900, 500), series(2, 8, 8)
    early = with_backlog(BacklogTrend(), waiting, read, MAXIMUM, series(2, 2, 2))
    assert early.drained == pytest.approx(400 / 8)
    assert early.instances == 2


def test_a_minute_of_great_surprise_barely_raises_the_noise() -> None:
    purged = minute_later(CALM, 10_000, 9000, 4)
    assert CALM.variance < purged.variance < 2 * CALM.variance


def test_a_surprising_minute_after_a_change_teaches_less() -> None:
    expected = minute_later(CALM, 10_000, 10_000 + 20 - 4 * 40, 8)
    surprising = minute_later(CALM, 10_000, 10_000 + 20 - 4 * 40 - 200, 8)
    gained = surprising.information - CALM.information
    assert 0 < gained < 0.5 * (expected.information - CALM.information)


def test_a_change_after_a_long_idle_time_teaches_less() -> None:
    fresh = minute_later(CALM, 10_000, 9860, 8)
    rested = minute_later(replace(CALM, gap=30), 10_000, 9860, 8)
    assert rested.information - CALM.information < 0.5 * (fresh.information - CALM.information)
    assert rested.gap == 0


def test_smooth_arrivals_are_no_proof_that_they_stay_smooth() -> None:
    smooth = replace(CALM, variance=0.0, information=0.0, weighted_rate=0.0)
    gained = minute_later(smooth, 10_000, 9860, 8).information
    assert gained < 4 * 4 / (0.1 * (10 * 8)) ** 2


def test_a_queue_that_runs_empty_shows_that_less_arrives_than_was_believed() -> None:
    emptied = minute_later(CALM, 10, 0, 4)
    assert emptied.growth == pytest.approx(20 + 0.1 * (-10 - 20))
    assert emptied.busy == CALM.busy
    plausible = minute_later(replace(CALM, growth=-50.0), 10, 0, 4)
    assert plausible.growth == -50


def test_the_load_needs_at_most_twice_the_maximum_of_instances() -> None:
    assert minute_later(BacklogTrend(), 0, 780, 1).needed == pytest.approx(780 / (2 * MAXIMUM - 1))
    slow, fast = (BacklogTrend(busy=5, drained=1.0, needed=each) for each in (0.0, 100.0))
    assert known(slow).likely < 10
    assert known(fast).likely > 60


def test_an_estimate_is_never_exact() -> None:
    exact = replace(CALM, information=1e12, weighted_rate=4e13)
    assert known(exact).likely == pytest.approx(40, rel=0.02)
    assert known(exact).relative_error > 0


@pytest.mark.parametrize(
    "damage",
    [
        {"busy": -1.0},
        {"variance": -1.0},
        {"information": -0.1},
        {"drained": 1e30},
        {"growth": 1e30},
        {"instances": -1e30},
        {"weighted_rate": 1e300},
        {"information": 0.0},
    ],
)
def test_a_damaged_trend_is_started_anew(damage: dict[str, Any]) -> None:
    damaged = replace(CALM, **damage)
    assert posterior(damaged) is None
    after = with_backlog(damaged, [at(0, 5)], [at(-5, 1)], MAXIMUM)
    assert after == BacklogTrend(until=NOW)


numbers = st.floats(allow_nan=False, allow_infinity=False)
trends = st.builds(BacklogTrend, st.none() | st.just(NOW), *[numbers] * 9)
measures = st.floats(0, 1e15)


@given(trends, st.lists(measures, max_size=6), st.lists(st.integers(1, 1000), max_size=6))
def test_whatever_is_stored_or_measured_gives_a_finite_estimate(
    trend: BacklogTrend, values: list[float], instances: list[int]
) -> None:
    capacities = series(*map(float, instances))
    after = with_backlog(trend, series(*values), capacities, MAXIMUM)
    for each in (trend, after):
        found = posterior(each)
        assert found is None or 0 < found.low <= found.likely < math.inf
