"""StablePanic and SlackAwareDrain: policies that QueueAge replaced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backtest.slack_aware_drain import SlackAwareDrain
from backtest.stable_panic import StablePanic
from shared.autoscaling import Goal, Observation, Throughput
from shared.values.measurements import MetricValue, Window
from tests.autoscaling.test_policies import seeing
from tests.builders import ago, desired, sample

# --- StablePanic ---

PANIC = StablePanic("backlog", 10)


@pytest.mark.parametrize(
    ("values", "capacity", "wanted", "panics"),
    [
        ([40] * 24, 4, 4, False),
        ([41] * 24, 4, 5, False),
        ([30] * 24, 4, 3, False),
        ([0] * 24, 8, 4, False),  # no faster in than by half
        ([40] * 20 + [79] * 4, 4, 8, True),  # ⌈7.9⌉ ≥ 2·4
        ([40] * 20 + [70] * 4, 4, 5, False),  # 7 < 2·4: the stable mean, 45, decides
        ([40] * 19 + [200] * 4 + [0], 4, 15, True),  # the panic mean is 150
        ([200] * 4 + [0] * 16, 4, 4, True),  # over, but less than a stable window ago
        ([200] * 4 + [0] * 29, 4, 2, False),  # and longer ago than that
    ],
)
def test_panic_is_quick_and_only_grows(
    values: Sequence[float], capacity: int, wanted: int, panics: bool
) -> None:
    wish = PANIC(seeing(values, capacity))
    assert (wish.capacity, wish.evidence["panic"]) == (wanted, panics), wish.reason
    assert ("panic mode until" in wish.reason) is panics


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([41] * 25, "the mean backlog of 360 s is 41;"),
        ([41] * 10, "the mean backlog of 135 s is 41;"),
        ([90] * 10, "the higher mean backlog of 135 s and 60 s is 90;"),
    ],
)
def test_a_mean_names_the_time_that_has_samples(values: Sequence[float], said: str) -> None:
    assert said in PANIC(seeing(values, 4)).reason


def test_panic_ends_a_stable_window_after_the_last_crossing() -> None:
    values = [MetricValue(ago(at), 200 if at > 300 else 0) for at in range(420, -1, -15)]
    histories = {"backlog": Window(tuple(values))}
    seen = replace(seeing([0], 4), histories=histories)
    # (200 + 0 + 0 + 0)/4 = 50 < 80; (200 + 200 + 0 + 0)/4 = 100 ≥ 80 at 285 s ago.
    assert "panic mode until 12:01:15 UTC" in PANIC(seen).reason


def test_what_was_panic_at_the_capacity_of_then_is_still_panic() -> None:
    values = [20.0] * 10 + [90.0] * 14
    grown = Window((sample(4, 600), sample(4, 100), sample(9, 90), sample(9, 0)))
    seen = replace(seeing(values, 9), capacities=grown)
    assert PANIC(seen).evidence["panic"] is True, "90/10 ≥ 2·4 when there were four"
    assert PANIC(replace(seen, capacities=Window((sample(9, 600),)))).evidence["panic"] is False


def test_panic_does_not_take_an_order_back() -> None:
    values = [40] * 19 + [200] * 4 + [0]
    seen = replace(seeing(values, 4), pending=desired(target=20))
    wish = PANIC(seen)
    assert wish.capacity == 20
    assert "15 instances are needed, but panic mode does not scale in from 20" in wish.reason


def test_growth_is_bounded_in_one_step() -> None:
    slow = StablePanic("backlog", 10, max_scale_up_rate=1.5)
    wish = slow(seeing([1000] * 24, 4))
    assert wish.capacity == 6
    assert "100 instances are needed, and one evaluation allows no more than 6" in wish.reason
    halved = PANIC(seeing([0] * 24, 8)).reason
    assert halved.endswith("0 instances are needed, and one evaluation allows no less than 4")


@pytest.mark.parametrize(
    ("values", "said"), [([], "in the last 360 s"), ([5, *[None] * 5], "in the last 60 s")]
)
def test_panic_without_samples_stays(values: list[Any], said: str) -> None:
    kept = Window(tuple(sample(v, 90 - 15 * i) for i, v in enumerate(values) if v is not None))
    wish = PANIC(replace(seeing([], 4), histories={"backlog": kept}))
    assert wish.capacity == 4
    assert f"no samples of backlog {said}" in wish.reason


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


def test_a_change_of_capacity_is_no_change_of_arrivals() -> None:
    values = [*line(100, 20, 1.5), *line(130, 0, 1.5)[1:]]  # six served the 60 of then
    capacities = Window((sample(4, 900), sample(4, 91), sample(6, 90), sample(6, 0)))
    wish = DRAIN(draining(values, 6, capacities=capacities))
    assert wish.evidence["arrivals_per_minute"] == pytest.approx(60)


def test_an_empty_queue_only_bounds_the_arrivals() -> None:
    wish = DRAIN(draining([0] * 13, 4))
    assert wish.evidence["arrivals_per_minute"] == 0
    assert wish.evidence["arrivals_per_minute_at_most"] == pytest.approx(40)


@pytest.mark.parametrize(
    ("values", "capacity", "wanted", "why"),
    [
        (line(50, 0), 4, 4, "steady: what arrives is served and young"),
        (line(20, 4), 4, 4, "grows, but nothing gets old within the start-up time"),
        (line(100, 20), 4, 10, "200 to drain in 0.8·5 - 2 = 2 minutes"),
        (line(400, -80), 4, 4, "drains by itself: 0 when new instances would come"),
        ([1000] * 13, 4, 50, "1000 in two minutes"),
        ([0] * 13, 4, 2, "at most 40 a minute: 80 in two minutes, (2 + 2.5)·2·10 = 90"),
        ([0] * 13, 1, 1, "one is the least"),
        (line(30, 0), 10, 10, "busy: 100 arrive, 10 serve them"),
        (line(190, -60), 10, 5, "40 arrive: five at a load of 0.9, and 10 + 40·2 are calm for two"),
    ],
)
def test_instances_come_for_age_and_go_for_idleness(
    values: list[float], capacity: int, wanted: int, why: str
) -> None:
    wish = DRAIN(draining(values, capacity))
    assert wish.capacity == wanted, (why, wish.reason)
    assert wish.paced


def test_an_order_under_way_counts_as_coming() -> None:
    seen = draining(line(100, 20), 4)
    assert DRAIN(seen).capacity == 10
    ordered = replace(seen, pending=desired(target=10, requested_at=ago(60)))
    assert DRAIN(ordered).capacity == 10, "not more, and not taken back"
    late = replace(seen, pending=desired(target=5, requested_at=ago(0)))
    assert DRAIN(late).capacity > 5, "five are not enough"


def test_an_order_is_not_taken_back_when_the_need_is_gone() -> None:
    seen = draining([0] * 13, 4, pending=desired(target=9, requested_at=ago(60)))
    wish = DRAIN(seen)
    assert wish.capacity == 9
    assert wish.reason.endswith("keeping the pending change to 9 instances")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"throughput": Throughput(None, 2)}, "the rate per instance is not known"),
        ({"throughput": Throughput(10, None)}, "the start-up time of new instances is not known"),
        ({"goal": Goal(age_limit_minutes=0)}, "every item is late"),
        ({"histories": {"backlog": Window()}}, "no samples of backlog"),
        ({"histories": {"backlog": Window((sample(9),))}}, "but a slope requires 2"),
        ({"histories": {"backlog": Window((sample(9, 999), sample(9, 900)))}}, "no samples"),
    ],
)
def test_what_is_not_known_means_stay(changes: dict[str, Any], said: str) -> None:
    wish = DRAIN(draining([1000] * 13, 4, **changes))
    assert wish.capacity == 4
    assert said in wish.reason
    assert not wish.paced


def test_a_start_up_time_longer_than_the_age_limit_still_has_an_answer() -> None:
    slow = draining([1000] * 13, 4, throughput=Throughput(10, 30))
    assert 4 < DRAIN(slow).capacity <= 200


def test_a_whole_number_of_instances_at_the_scale_down_rate_is_not_rounded_down() -> None:
    """As floating-point numbers, 33 / 1.1 is less than 30."""
    policy = StablePanic("backlog", 10, max_scale_down_rate=1.1)
    assert policy(draining([0] * 13, 33)).capacity == 30


@given(
    backlog=st.floats(0, 3000),
    slope=st.floats(-50, 50),
    capacity=st.integers(1, 20),
    start_up=st.floats(0, 10),
)
def test_more_backlog_never_means_fewer_instances(
    backlog: float, slope: float, capacity: int, start_up: float
) -> None:
    throughput = Throughput(10, start_up)
    less = DRAIN(draining(line(backlog + 200, slope), capacity, throughput=throughput))
    more = DRAIN(draining(line(backlog + 400, slope), capacity, throughput=throughput))
    assert more.capacity >= less.capacity


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        (StablePanic("backlog", 0), "target_per_instance = 0: must be above 0"),
        (
            StablePanic("backlog", 1, panic_seconds=400),
            "panic_seconds = 400: must be at most stable_seconds = 360",
        ),
        (StablePanic("backlog", 1, panic_threshold=1), "panic_threshold = 1: must be above 1"),
        (
            StablePanic("backlog", 1, max_scale_down_rate=1),
            "max_scale_down_rate = 1: must be above 1",
        ),
        (
            StablePanic("backlog", 1, stable_seconds=1e6),
            "stable_seconds = 1000000.0: must be above 0 and at most 14400",
        ),
        (SlackAwareDrain("backlog", share=0), "share = 0: must be above 0 and at most 1"),
        (
            SlackAwareDrain("backlog", share=0.5, calm_share=0.6),
            "calm_share = 0.6: must be at most share = 0.5",
        ),
        (
            SlackAwareDrain("backlog", slope_minutes=0),
            "slope_minutes = 0: must be above 0 and at most 240",
        ),
        (
            SlackAwareDrain("backlog", dead_time_minutes="x"),  # type: ignore[arg-type]
            "dead_time_minutes = 'x': must be a number",
        ),
    ],
)
def test_parameters_of_those_that_look_back_are_checked(policy: Any, problem: str) -> None:
    assert policy.problems() == [problem]


def test_sound_parameters_of_those_that_look_back() -> None:
    assert PANIC.problems() == DRAIN.problems() == []
