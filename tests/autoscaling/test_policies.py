"""The policies that look at one metric: what they want, why, and what would have changed it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from shared.autoscaling import (
    BacklogTarget,
    CapacityThresholds,
    Goal,
    Limits,
    Observation,
    Policy,
    PolicyFunction,
    TargetTracking,
    Threshold,
    Throughput,
    ValuePerInstance,
)
from shared.values.measurements import MetricValue, Window
from tests.builders import NOW, history

RATED = Throughput(rate_per_instance_minute=10)


def window(values: Sequence[float], every_seconds: float = 15) -> Window:
    return Window(history(values, every_seconds).samples)


def seeing(
    values: Sequence[float] | Mapping[str, Sequence[float]], capacity: int = 4, **changes: Any
) -> Observation:
    """An observation of these samples, the newest of them now."""
    by_name = values if isinstance(values, Mapping) else {"backlog": values}
    windows = {name: window(of) for name, of in by_name.items()}
    fields: dict[str, Any] = {
        "resource_name": "plan-1",
        "now": NOW,
        "capacity": capacity,
        "limits": Limits(1, 30),
        "metrics": windows,
        "histories": windows,
        "capacities": Window((MetricValue(NOW, capacity),)),
        "throughput": RATED,
    }
    return Observation(**{**fields, **changes})


SIMPLE: list[tuple[Policy, str]] = [
    (Threshold("backlog", 100, 10), "holding: 0 of 5 required samples of backlog in the window"),
    (
        CapacityThresholds("backlog", ((1, 100, 10),)),
        "holding: 0 of 5 required samples of backlog in the window "
        "(thresholds of the level from 1 instance)",
    ),
    (ValuePerInstance("backlog", 50), "holding: there are no samples of backlog"),
    (BacklogTarget("backlog"), "holding: there are no samples of backlog"),
    (TargetTracking("backlog", 50), "holding: there are no samples of backlog"),
]


@pytest.mark.parametrize(("policy", "reason"), SIMPLE)
@pytest.mark.parametrize("metrics", [{"backlog": ()}, {"backlog": (), "other": (500,)}])
def test_without_samples_a_policy_stays(
    policy: Policy, reason: str, metrics: Mapping[str, Sequence[float]]
) -> None:
    wish = policy(seeing(metrics, 7))
    assert (wish.capacity, wish.reason) == (7, reason)


# --- CapacityThresholds ---


@pytest.mark.parametrize(
    ("capacity", "values", "wanted"),
    [
        (1, [60] * 5, 2),
        (3, [60] * 5, 4),
        (4, [60] * 5, 4),
        (4, [201] * 5, 5),
        (9, [39] * 5, 8),
        (3, [39] * 5, 3),
        (10, [39] * 5, 10),
        (10, [1001] * 5, 11),
    ],
)
def test_thresholds_follow_the_capacity(capacity: int, values: list[float], wanted: int) -> None:
    steps = CapacityThresholds("backlog", ((1, 50, 0), (4, 200, 40), (10, 1000, 20)))
    assert steps(seeing(values, capacity)).capacity == wanted


def test_below_its_first_step_a_capacity_has_the_first_thresholds() -> None:
    steps = CapacityThresholds("backlog", ((3, 50, 0),))
    wish = steps(seeing([60] * 5, 2))
    assert (wish.capacity, wish.evidence["from_capacity"]) == (3, 3)


# --- ValuePerInstance ---


@pytest.mark.parametrize(
    ("values", "statistic", "wanted"),
    [
        ([0], "mean", 0),
        ([1], "mean", 1),
        ([50], "mean", 1),
        ([50.1], "mean", 2),
        ([0, 400], "mean", 4),
        ([0, 400], "latest", 8),
        ([400, 0], "latest", 0),
        ([400, 0], "maximum", 8),
    ],
)
def test_each_instance_has_its_share(values: list[float], statistic: Any, wanted: int) -> None:
    wish = ValuePerInstance("backlog", 50, statistic)(seeing(values))
    assert wish.capacity == wanted


def test_three_times_a_tenth_is_three_instances() -> None:
    assert ValuePerInstance("backlog", 0.1)(seeing([3 * 0.1])).capacity == 3


# --- BacklogTarget ---


@pytest.mark.parametrize(
    ("backlog", "policy", "wanted"),
    [
        (0, BacklogTarget("backlog"), 0),
        (40, BacklogTarget("backlog"), 1),  # 10 a minute for 0.8 · 5 minutes
        (41, BacklogTarget("backlog"), 2),
        (400, BacklogTarget("backlog"), 10),
        (400, BacklogTarget("backlog", drain_minutes=10), 4),
        (400, BacklogTarget("backlog", share=0.4), 20),
        (400, BacklogTarget("backlog", rate_per_instance_minute=20), 5),
    ],
)
def test_the_backlog_is_worked_off_in_time(
    backlog: float, policy: BacklogTarget, wanted: int
) -> None:
    wish = policy(seeing([9999, backlog]))
    assert wish.capacity == wanted
    assert f"the latest backlog is {backlog};" in wish.reason


def test_without_a_rate_the_backlog_says_nothing() -> None:
    wish = BacklogTarget("backlog")(seeing([400], throughput=Throughput()))
    assert (wish.capacity, wish.evidence["missing"]) == (4, "throughput.rate_per_instance_minute")
    unknown = "the rate per instance is not known"
    assert f"{unknown}; set throughput.rate_per_instance_minute" in wish.reason


def test_no_age_is_allowed_at_all() -> None:
    wish = BacklogTarget("backlog")(seeing([400], goal=Goal(age_limit_minutes=0)))
    assert wish.capacity == 4
    assert "leaves no time" in wish.reason


# --- TargetTracking ---


@pytest.mark.parametrize(
    ("value", "capacity", "reporting", "wanted"),
    [
        (50, 4, None, 4),
        (55, 4, None, 4),  # within the tolerance
        (56, 4, None, 5),
        (100, 4, None, 8),
        (45, 4, None, 4),
        (44, 4, None, 4),  # beyond it, but less than an instance
        (37.5, 4, None, 3),
        (0, 4, None, 0),
        (100, 4, 4, 8),
        (100, 4, 9, 8),  # no more can report than there are
        (100, 4, 3, 6),  # (100·3 + 0)/4 = 75
        (60, 4, 3, 4),  # (60·3 + 0)/4 = 45: the direction turns
        (100, 4, 2, 4),  # (100·2 + 0)/4 = 50
        (0, 4, 2, 2),  # (0·2 + 50·2)/4 = 25
        (25, 4, 2, 3),
        (45, 4, 2, 4),
        (50, 4, 1, 4),  # at the target the missing ones are no reason to scale in
        (100, 4, 0, 4),  # nobody reports
    ],
)
def test_tracking_the_target(
    value: float, capacity: int, reporting: int | None, wanted: int
) -> None:
    policy = TargetTracking("cpu", 50, reporting_metric=None if reporting is None else "up")
    metrics: dict[str, Sequence[float]] = {
        "cpu": [value],
        "up": [] if reporting is None else [reporting],
    }
    assert policy(seeing(metrics, capacity)).capacity == wanted


def test_how_many_report_is_not_guessed() -> None:
    wish = TargetTracking("cpu", 50, reporting_metric="up")(seeing({"cpu": [100], "up": []}))
    assert (wish.capacity, wish.reason) == (4, "holding: there are no samples of up")


@pytest.mark.parametrize(
    ("value", "reporting", "cause"),
    [
        (55, 4, "the mean cpu is 55, and the target is 50; the difference is within the tolerance"),
        (44, 4, "the difference is worth less than one instance"),
        (60, 3, "only 3 of 4 instances report; the others may make up for the difference"),
        (100, 2, "only 2 of 4 instances report; the others may make up for the difference"),
    ],
)
def test_tracking_explains_why_it_holds(value: float, reporting: int, cause: str) -> None:
    policy = TargetTracking("cpu", 50, reporting_metric="up")
    recommended = policy(seeing({"cpu": [value], "up": [reporting]}, 4))
    assert recommended.reason.startswith("holding: ")
    assert cause in recommended.reason


def test_a_utilisation_is_said_to_be_one() -> None:
    policy = TargetTracking("cpu", 50, reporting_metric="up")
    assert (policy.utilisation_names, policy.metric_names) == (("cpu",), ("cpu", "up"))


def direction(policy: PolicyFunction, seen: Observation) -> int:
    wanted = policy(seen).capacity
    return (wanted > seen.capacity) - (wanted < seen.capacity)


SOUND: list[Policy] = [
    Threshold("backlog", 100, 10),
    CapacityThresholds("backlog", ((1, 50, 2), (4, 200, 40))),
    ValuePerInstance("backlog", 50),
    ValuePerInstance("backlog", 7, "latest"),
    BacklogTarget("backlog"),
    BacklogTarget("backlog", drain_minutes=1, statistic="maximum"),
    TargetTracking("backlog", 50),
    TargetTracking("backlog", 50, tolerance=0.3, statistic="latest"),
]


# --- parameters ---


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        (Threshold("backlog", "x", 10), "upper = 'x': must be a number"),  # type: ignore[arg-type]
        (Threshold("backlog", 100, float("nan")), "lower = nan: must be a number"),
        (Threshold("backlog", True, 0), "upper = True: must be a number"),
        (Threshold("", 100, 10), "metric = '': must be a name"),
        (
            Threshold("backlog", 100, 10, step_out=1.5),  # type: ignore[arg-type]
            "step_out = 1.5: must be a whole number of at least 1",
        ),
        (CapacityThresholds("backlog", ()), "levels = (): at least one level is required"),
        (
            CapacityThresholds("backlog", ((1, 50),)),  # type: ignore[arg-type]
            "levels[0] = (1, 50): must be (from capacity, upper, lower)",
        ),
        (
            CapacityThresholds("backlog", ((1, 50, 0), (4, 40, 60))),
            "levels[1].lower = 60: must be below upper = 40",
        ),
        (
            CapacityThresholds("backlog", ((0, 50, 0),)),
            "levels[0].capacity = 0: must be a whole number of at least 1",
        ),
        (
            CapacityThresholds("backlog", ((4, 50, 0), (1, 40, 0))),
            "levels = ((4, 50, 0), (1, 40, 0)): the capacities must increase from level to level",
        ),
        (
            CapacityThresholds("backlog", ((1, 50, 0),), step_in=0),
            "step_in = 0: must be a whole number of at least 1",
        ),
        (ValuePerInstance("backlog", 0), "target_per_instance = 0: must be above 0"),
        (
            ValuePerInstance("backlog", 1, "median"),  # type: ignore[arg-type]
            "statistic = 'median': must be one of latest, mean, maximum",
        ),
        (BacklogTarget("backlog", drain_minutes=-1), "drain_minutes = -1: must be above 0"),
        (BacklogTarget("backlog", share=1.5), "share = 1.5: must be above 0 and at most 1"),
        (
            BacklogTarget("backlog", rate_per_instance_minute=0),
            "rate_per_instance_minute = 0: must be above 0",
        ),
        (TargetTracking("cpu", -5), "target = -5: must be above 0"),
        (
            TargetTracking("cpu", 5, tolerance=-0.1),
            "tolerance = -0.1: must be at least 0 and below 1",
        ),
        (TargetTracking("cpu", 5, tolerance=1), "tolerance = 1: must be at least 0 and below 1"),
        (
            TargetTracking("cpu", 5, reporting_metric=""),
            "reporting_metric = '': must be a name",
        ),
    ],
)
def test_parameters_are_checked(policy: Any, problem: str) -> None:
    assert policy.problems() == [problem]


def test_sound_parameters_have_no_problem() -> None:
    for policy in SOUND:
        assert policy.problems() == []


def test_all_problems_are_told_at_once() -> None:
    assert len(Threshold(5, "x", None, 0, 0, 0).problems()) == 6  # type: ignore[arg-type]
