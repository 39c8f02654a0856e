from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from shared.autoscaling import (
    AppServicePlan,
    AzureMonitorMetric,
    Cooldown,
    Goal,
    Guards,
    HubMetric,
    Limits,
    Missing,
    Observation,
    PlanCapacity,
    Profile,
    QueueAge,
    RateLimit,
    Recommendation,
    Schedule,
    ScheduleEntry,
    ServiceBusQueue,
    StorageQueue,
    TargetTracking,
    Threshold,
    Throughput,
    ValuePerInstance,
    any_of,
)
from shared.autoscaling.deciding.validation import connections, misread_totals, problems
from shared.autoscaling.sources import TopicSubscriptions
from tests.builders import SOURCE, plan, resource

WEB_APP = (
    "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/g"
    "/providers/Microsoft.Web/serverFarms/my-plan"
)


def test_pushed_metrics_are_valid_sources() -> None:
    pushed = {"backlog": HubMetric(), "cpu": AzureMonitorMetric(WEB_APP.upper(), "CpuPercentage")}
    assert problems([resource(metrics=pushed)]) == []


async def waits(seen: object) -> None:
    """A coroutine function, which cannot be a policy."""


def test_an_async_policy_is_refused() -> None:
    (problem,) = problems([resource(policy=waits)])
    assert "must be a plain function, not an async one" in problem


