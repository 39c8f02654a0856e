"""Rules as Azure Monitor has them: any out, all in, each with its own window."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.autoscaling import Limits, MetricRule, MetricRules, Observation
from shared.values.measurements import MetricValue, Window
from tests.builders import NOW


def seen(capacity: int = 4, **values: list[float]) -> Observation:
    """Samples a minute apart, the last one now."""
    histories = {
        name: Window(
            tuple(
                MetricValue(NOW - timedelta(minutes=len(series) - 1 - n), value)
                for n, value in enumerate(series)
            )
        )
        for name, series in values.items()
    }
    return Observation("plan-1", NOW, capacity, Limits(1, 20), {}, histories=histories)


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
    assert MetricRules((rule(**changes),))(seen(a=values)).capacity == wanted


def test_out_takes_any_rule_and_the_furthest_of_them() -> None:
    rules = MetricRules((rule(by=1), rule(metric="b", by=3), rule(metric="c", by=9)))
    wish = rules(seen(a=[20], b=[20], c=[1]))
    found = "the average of b over 10 min is 20 (required: > 10)"
    assert (wish.capacity, wish.reason) == (7, f"{found}: recommending 7 instances")


def test_in_takes_all_rules_and_the_most_careful_of_them() -> None:
    quiet = {"comparison": "<", "threshold": 5, "direction": "in"}
    rules = MetricRules((rule(**quiet, by=3), rule(metric="b", **quiet, by=1)))
    assert rules(seen(a=[1], b=[1])).capacity == 3
    assert rules(seen(a=[1], b=[9])).capacity == 4
    assert rules(seen(a=[1], b=[])).capacity == 4  # what is not known is not quiet
    assert "1 of 2 scale-in rules" in rules(seen(a=[1], b=[])).reason
    only_out = MetricRules((rule(aggregation="last", window_seconds=90, per_instance=True),))
    assert only_out(seen(a=[1])).reason.endswith("and there is no scale-in rule")
    found = "the last value of a per instance over 1.5 min is 20 (required: > 10)"
    assert only_out(seen(a=[80])).reason == f"{found}: recommending 5 instances"


@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=5),
    st.lists(st.floats(0, 100), min_size=1, max_size=5),
    st.integers(1, 20),
)
def test_out_wins_over_in_and_only_rules_out_scale_out(
    a: list[float], b: list[float], capacity: int
) -> None:
    quiet = rule(metric="b", comparison="<", threshold=50, direction="in")
    wish = MetricRules((rule(threshold=50), quiet))(seen(capacity, a=a, b=b))
    out, into = sum(a) / len(a) > 50, sum(b) / len(b) < 50
    assert wish.capacity - capacity == (1 if out else -1 if into else 0)


def test_wrong_parameters_are_named_with_their_place() -> None:
    found = MetricRules((rule(comparison="=>", by=0), rule(window_seconds=0))).problems()
    assert found == [
        "rules[0].comparison = '=>': must be one of >, >=, <, <=, ==, !=",
        "rules[0].by = 0: must be a whole number of at least 1",
        "rules[1].window_seconds = 0: must be above 0",
    ]
    assert MetricRules(()).problems() == ["rules: at least one MetricRule is required"]
