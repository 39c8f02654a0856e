"""Tuning: the first part of a trace fits the policy, the later part judges it."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from backtest.tune import search
from tests.backtest.arenas import CommandLine, bursty

TUNABLE_RULES = """
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from shared.autoscaling import AppServicePlan, Cooldown, Recommendation, Resource, StorageQueue


@dataclass(frozen=True)
class Target:
    minutes: float = 0.5
    samples: int = 1
    tunable: ClassVar[Mapping] = {"minutes": (0.2, 5.0), "samples": (1, 10)}

    def __call__(self, seen):
        newest = [s.value for s in seen.history("jobs").samples[-self.samples:]] or [0.0]
        each = seen.throughput.rate_per_instance_minute * self.minutes
        return Recommendation(max(1, math.ceil(max(newest) / each)), "backlog")


def resources(settings):
    plan = AppServicePlan("00000000-0000-0000-0000-000000000001", "group", "plan")
    jobs = {"jobs": StorageQueue("jobs")}
    return [Resource("plan", plan, jobs, Target(), cooldown=Cooldown(0, 0))]
"""


def test_rules_on_a_metric_without_data_are_not_tuned(backtest: CommandLine) -> None:
    text = TUNABLE_RULES.replace("StorageQueue", "HubMetric").replace(
        'HubMetric("jobs")', "HubMetric()"
    )
    rules = backtest.file("rules.py", text)
    code, _, err = backtest.run("tune", backtest.trace([20] * 60), "--rules", rules)
    assert code == 2
    assert "cannot be judged from arrivals alone: the trace has no data of jobs" in err


def test_tuning_improves_a_poor_policy_on_traffic_that_was_not_used(
    backtest: CommandLine,
) -> None:
    rules, trace = backtest.file("rules.py", TUNABLE_RULES), backtest.trace(list(bursty(1, 300)))
    code, out, err = backtest.run("tune", trace, "--rules", rules, "--tries", 12, "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert result["regret_later"]["after"] < result["regret_later"]["before"]
    assert 0.2 <= result["parameters"]["minutes"]["after"] <= 5
    assert isinstance(result["parameters"]["samples"]["after"], int)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('"minutes": (0.2', '"hours": (0.2'), "tunable 'hours' is not a number of Target"),
        (("(0.2, 5.0)", "(5.0, 0.2)"), "tunable 'minutes' = (5.0, 0.2): must be a pair"),
        (("tunable: Class", "other: Class"), "has nothing to tune"),
        (("(0.2, 5.0)", "7"), "tunable 'minutes' = 7: must be a pair (lowest, highest) of numbers"),
        (("(0.2, 5.0)", "(1, 2, 3)"), "tunable 'minutes' = (1, 2, 3): must be a pair"),
        (("(0.2, 5.0)", "('a', 'b')"), "tunable 'minutes' = ('a', 'b'): must be a pair"),
    ],
)
def test_an_invalid_tunable_mapping_is_refused_with_the_reason(
    backtest: CommandLine, change: tuple[str, str], message: str
) -> None:
    rules = backtest.file("rules.py", TUNABLE_RULES.replace(*change))
    code, _, err = backtest.run("tune", backtest.trace([9] * 30), "--rules", rules)
    assert code == 2
    assert message in err


BOXED = """
from backtest.slack_aware_drain import SlackAwareDrain
from backtest.stable_panic import StablePanic
from shared.autoscaling import *

def resources(settings):
    plan = AppServicePlan("00000000-0000-0000-0000-000000000001", "group", "plan")
    return [Resource("plan", plan, {"jobs": StorageQueue("jobs")}, POLICY)]
"""


@pytest.mark.parametrize(
    ("policy", "names"),
    [
        ('Threshold("jobs", upper=40, lower=30)', {"upper", "lower"}),
        ('ValuePerInstance("jobs", 2)', {"target_per_instance"}),
        ('StablePanic("jobs", 20)', {"target_per_instance", "panic_threshold"}),
        ('BacklogTarget("jobs")', {"share"}),
        ('SlackAwareDrain("jobs")', {"share", "calm_share"}),
    ],
)
def test_included_policies_can_be_tuned_and_stay_valid(
    backtest: CommandLine, policy: str, names: set[str]
) -> None:
    rules = backtest.file("rules.py", BOXED.replace("POLICY", policy))
    trace = backtest.trace(list(bursty(3, 60)))
    code, out, err = backtest.run("tune", trace, "--rules", rules, "--tries", 8, "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert set(result["parameters"]) == names
    assert result["regret_fitted"]["after"] <= result["regret_fitted"]["before"]
    if "lower" in names:
        assert result["parameters"]["lower"]["after"] < result["parameters"]["upper"]["after"]


def test_the_search_finds_a_minimum_and_is_repeatable_by_seed() -> None:
    def valley(values: Mapping[str, float]) -> float:
        return (values["x"] - 3) ** 2 + abs(values["n"] - 7)

    start = {"x": 9.0, "n": 1}
    ranges = {"x": (0.0, 10.0), "n": (1.0, 20.0)}
    results = [search(valley, start, ranges, 200, 5) for _ in range(2)]
    assert results[0] == results[1]
    assert results[0][1] < 0.1
    assert results[0][0]["n"] == 7