def test_a_valid_declaration_has_no_problems() -> None:
    assert problems([resource(), resource("plan-2")]) == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": "a/b"}, "name = 'a/b': must match"),
        ({"name": "!poison"}, "must match"),
        ({"target": "plan-1"}, "target = 'plan-1': must be an AppServicePlan(subscription_id, "),
        (
            {"target": AppServicePlan("x", "g", "p")},
            "target.subscription_id = 'x': must be a UUID, not",
        ),
        (
            {"target": AppServicePlan(plan().subscription_id, "", "p")},
            "target.resource_group = '': must be a name",
        ),
        ({"limits": Limits(0, 5)}, "limits.minimum = 0: must be a whole number of at least 1"),
        ({"limits": Limits(6, 5)}, "limits.maximum = 5: must be at least limits.minimum = 6"),
        ({"limits": Limits(1, 101)}, "limits.maximum = 101: must be a whole number of at most 100"),
        ({"limits": Limits("1", 5)}, "limits.minimum = '1': must be a whole number"),  # type: ignore[arg-type]
        ({"cooldown": Cooldown(-1, 0)}, "cooldown.scale_out_seconds = -1: must be 0 to 86400"),
        ({"window_seconds": 0}, "window_seconds = 0: must be 1 to 14400"),
        ({"mode": "pause"}, "mode = 'pause': must be a Mode"),
        ({"metrics": {}}, "metrics = {}: must be a dict of at least one source"),
        ({"metrics": None}, "metrics = None: must be a dict of at least one source"),
        ({"window_seconds": "600"}, "window_seconds = '600': must be a number"),
        ({"cooldown": 600}, "cooldown = 600: must be Cooldown(…)"),
        ({"limits": (1, 3)}, "limits = (1, 3): must be Limits(…)"),
        ({"name": 5}, "name = 5: must match"),
        ({"goal": Goal(late_penalty=-1)}, "goal.late_penalty = -1: must be 0 to 1e+06"),
        (
            {"throughput": Throughput(0)},
            "throughput.rate_per_instance_minute = 0: must be 1e-06 to",
        ),
        ({"metrics": {"backlog": ServiceBusQueue(5)}}, ".queue = 5: must be a name"),  # type: ignore[arg-type]
        (
            {"metrics": {"cpu": AzureMonitorMetric("my-plan", "CpuPercentage")}},
            "metrics['cpu'].resource_id = 'my-plan': must be a resource ID such as",
        ),
        ({"metrics": {"cpu": AzureMonitorMetric(WEB_APP, "")}}, "metrics['cpu'].metric = ''"),
        (
            {"metrics": {"cpu": AzureMonitorMetric(WEB_APP, "m", "mean")}},  # type: ignore[arg-type]
            "metrics['cpu'].aggregation = 'mean': must be one of average, total",
        ),
        (
            {"metrics": {"cpu": AzureMonitorMetric(WEB_APP, "m", "total", "1 min")}},
            "metrics['cpu'].time_grain = '1 min': must be a duration such as 'PT1M'",
        ),
        (
            {"metrics": {"cpu": AzureMonitorMetric(WEB_APP, "m", streamed=True, namespace="n")}},
            "metrics['cpu'].namespace = 'n': must be text, and empty for a streamed metric",
        ),
        ({"metrics": {"capacity": SOURCE}}, "this name is reserved"),
        ({"metrics": {"a/b": SOURCE}}, "metrics['a/b']: the name must match"),
        ({"metrics": {"backlog": "queue"}}, "must be a metric source"),
        ({"metrics": {"backlog": ServiceBusQueue("")}}, "metrics['backlog'].queue = ''"),
        (
            {"metrics": {"backlog": ServiceBusQueue("q", count="all")}},  # type: ignore[arg-type]
            "metrics['backlog'].count = 'all': must be one of active, dead_letter, scheduled",
        ),
        (
            {"guards": Guards(missing=Missing(then="stop"))},  # type: ignore[arg-type]
            "guards.missing.then = 'stop': must be 'hold', 'hold_in' or a whole number",
        ),
        (
            {"guards": Guards(breaker_metric="b")},
            "guards.breaker_metric = 'b': must be one of the resource's metrics (backlog)",
        ),
        ({"guards": Guards(stabilisation_in_seconds=-1)}, "stabilisation_in_seconds = -1: must"),
        (
            {"guards": Guards(rate_limits=(RateLimit("out", 300),))},
            "guards.rate_limits[0].instances, percent: exactly one of the two must be set",
        ),
        (
            {"guards": Guards(rate_limits=(RateLimit("out", 3600, 1),))},
            "guards.rate_limits[0].period_seconds = 3600: must be 1 to 1800",
        ),
        ({"guards": Guards(Missing(then=6))}, "guards.missing.then = 6: must be 1 to 5"),
        (
            {"guards": Guards(missing_by_metric={"backlog": Missing(then=0)})},
            "guards.missing_by_metric['backlog'].then = 0: must be 1 to 5",
        ),
        (
            {"policy": any_of(Schedule((ScheduleEntry(Profile("sale", 6)),), Profile("rest")))},
            "policy: profile 'sale': minimum = 6: must be at most limits.maximum = 5",
        ),
        (
            {"policy": Schedule((), Profile("rest", 1, 2)), "limits": Limits(3, 5)},
            "policy: profile 'rest': maximum = 2: must be at least limits.minimum = 3",
        ),
        ({"name": "plan-1 "}, "name = 'plan-1 ': must match"),
        ({"metrics": {" backlog": SOURCE}}, "metrics[' backlog']: the name must match"),
        *[
            (changes, f"{place} = {name!r}: must be a name without spaces at its ends")
            for name in ("orders ", " orders", "orders\t", "orders\N{NO-BREAK SPACE}")
            for changes, place in (
                ({"target": replace(plan(), name=name)}, "target.name"),
                ({"target": replace(plan(), resource_group=name)}, "target.resource_group"),
                ({"metrics": {"backlog": ServiceBusQueue(name)}}, ".queue"),
                ({"metrics": {"backlog": StorageQueue(name)}}, ".queue"),
                ({"metrics": {"backlog": StorageQueue("q", connection=name)}}, ".connection"),
                ({"metrics": {"backlog": replace(SOURCE, topic=name)}}, ".topic"),
                ({"metrics": {"backlog": replace(SOURCE, subscription=name)}}, ".subscription"),
                ({"metrics": {"backlog": TopicSubscriptions(name)}}, ".topic"),
                ({"metrics": {"backlog": PlanCapacity(replace(plan(), name=name))}}, ".plan.name"),
                ({"metrics": {"backlog": AzureMonitorMetric(WEB_APP, name)}}, ".metric"),
            )
        ],
        ({"metrics": {"backlog": AzureMonitorMetric(f"{WEB_APP} ", "m")}}, ".resource_id = "),
        ({"guards": None}, "guards = None: must be Guards(…)"),
        ({"policy": None}, "policy = None: must be callable"),
        ({"policy": Threshold}, "policy = Threshold: is a class; write Threshold(…)"),
        (
            {"policy": any_of(cast(Any, Threshold))},
            "any_of[0] = Threshold: is a class; write Threshold(…)",
        ),
        (
            {"policy": Threshold("other", 100, 10)},
            "policy.metric = 'other': must be one of the resource's metrics (backlog)",
        ),
        (
            {"policy": Threshold("backlog", 10, 100)},
            "policy.lower = 100: must be below upper = 10",
        ),
        (
            {"policy": Threshold("backlog", 100, 10, step_in=0)},
            "policy.step_in = 0: must be a whole number of at least 1",
        ),
    ],
)
def test_each_problem_names_resource_key_value_and_bound(
    changes: dict[str, Any], problem: str
) -> None:
    reported = problems([resource(**changes)])
    assert any(problem in each for each in reported), reported


