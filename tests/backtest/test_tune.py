"""Rules of tuning: fitted on what came first, judged on what came later."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from backtest.tune import search
from tests.backtest.arenas import SHIPPED_RULES, CommandLine, bursty

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


def test_a_poor_policy_gets_better_on_traffic_that_the_fit_never_saw(
    backtest: CommandLine,
) -> None:
    rules, trace = backtest.file("rules.py", TUNABLE_RULES), backtest.trace(list(bursty(1, 300)))
    code, out, err = backtest.run("tune", trace, "--rules", rules, "--tries", 12, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["regret_later"]["after"] < found["regret_later"]["before"]
    assert 0.2 <= found["parameters"]["minutes"]["after"] <= 5
    assert isinstance(found["parameters"]["samples"]["after"], int)


def test_the_table_says_the_same(backtest: CommandLine) -> None:
    rules, trace = backtest.file("rules.py", TUNABLE_RULES), backtest.trace(list(bursty(1, 60)))
    code, out, _ = backtest.run("tune", trace, "--rules", rules, "--tries", 2)
    assert code == 0
    assert "regret, later 40 %" in out


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (('"minutes": (0.2', '"hours": (0.2'), "tunable 'hours' is no number of Target"),
        (("(0.2, 5.0)", "(5.0, 0.2)"), "tunable 'minutes' = (5.0, 0.2): must be a pair"),
        (("tunable: Class", "other: Class"), "has nothing to tune"),
        (("(0.2, 5.0)", "7"), "tunable 'minutes' = 7: must be a pair (lowest, highest) of numbers"),
        (("(0.2, 5.0)", "(1, 2, 3)"), "tunable 'minutes' = (1, 2, 3): must be a pair"),
        (("(0.2, 5.0)", "('a', 'b')"), "tunable 'minutes' = ('a', 'b'): must be a pair"),
    ],
)
def test_what_cannot_be_tuned_is_named(
    backtest: CommandLine, change: tuple[str, str], told: str
) -> None:
    rules = backtest.file("rules.py", TUNABLE_RULES.replace(*change))
    code, _, err = backtest.run("tune", backtest.trace([9] * 30), "--rules", rules)
    assert code == 2
    assert told in err


BOXED = """
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
def test_rules_in_the_box_can_be_tuned_and_stay_sound(
    backtest: CommandLine, policy: str, names: set[str]
) -> None:
    rules = backtest.file("rules.py", BOXED.replace("POLICY", policy))
    trace = backtest.trace(list(bursty(3, 60)))
    code, out, err = backtest.run("tune", trace, "--rules", rules, "--tries", 8, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert set(found["parameters"]) == names
    assert found["regret_fitted"]["after"] <= found["regret_fitted"]["before"]
    if "lower" in names:
        assert found["parameters"]["lower"]["after"] < found["parameters"]["upper"]["after"]


def test_a_trace_too_short_to_be_parted_is_named(backtest: CommandLine) -> None:
    rules = backtest.file("rules.py", TUNABLE_RULES)
    assert (
        "at least 20 minutes" in backtest.run("tune", backtest.trace([9] * 9), "--rules", rules)[2]
    )


def test_missing_traces_are_a_usage_error(backtest: CommandLine) -> None:
    assert backtest.run("tune", "--rules", SHIPPED_RULES)[0] == 2


def test_the_search_finds_a_valley_and_repeats_with_its_seed() -> None:
    def valley(values: Mapping[str, float]) -> float:
        return (values["x"] - 3) ** 2 + abs(values["n"] - 7)

    start = {"x": 9.0, "n": 1}
    ranges = {"x": (0.0, 10.0), "n": (1.0, 20.0)}
    found = [search(valley, start, ranges, 200, 5) for _ in range(2)]
    assert found[0] == found[1]
    assert found[0][1] < 0.1
    assert found[0][0]["n"] == 7
