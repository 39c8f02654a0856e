"""StablePanic and SlackAwareDrain: policies that QueueAge replaced, kept to compare with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backtest.slack_aware_drain import SlackAwareDrain
from backtest.stable_panic import StablePanic
from shared.autoscaling import Throughput
from tests.autoscaling.policies.test_single_metrics import seeing
from tests.builders import ago, desired

PANIC = StablePanic("backlog", 10)
DRAIN = SlackAwareDrain("backlog")
UNTIL = "panic mode until"


@pytest.mark.parametrize(
    ("values", "capacity", "wanted", "said"),
    [
        ([41] * 25, 4, 5, "the mean backlog of 360 s is 41;"),
        ([90] * 10, 4, 9, f"{UNTIL} 12:06:00 UTC: the higher mean backlog of 135 s and 60 s is 90"),
        ([0] * 24, 8, 4, "0 instances are needed, and one evaluation allows no less than 4"),
        ([40] * 20 + [70] * 4, 4, 5, "the mean backlog"),  # 7 < 2·4: the stable mean, 45, decides
        ([40] * 20 + [79] * 4, 4, 8, UNTIL),  # ⌈7.9⌉ ≥ 2·4
        ([40] * 19 + [200] * 4 + [0], 4, 15, UNTIL),  # the panic mean is 150
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


@given(values=st.lists(st.floats(0, 1000), min_size=4, max_size=40), capacity=st.integers(1, 30))
def test_in_panic_the_capacity_never_shrinks(values: list[float], capacity: int) -> None:
    wish = PANIC(seeing(values, capacity))
    if wish.evidence["panic"]:
        assert wish.capacity >= capacity
    assert capacity // 2 <= wish.capacity <= 1000 * capacity


def line(start: float, per_minute: float) -> list[float]:
    """Samples every 15 s of a backlog that grows or shrinks evenly for three minutes."""
    return [max(start + per_minute * i / 4, 0) for i in range(13)]


@pytest.mark.parametrize(
    ("values", "capacity", "ordered", "wanted", "why"),
    [
        (line(50, 0), 4, None, 4, "steady: what arrives is served and young"),
        (line(20, 4), 4, None, 4, "grows, but nothing gets old within the start-up time"),
        (line(100, 20), 4, None, 10, "200 to drain in 0.8·5 - 2 = 2 minutes"),
        (line(100, 20), 4, (10, 60), 10, "not more than ordered, and not taken back"),
        (line(400, -80), 4, None, 4, "drains by itself: 0 when new instances would come"),
        ([0] * 13, 4, None, 2, "at most 40 a minute: 80 in two, (2 + 2.5)·2·10 = 90"),
        ([0] * 13, 4, (9, 60), 9, "an order is not taken back when the need is gone"),
        (line(190, -60), 10, None, 5, "40 arrive: 5 at a load of 0.9; 10 + 40·2 are calm for 2"),
    ],
)
def test_instances_come_for_age_and_go_for_idleness(
    values: list[float], capacity: int, ordered: tuple[int, float] | None, wanted: int, why: str
) -> None:
    """10 items each and minute, 2 min start-up time, 5 min age limit."""
    pending = ordered and desired(target=ordered[0], requested_at=ago(ordered[1]))
    known = Throughput(rate_per_instance_minute=10, start_up_minutes=2)
    wish = DRAIN(seeing(values, capacity, throughput=known, pending=pending))
    assert wish.capacity == wanted, (why, wish.reason)
    assert wish.paced


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        (StablePanic("backlog", 1, panic_seconds=400), "panic_seconds = 400: must be at most"),
        (SlackAwareDrain("backlog", calm_share=0.9), "calm_share = 0.9: must be at most share"),
        (PANIC, ""),
        (DRAIN, ""),
    ],
)
def test_parameters_are_checked(policy: Any, problem: str) -> None:
    assert len(policy.problems()) == bool(problem)
    assert problem in "".join(policy.problems())