def test_all_problems_of_all_resources_are_reported_together() -> None:
    bad = resource(limits=Limits(0, 5), policy=Threshold("backlog", 1, 2))
    assert len(problems([bad, bad, "nonsense"])) == 7


@pytest.mark.parametrize("answer", [None, resource(), iter([resource()]), {"plan-1": resource()}])
def test_a_result_that_is_not_a_list_is_a_problem(answer: object) -> None:
    (problem,) = problems(answer)
    assert "must return a list of Resource" in problem


def test_two_resources_must_not_share_one_plan() -> None:
    (problem,) = problems([resource(), resource("other", target=replace(plan(), name="PLAN-1"))])
    assert "declared 2 times, must be declared once" in problem


def test_declaring_no_resource_is_a_problem() -> None:
    assert problems([]) == ["scaling_rules.resources() declares no resource: declare one"]


def test_the_connections_of_all_declared_sources_are_listed() -> None:
    sources = {
        "a": SOURCE,
        "b": StorageQueue("q", connection="Other"),
        "c": PlanCapacity(plan()),
    }
    assert connections([resource(metrics=sources)]) == {
        ("service_bus", "ServiceBusConnection"),
        ("storage", "Other"),
    }


@pytest.mark.parametrize("wrap", [lambda policy: policy, lambda policy: any_of(policy, policy)])
def test_an_age_limit_shorter_than_a_planning_step_is_refused(wrap: Any) -> None:
    planned = wrap(QueueAge("backlog", Threshold("backlog", 100, 10), step_seconds=60))
    reported = problems([resource(policy=planned, goal=Goal(age_limit_minutes=0.5))])
    assert reported
    problem = "goal.age_limit_minutes = 0.5: is shorter than the planning step of QueueAge (60 s)"
    assert problem in reported[0]
    assert "lower step_seconds (setting PlanningStepSeconds) to at most 30" in reported[0]
    assert problems([resource(policy=planned, goal=Goal(age_limit_minutes=1))]) == []


def test_a_policy_that_reads_an_undeclared_metric_is_reported_at_start() -> None:
    def mistyped(seen: Observation) -> Recommendation:
        waiting = seen.window("backlog").latest
        if waiting is None or waiting.value < 1000:
            raise RuntimeError("other errors are ignored")
        return Recommendation(seen.window("finsihed").count, "counting")

    declared = {"backlog": SOURCE, "finished": SOURCE}
    (problem,) = problems([resource(policy=mistyped, metrics=declared)])
    assert problem == (
        "resource 'plan-1': policy: raised UnknownMetric: 'finsihed' is not one of the "
        "resource's metrics (backlog, finished)"
    )
    beside = any_of(Threshold("backlog", 100, 10), mistyped)
    (problem,) = problems([resource(policy=beside, metrics=declared)])
    assert "'finsihed' is not one of" in problem


def test_each_undeclared_metric_is_reported_once() -> None:
    def mistyped(seen: Observation) -> Recommendation:
        return Recommendation(seen.window("finsihed").count, "counting")

    misspelt = Threshold("backlgo", 100, 10)
    (problem,) = problems([resource(policy=misspelt)])
    assert "policy.metric = 'backlgo'" in problem
    both = problems([resource(policy=any_of(misspelt, mistyped))])
    assert len(both) == 2
    assert "policy.metric = 'backlgo'" in both[0]
    assert "'finsihed' is not one of" in both[1]


@pytest.mark.parametrize(
    ("source", "warned"),
    [
        (SOURCE, True),
        (StorageQueue("orders"), True),
        (ServiceBusQueue("orders", "dead_letter"), True),
        (PlanCapacity(plan()), True),
        (AzureMonitorMetric(WEB_APP, "Requests", "total"), True),
        (AzureMonitorMetric(WEB_APP, "CpuPercentage"), False),
        (HubMetric(), False),
    ],
)
def test_a_total_that_is_read_as_a_value_per_instance_leads_to_a_warning(
    source: Any, warned: bool
) -> None:
    metrics = {"backlog": source, "cpu": HubMetric()}
    tracking = any_of(TargetTracking("backlog", 100), TargetTracking("cpu", 60))
    declared = resource(policy=QueueAge("backlog", tracking), metrics=metrics)
    assert problems([declared]) == []
    warnings = misread_totals([declared])
    assert [each for each in warnings if "Use ValuePerInstance('backlog', …)" in each] == warnings
    assert len(warnings) == warned
    assert misread_totals([replace(declared, policy=ValuePerInstance("backlog", 100))]) == []
