"""The policies that look at single metrics: the capacity that they recommend, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.autoscaling import (
    BacklogTarget,
    CapacityThresholds,
    Goal,
    Limits,
    MetricRule,
    MetricRules,
    Observation,
    Policy,
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
    ("capacity", "value", "wanted"),
    [(1, 60, 2), (3, 60, 4), (4, 60, 4), (4, 201, 5), (9, 39, 8), (3, 39, 3), (10, 39, 10)],
)
def test_thresholds_follow_the_capacity(capacity: int, value: float, wanted: int) -> None:
    steps = CapacityThresholds("backlog", ((1, 50, 0), (4, 200, 40), (10, 1000, 20)))
    assert steps(seeing([value] * 5, capacity)).capacity == wanted


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
        ([500 * (3 * 0.1)], "mean", 3),  # as a floating-point number slightly more than 150
    ],
)
def test_each_instance_has_its_share(values: list[float], statistic: Any, wanted: int) -> None:
    wish = ValuePerInstance("backlog", 50, statistic)(seeing(values))
    assert wish.capacity == wanted


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


@pytest.mark.parametrize(
    ("changes", "missing", "said"),
    [
        (
            {"throughput": Throughput()},
            "throughput.rate_per_instance_minute",
            "the rate per instance is not known; set throughput.rate_per_instance_minute",
        ),
        ({"goal": Goal(age_limit_minutes=0)}, None, "leaves no time"),
    ],
)
def test_where_the_backlog_says_nothing_the_capacity_stays(
    changes: dict[str, Any], missing: str | None, said: str
) -> None:
    wish = BacklogTarget("backlog")(seeing([400], **changes))
    assert (wish.capacity, wish.evidence.get("missing")) == (4, missing)
    assert said in wish.reason


# --- TargetTracking ---


WITHIN = "the difference is within the tolerance"
TOO_LITTLE = "the difference is worth less than one instance"
NOT_ALL = "instances report; the others may make up for the difference"


@pytest.mark.parametrize(
    ("value", "reporting", "wanted", "said"),
    [
        (50, None, 4, WITHIN),
        (55, None, 4, f"holding: the mean cpu is 55, and the target is 50; {WITHIN}"),
        (56, None, 5, "5 instances"),
        (100, None, 8, "8 instances"),
        (45, None, 4, WITHIN),
        (44, None, 4, TOO_LITTLE),
        (37.5, None, 3, "3 instances"),
        (0, None, 0, "0 instances"),
        (100, 4, 8, "8 instances"),
        (100, 9, 8, "8 instances"),  # no more can report than there are
        (100, 3, 6, "6 instances"),  # (100·3 + 0)/4 = 75
        (60, 3, 4, f"only 3 of 4 {NOT_ALL}"),  # (60·3 + 0)/4 = 45: it turns
        (100, 2, 4, f"only 2 of 4 {NOT_ALL}"),  # (100·2 + 0)/4 = 50
        (0, 2, 2, "2 instances"),  # (0·2 + 50·2)/4 = 25
        (25, 2, 3, "3 instances"),
        (45, 2, 4, WITHIN),
        (50, 1, 4, WITHIN),  # at the target the missing ones are no reason to scale in
        (100, 0, 4, ""),  # nobody reports
        (100, [], 4, "holding: there are no samples of up"),  # how many report is not guessed
    ],
)
def test_tracking_the_target(value: float, reporting: Any, wanted: int, said: str) -> None:
    policy = TargetTracking("cpu", 50, reporting_metric=None if reporting is None else "up")
    up = reporting if isinstance(reporting, list) else [reporting]
    wish = policy(seeing({"cpu": [value]} | ({} if reporting is None else {"up": up}), 4))
    assert wish.capacity == wanted
    assert said in wish.reason, wish.reason


def test_a_utilisation_is_said_to_be_one() -> None:
    policy = TargetTracking("cpu", 50, reporting_metric="up")
    assert (policy.utilisation_names, policy.metric_names) == (("cpu",), ("cpu", "up"))


# --- MetricRules ---


def minutely(capacity: int = 4, **values: Sequence[float]) -> Observation:
    windows = {name: window(series, 60) for name, series in values.items()}
    return seeing({}, capacity, limits=Limits(1, 20), histories=windows)


def rule(**changes: Any) -> MetricRule:
    fields: dict[str, Any] = {"metric": "a", "comparison": ">", "threshold": 10, "direction": "out"}
    return MetricRule(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "values", "wanted"),
    [
        ({}, [10, 12], 5),
        ({}, [10, 10], 4),
        ({"comparison": ">="}, [10, 10], 5),
        ({"by": 3}, [20], 7),
        ({"by": 30, "unit": "percent"}, [20], 6),
        ({"by": 1, "unit": "percent"}, [20], 5),
        ({"by": 9, "unit": "exactly"}, [20], 9),
        ({"by": 2, "unit": "exactly"}, [20], 4),  # not in, by a rule that scales out
        ({"aggregation": "maximum"}, [1, 11, 1], 5),
        ({"aggregation": "minimum"}, [1, 11, 11], 4),
        ({"aggregation": "total"}, [4, 4, 4], 5),
        ({"aggregation": "count", "threshold": 2}, [0, 0, 0], 5),
        ({"aggregation": "last"}, [1, 1, 11], 5),
        ({"per_instance": True}, [39], 4),
        ({"per_instance": True}, [41], 5),
        ({"window_seconds": 90}, [100, 100, 1, 1], 4),
        ({}, [], 4),
    ],
)
def test_a_rule_out(changes: dict[str, Any], values: list[float], wanted: int) -> None:
    assert MetricRules((rule(**changes),))(minutely(a=values)).capacity == wanted


def test_out_takes_any_rule_and_the_furthest_of_them() -> None:
    rules = MetricRules((rule(by=1), rule(metric="b", by=3), rule(metric="c", by=9)))
    wish = rules(minutely(a=[20], b=[20], c=[1]))
    found = "the average of b over 10 min is 20 (required: > 10)"
    assert (wish.capacity, wish.reason) == (7, f"{found}: recommending 7 instances")


def test_in_takes_all_rules_and_the_most_careful_of_them() -> None:
    quiet = {"comparison": "<", "threshold": 5, "direction": "in"}
    rules = MetricRules((rule(**quiet, by=3), rule(metric="b", **quiet, by=1)))
    assert rules(minutely(a=[1], b=[1])).capacity == 3
    assert rules(minutely(a=[1], b=[9])).capacity == 4
    assert rules(minutely(a=[1], b=[])).capacity == 4  # what is not known is not quiet
    assert "1 of 2 scale-in rules" in rules(minutely(a=[1], b=[])).reason
    only_out = MetricRules((rule(aggregation="last", window_seconds=90, per_instance=True),))
    assert only_out(minutely(a=[1])).reason.endswith("and there is no scale-in rule")
    found = "the last value of a per instance over 1.5 min is 20 (required: > 10)"
    assert only_out(minutely(a=[80])).reason == f"{found}: recommending 5 instances"


@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=5),
    st.lists(st.floats(0, 100), min_size=1, max_size=5),
    st.integers(1, 20),
)
def test_out_wins_over_in_and_only_rules_out_scale_out(
    a: list[float], b: list[float], capacity: int
) -> None:
    quiet = rule(metric="b", comparison="<", threshold=50, direction="in")
    wish = MetricRules((rule(threshold=50), quiet))(minutely(capacity, a=a, b=b))
    out, into = sum(a) / len(a) > 50, sum(b) / len(b) < 50
    assert wish.capacity - capacity == (1 if out else -1 if into else 0)


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
        (
            MetricRules((rule(comparison="=>"),)),
            "rules[0].comparison = '=>': must be one of >, >=, <, <=, ==, !=",
        ),
        (MetricRules((rule(by=0),)), "rules[0].by = 0: must be a whole number of at least 1"),
        (
            MetricRules((rule(), rule(window_seconds=0))),
            "rules[1].window_seconds = 0: must be above 0",
        ),
        (MetricRules(()), "rules: at least one MetricRule is required"),
    ],
)
def test_parameters_are_checked(policy: Any, problem: str) -> None:
    assert policy.problems() == [problem]


def test_all_problems_are_told_at_once() -> None:
    assert len(Threshold(5, "x", None, 0, 0, 0).problems()) == 6  # type: ignore[arg-type]
