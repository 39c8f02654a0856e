"""StablePanic and SlackAwareDrain: policies that QueueAge replaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backtest.slack_aware_drain import SlackAwareDrain
from backtest.stable_panic import StablePanic
from shared.autoscaling import Goal, Observation, Throughput
from shared.values.measurements import Window
from tests.autoscaling.policies.test_single_metrics import seeing
from tests.builders import ago, desired, sample

# --- StablePanic ---

PANIC = StablePanic("backlog", 10)
SLOW_OUT = StablePanic("backlog", 10, max_scale_up_rate=1.5)
SLOW_IN = StablePanic("backlog", 10, max_scale_down_rate=1.1)
GROWN = Window((sample(4, 600), sample(4, 100), sample(9, 90), sample(9, 0)))
SINCE_300 = Window(tuple(sample(200 if at > 300 else 0, at) for at in range(420, -1, -15)))
"""(200 + 0 + 0 + 0)/4 = 50 < 80; (200 + 200 + 0 + 0)/4 = 100 ≥ 80 at 285 s ago."""
SPIKE, BUSY = [40] * 19 + [200] * 4 + [0], [20] * 10 + [90] * 14


def kept(*samples: Any) -> dict[str, Any]:
    return {"histories": {"backlog": Window(samples)}}


UNTIL = "panic mode until"


@pytest.mark.parametrize(
    ("values", "capacity", "wanted", "said"),
    [
        ([40] * 24, 4, 4, "the mean backlog"),
        ([41] * 25, 4, 5, "the mean backlog of 360 s is 41;"),
        ([41] * 10, 4, 5, "the mean backlog of 135 s is 41;"),  # the time that has samples
        ([90] * 10, 4, 9, f"{UNTIL} 12:06:00 UTC: the higher mean backlog of 135 s and 60 s is 90"),
        ([30] * 24, 4, 3, "the mean backlog"),
        ([0] * 24, 8, 4, "0 instances are needed, and one evaluation allows no less than 4"),
        ([40] * 20 + [79] * 4, 4, 8, UNTIL),  # ⌈7.9⌉ ≥ 2·4
        ([40] * 20 + [70] * 4, 4, 5, "the mean backlog"),  # 7 < 2·4: the stable mean, 45, decides
        (SPIKE, 4, 15, UNTIL),  # the panic mean is 150
        ([200] * 4 + [0] * 16, 4, 4, UNTIL),  # over, but less than a stable window ago
        ([200] * 4 + [0] * 29, 4, 2, "the mean backlog"),  # and longer ago than that
        ([], 4, 4, "no samples of backlog in the last 360 s"),
    ],
)
def test_panic_is_quick_and_only_grows(
    values: Sequence[float], capacity: int, wanted: int, said: str
) -> None:
    wish = PANIC(seeing(values, capacity))
    assert wish.capacity == wanted, wish.reason
    assert said in wish.reason
    assert bool(wish.evidence.get("panic")) is (UNTIL in wish.reason) is (UNTIL in said)


@pytest.mark.parametrize(
    ("policy", "found", "wanted", "said"),
    [
        (SLOW_OUT, seeing([1000] * 24, 4), 6, "100 instances are needed, and one evaluation"),
        (SLOW_IN, seeing([0] * 13, 33), 30, ""),  # as floating-point numbers, 33 / 1.1 < 30
        (PANIC, seeing(SPIKE, 4, pending=desired(target=20)), 20, "does not scale in from 20"),
        (PANIC, seeing([0], 4, **kept(*SINCE_300.samples)), 4, f"{UNTIL} 12:01:15 UTC"),
        (PANIC, seeing(BUSY, 9, capacities=GROWN), 9, UNTIL),  # 90/10 ≥ 2·4 for the four of then
        (PANIC, seeing(BUSY, 9, capacities=Window((sample(9, 600),))), 7, "the mean backlog"),
        (PANIC, seeing([], 4, **kept(sample(5, 90))), 4, "no samples of backlog in the last 60 s"),
    ],
)
def test_panic_is_bounded_in_a_step_and_keeps_what_was_ordered(
    policy: StablePanic, found: Observation, wanted: int, said: str
) -> None:
    wish = policy(found)
    assert wish.capacity == wanted, wish.reason
    assert said in wish.reason


@given(values=st.lists(st.floats(0, 1000), min_size=4, max_size=40), capacity=st.integers(1, 30))
def test_in_panic_the_capacity_never_shrinks(values: list[float], capacity: int) -> None:
    wish = PANIC(seeing(values, capacity))
    if wish.evidence["panic"]:
        assert wish.capacity >= capacity
    assert capacity // 2 <= wish.capacity <= 1000 * capacity


# --- SlackAwareDrain: 10 items each and minute, 2 min start-up time, 5 min age limit ---

DRAIN = SlackAwareDrain("backlog")
KNOWN = Throughput(rate_per_instance_minute=10, start_up_minutes=2)


def line(start: float, per_minute: float, minutes: float = 3) -> list[float]:
    """Samples every 15 s of a backlog that grows or shrinks evenly."""
    return [max(start + per_minute * i / 4, 0) for i in range(round(minutes * 4) + 1)]


def draining(values: Sequence[float], capacity: int = 4, **changes: Any) -> Observation:
    return seeing(values, capacity, **{"throughput": KNOWN, **changes})


def test_arrivals_are_the_slope_plus_the_work_done() -> None:
    wish = DRAIN(draining(line(100, 20), 4))
    assert wish.evidence["arrivals_per_minute"] == pytest.approx(60)  # 20 + 4·10
    assert wish.evidence["projected_backlog"] == pytest.approx(200)  # 160 + 2·20
    assert wish.reason == (
        "the latest backlog is 160, with 60 arrivals/min; in 2 min, 4 instances at 10 items/min "
        "each would have a backlog of 200 and an age of 5 min (scale-out above 2.5 min): "
        "10 instances are needed"
    )
    values = [*line(100, 20, 1.5), *line(130, 0, 1.5)[1:]]  # six served the 60 of then
    capacities = Window((sample(4, 900), sample(4, 91), sample(6, 90), sample(6, 0)))
    grown = DRAIN(draining(values, 6, capacities=capacities))
    assert grown.evidence["arrivals_per_minute"] == pytest.approx(60)
    empty = DRAIN(draining([0] * 13, 4))  # it only bounds the arrivals
    assert empty.evidence["arrivals_per_minute"] == 0
    assert empty.evidence["arrivals_per_minute_at_most"] == pytest.approx(40)


@pytest.mark.parametrize(
    ("values", "capacity", "ordered", "wanted", "why"),
    [
        (line(50, 0), 4, None, 4, "steady: what arrives is served and young"),
        (line(20, 4), 4, None, 4, "grows, but nothing gets old within the start-up time"),
        (line(100, 20), 4, None, 10, "200 to drain in 0.8·5 - 2 = 2 minutes"),
        (line(100, 20), 4, (10, 60), 10, "not more than ordered, and not taken back"),
        (line(100, 20), 4, (5, 0), 10, "five are not enough"),
        (line(400, -80), 4, None, 4, "drains by itself: 0 when new instances would come"),
        ([1000] * 13, 4, None, 50, "1000 in two minutes"),
        ([0] * 13, 4, None, 2, "at most 40 a minute: 80 in two, (2 + 2.5)·2·10 = 90"),
        ([0] * 13, 4, (9, 60), 9, "an order is not taken back when the need is gone"),
        ([0] * 13, 1, None, 1, "one is the least"),
        (line(30, 0), 10, None, 10, "busy: 100 arrive, 10 serve them"),
        (line(190, -60), 10, None, 5, "40 arrive: 5 at a load of 0.9; 10 + 40·2 are calm for 2"),
    ],
)
def test_instances_come_for_age_and_go_for_idleness(
    values: list[float], capacity: int, ordered: tuple[int, float] | None, wanted: int, why: str
) -> None:
    pending = ordered and desired(target=ordered[0], requested_at=ago(ordered[1]))
    wish = DRAIN(draining(values, capacity, pending=pending))
    assert wish.capacity == wanted, (why, wish.reason)
    assert wish.paced
    assert wish.reason.endswith("keeping the pending change to 9 instances") is (wanted == 9)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"throughput": Throughput(None, 2)}, "the rate per instance is not known"),
        ({"throughput": Throughput(10, None)}, "the start-up time of new instances is not known"),
        ({"goal": Goal(age_limit_minutes=0)}, "every item is late"),
        (kept(), "no samples of backlog"),
        (kept(sample(9)), "but a slope requires 2"),
        (kept(sample(9, 999), sample(9, 900)), "no samples"),
    ],
)
def test_what_is_not_known_means_stay(changes: dict[str, Any], said: str) -> None:
    wish = DRAIN(draining([1000] * 13, 4, **changes))
    assert wish.capacity == 4
    assert said in wish.reason
    assert not wish.paced


@given(
    backlog=st.floats(0, 3000),
    slope=st.floats(-50, 50),
    capacity=st.integers(1, 20),
    start_up=st.floats(0, 30),
)
def test_more_backlog_never_means_fewer_instances(
    backlog: float, slope: float, capacity: int, start_up: float
) -> None:
    throughput = Throughput(10, start_up)
    less = DRAIN(draining(line(backlog + 200, slope), capacity, throughput=throughput))
    more = DRAIN(draining(line(backlog + 400, slope), capacity, throughput=throughput))
    assert more.capacity >= less.capacity


@pytest.mark.parametrize(
    ("policy", "changes", "problem"),
    [
        (StablePanic, {"target_per_instance": 0}, "must be above 0"),
        (StablePanic, {"panic_seconds": 400}, "must be at most stable_seconds = 360"),
        (StablePanic, {"panic_threshold": 1}, "must be above 1"),
        (StablePanic, {"max_scale_down_rate": 1}, "must be above 1"),
        (StablePanic, {"stable_seconds": 1e6}, "must be above 0 and at most 14400"),
        (SlackAwareDrain, {"share": 0, "calm_share": 0}, "must be above 0 and at most 1"),
        (SlackAwareDrain, {"calm_share": 0.6, "share": 0.5}, "must be at most share = 0.5"),
        (SlackAwareDrain, {"slope_minutes": 0}, "must be above 0 and at most 240"),
        (SlackAwareDrain, {"dead_time_minutes": "x"}, "must be a number"),
        (StablePanic, {}, None),
        (SlackAwareDrain, {}, None),
    ],
)
def test_parameters_are_checked(policy: Any, changes: dict[str, Any], problem: str | None) -> None:
    fields = {"target_per_instance": 1, **changes} if policy is StablePanic else changes
    found = policy("backlog", **fields).problems()
    name, value = next(iter(changes.items()), ("", None))
    assert found[:1] == ([f"{name} = {value!r}: {problem}"] if problem else [])
