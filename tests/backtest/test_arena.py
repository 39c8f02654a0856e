"""The arena: in which order items are served, when capacity takes effect, and what it costs."""

import numpy as np
import pytest

from backtest.arena import Plan, as_schedule
from backtest.errors import BadArena
from backtest.outcome import course
from tests.backtest.arenas import arena, bursty


def ages_by_item(arrivals: list[int], capacity: list[int], rate: int) -> list[float]:
    """Simulate single items, first come first served. Items arrive evenly within their minute."""
    waiting: list[float] = []
    ages = []
    for minute, (count, instances) in enumerate(zip(arrivals, capacity, strict=True)):
        waiting += [minute + item / count for item in range(count)]
        del waiting[: rate * instances]
        ages.append(minute + 1 - waiting[0] if waiting else 0.0)
    return ages


@pytest.mark.parametrize("seed", range(5))
def test_the_age_equals_that_of_the_oldest_item_in_a_simulation_of_single_items(seed: int) -> None:
    arrivals = bursty(seed, 300)
    capacity = np.random.default_rng(seed).integers(1, 7, 300)
    played = course(arena(), arrivals, capacity)
    expected = ages_by_item([int(a) for a in arrivals], capacity.tolist(), 10)
    assert played.age_minutes == pytest.approx(expected, abs=1e-9)


def test_late_work_is_the_backlog_older_than_the_limit_in_instance_minutes() -> None:
    played = course(arena(age_limit_minutes=2), np.array([50.0, 10.0, 0.0]), as_schedule([1, 1, 1]))
    assert played.backlog.tolist() == [40, 40, 30]
    assert played.late_work.tolist() == [0, 0, 2]  # 30 wait, of which 10 are not late yet


def test_the_cost_is_the_sum_of_instances_changes_and_late_work() -> None:
    spec = arena(age_limit_minutes=1, switch_cost=3, late_penalty=7)
    score = course(spec, np.array([40.0, 0.0, 0.0]), as_schedule([1, 3, 2])).score(spec)
    assert score.late_work == 0
    assert score.J == 6 + 3 * (2 + 1)
    assert (score.actions, score.reversals) == (2, 1)


def test_a_change_of_direction_after_more_than_half_an_hour_is_not_a_reversal() -> None:
    schedule = as_schedule([1] * 5 + [2] * 31 + [1] * 5)
    score = course(arena(), np.zeros(len(schedule)), schedule).score(arena())
    assert (score.actions, score.reversals) == (2, 0)


def minutes_of(plan: Plan, orders: dict[int, int], minutes: int) -> list[int]:
    seen = []
    for minute in range(minutes):
        plan.begin(minute)
        seen.append(plan.capacity)
        if minute in orders:
            plan.order(orders[minute], minute)
    return seen


@pytest.mark.parametrize(
    ("changes", "orders", "expected"),
    [
        ({}, {1: 3}, [1, 1, 1, 1, 3, 3, 3, 3]),
        ({"dead_time_minutes": 0}, {1: 3}, [1, 1, 3, 3, 3, 3, 3, 3]),
        ({"dead_time_minutes": 1}, {1: 3}, [1, 1, 3, 3, 3, 3, 3, 3]),
        ({}, {0: 4, 4: 2}, [1, 1, 1, 4, 4, 2, 2, 2]),
        ({}, {0: 3, 1: 4}, [1, 1, 1, 3, 4, 4, 4, 4]),
        ({}, {0: 3, 1: 3}, [1, 1, 1, 3, 3, 3, 3, 3]),
        ({}, {0: 4, 1: 2}, [1, 1, 1, 2, 2, 2, 2, 2]),
        ({}, {0: 4, 1: 1}, [1, 1, 1, 1, 1, 1, 1, 1]),
        ({"superseding": "restart"}, {0: 3, 1: 4}, [1, 1, 1, 1, 4, 4, 4, 4]),
    ],
    ids=[
        "scale-out takes the start-up time",
        "not before the next minute",
        "a start-up time of one minute",
        "scale-in takes effect in the next minute",
        "pending instances keep their time",
        "repeating an order changes nothing",
        "a smaller order cancels the rest",
        "an order for the current capacity cancels all",
        "a new order restarts the start-up time",
    ],
)
def test_ordered_capacity_takes_effect_when_it_is_due(
    changes: dict[str, object], orders: dict[int, int], expected: list[int]
) -> None:
    assert minutes_of(Plan(arena(**changes)), orders, 8) == expected


@pytest.mark.parametrize("wrong", [{"instance_rate": 0}, {"max_instances": 0}, {"switch_cost": -1}])
def test_an_arena_with_invalid_parameters_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadArena, match="at least"):
        arena(**wrong)
