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
    MetricRule,
    MetricRules,
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


OTHER_CASE = AzureMonitorMetric(WEB_APP.upper(), "CpuPercentage")


@pytest.mark.parametrize("changes", [{}, {"metrics": {"backlog": HubMetric(), "cpu": OTHER_CASE}}])
def test_a_valid_declaration_has_no_problems(changes: dict[str, Any]) -> None:
    assert problems([resource(**changes), resource("plan-2")]) == []


async def waits(seen: object) -> None:
    """A coroutine function, which cannot be a policy."""


def reading(source: Any, name: str = "backlog") -> dict[str, Any]:
    return {"metrics": {name: source}}


def monitoring(*fields: Any, **options: Any) -> dict[str, Any]:
    return reading(AzureMonitorMetric(*fields, **options), "cpu")


def missing(then: Any) -> Missing:
    return Missing(then=then)


def limited(*fields: Any) -> dict[str, Any]:
    return {"guards": Guards(rate_limits=(RateLimit(*fields),))}


SALE = any_of(Schedule((ScheduleEntry(Profile("sale", 6)),), Profile("rest")))
NO_GROUP = AppServicePlan(plan().subscription_id, "", "p")
IN_BUSINESS = {"policy": Schedule((), Profile("rest", 1, 2)), "limits": Limits(3, 5)}
ALL = ServiceBusQueue("q", count="all")  # type: ignore[arg-type]
STREAMED = monitoring(WEB_APP, "m", streamed=True, namespace="n")
A_LIMIT = RateLimit("out", 60, 1)
NO_STEP = Threshold("backlog", 100, 10, step_in=0)
DECLARED = "must be one of the resource's metrics (backlog)"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": "a/b"}, "name = 'a/b': must match"),
        ({"name": "!poison"}, "must match"),
        ({"name": "plan-1 "}, "name = 'plan-1 ': must match"),
        ({"name": 5}, "name = 5: must match"),
        ({"target": "plan-1"}, "target = 'plan-1': must be AppServicePlan(subscription_id, "),
        ({"target": AppServicePlan("x", "g", "p")}, "subscription_id = 'x': must be a UUID, not"),
        ({"target": NO_GROUP}, "target.resource_group = '': must be a name"),
        ({"limits": Limits(0, 5)}, "limits.minimum = 0: must be a whole number of at least 1"),
        ({"limits": Limits(6, 5)}, "limits.maximum = 5: must be at least limits.minimum = 6"),
        ({"limits": Limits(1, 101)}, "limits.maximum = 101: must be a whole number of at most 100"),
        ({"limits": Limits("1", 5)}, "limits.minimum = '1': must be a whole number"),  # type: ignore[arg-type]
        ({"limits": (1, 3)}, "limits = (1, 3): must be Limits(…)"),
        ({"cooldown": Cooldown(-1, 0)}, "cooldown.scale_out_seconds = -1: must be 0 to 86400"),
        ({"cooldown": 600}, "cooldown = 600: must be Cooldown(…)"),
        ({"window_seconds": 0}, "window_seconds = 0: must be 1 to 14400"),
        ({"window_seconds": "600"}, "window_seconds = '600': must be a number"),
        ({"mode": "pause"}, "mode = 'pause': must be Mode.ACTIVE or Mode.DRY_RUN or"),
        ({"metrics": {}}, "metrics = {}: must be a dict of at least one source"),
        ({"metrics": None}, "metrics = None: must be a dict of at least one source"),
        ({"goal": Goal(late_penalty=-1)}, "goal.late_penalty = -1: must be 0 to 1e+06"),
        ({"throughput": Throughput(0)}, "throughput.rate_per_instance_minute = 0: must be 1e-06"),
        (reading(SOURCE, "capacity"), "this name is reserved"),
        (reading(SOURCE, "a/b"), "metrics['a/b']: the name must match"),
        (reading(SOURCE, " backlog"), "metrics[' backlog']: the name must match"),
        (reading("queue"), "must be a metric source"),
        (reading(ServiceBusQueue("")), "metrics['backlog'].queue = ''"),
        (
            reading(ServiceBusQueue("t/subscriptions/s")),
            "'t/subscriptions/s': must be only the name",
        ),
        (reading(StorageQueue("Jobs")), "queue = 'Jobs': must be 3 to 63 lower-case letters"),
        (
            reading(ServiceBusQueue("q", connection="Endpoint=sb://a")),
            "be the name of a setting, not",
        ),
        (reading(ServiceBusQueue(5)), ".queue = 5: must be a name"),  # type: ignore[arg-type]
        (reading(ALL), "count = 'all': must be one of active, dead_letter, scheduled"),
        (monitoring("my-plan", "m"), "resource_id = 'my-plan': must be a resource ID such as"),
        (monitoring(f"{WEB_APP} ", "m"), ".resource_id = "),
        (monitoring(WEB_APP, ""), "metrics['cpu'].metric = ''"),
        (monitoring(WEB_APP, "m", "mean"), "aggregation = 'mean': must be one of average, total"),
        (monitoring(WEB_APP, "m", "total", "1 min"), "time_grain = '1 min': must be a duration"),
        (STREAMED, "namespace = 'n': must be text, and empty for a streamed metric"),
        *[
            (changes, f"{place} = {name!r}: must be a name without spaces at its ends")
            for name in ("orders ", " orders", "orders\t", "orders\N{NO-BREAK SPACE}")
            for changes, place in (
                ({"target": replace(plan(), name=name)}, "target.name"),
                ({"target": replace(plan(), resource_group=name)}, "target.resource_group"),
                (reading(ServiceBusQueue(name)), ".queue"),
                (reading(StorageQueue(name)), ".queue"),
                (reading(StorageQueue("q", connection=name)), ".connection"),
                (reading(replace(SOURCE, topic=name)), ".topic"),
                (reading(replace(SOURCE, subscription=name)), ".subscription"),
                (reading(TopicSubscriptions(name)), ".topic"),
                (reading(PlanCapacity(replace(plan(), name=name))), ".plan.name"),
                (monitoring(WEB_APP, name), ".metric"),
            )
        ],
        ({"guards": None}, "guards = None: must be Guards(…)"),
        ({"guards": Guards(missing("stop"))}, "then = 'stop': must be 'hold', 'hold_in' or a"),
        ({"guards": Guards(missing(6))}, "guards.missing.then = 6: must be 1 to 5"),
        (
            {"guards": Guards(missing_by_metric={"backlog": missing(0)})},
            "guards.missing_by_metric['backlog'].then = 0: must be 1 to 5",
        ),
        ({"guards": Guards(breaker_metric="b")}, f"guards.breaker_metric = 'b': {DECLARED}"),
        ({"guards": Guards(stabilisation_in_seconds=-1)}, "stabilisation_in_seconds = -1: must"),
        (limited("out", 300), "rate_limits[0].instances, percent: exactly one of the two must be"),
        (limited("out", 3600, 1), "guards.rate_limits[0].period_seconds = 3600: must be 1 to 1800"),
        ({"policy": SALE}, "profile 'sale': minimum = 6: must be at most limits.maximum = 5"),
        (IN_BUSINESS, "policy: profile 'rest': maximum = 2: must be at least limits.minimum = 3"),
        ({"policy": None}, "policy = None: must be callable"),
        ({"policy": waits}, "must be a plain function, not an async one"),
        ({"policy": Threshold}, "policy = Threshold: is a class; write Threshold(…)"),
        ({"policy": any_of(cast(Any, Threshold))}, "any_of[0] = Threshold: is a class; write"),
        ({"policy": Threshold("other", 100, 10)}, f"policy.metric = 'other': {DECLARED}"),
        ({"policy": Threshold("backlog", 10, 100)}, "policy.lower = 100: must be below upper = 10"),
        *[
            ({"policy": policy}, "must be a tuple; one of a single element is (")
            for policy in (
                MetricRules(cast(Any, MetricRule("backlog", ">", 100, "out"))),
                Schedule(cast(Any, ScheduleEntry(Profile("sale"))), Profile("rest")),
            )
        ],
        *[
            (
                {"guards": Guards(rate_limits=cast(Any, limits))},
                f"guards.rate_limits = {shown}: must be a tuple; one of a single element is "
                "(RateLimit(direction, period_seconds),)",
            )
            for limits, shown in ((None, "None"), ({}, "{}"), ("out", "'out'"), (A_LIMIT, A_LIMIT))
        ],
        (
            {"guards": Guards(rate_limits=cast(Any, (each for each in (A_LIMIT,))))},
            "must be a tuple; one of a single element is",
        ),
        (
            {"guards": Guards(rate_limits=cast(Any, [A_LIMIT, 5]))},
            "guards.rate_limits[1] = 5: must be RateLimit(direction, period_seconds)",
        ),
        (
            {"guards": Guards(missing_by_metric=cast(Any, Missing()))},
            f"missing_by_metric = {Missing()}: must be a dict such as {{'name': Missing(…)}}",
        ),
        (
            {"guards": Guards(missing_by_metric=cast(Any, {"backlog": 60}))},
            "guards.missing_by_metric['backlog'] = 60: must be Missing(…)",
        ),
        ({"guards": Guards(cast(Any, 60))}, "guards.missing = 60: must be Missing(…)"),
        (
            {"guards": Guards(breaker_metric=cast(Any, ["backlog"]))},
            "guards.breaker_metric = ['backlog']: must be a name",
        ),
        (
            {"throughput": Throughput(completed_metric=cast(Any, ["backlog"]))},
            "throughput.completed_metric = ['backlog']: must be a name",
        ),
        ({"policy": Threshold(cast(Any, ["backlog"]), 9, 1)}, "policy.metric = ['backlog']: must"),
        ({"policy": NO_STEP}, "policy.step_in = 0: must be a whole number of at least 1"),
    ],
)
def test_each_problem_names_resource_key_value_and_bound(
    changes: dict[str, Any], problem: str
) -> None:
    reported = problems([resource(**changes)])
    assert "cannot be checked" not in " ".join(reported)
    assert any(problem in each for each in reported), reported


def test_all_problems_of_all_resources_are_reported_together() -> None:
    bad = resource(limits=Limits(0, 5), policy=Threshold("backlog", 1, 2))
    assert len(problems([bad, bad, "nonsense"])) == 7


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        *[(each, "must return a list of Resource") for each in (None, resource(), {"plan-1": 1})],
        (iter([resource()]), "must return a list of Resource"),
        ([], "scaling_rules.resources() declares no resource: declare one"),
        (
            [resource(), resource("other", target=replace(plan(), name="PLAN-1"))],
            "declared 2 times, must be declared once",
        ),
    ],
)
def test_the_rules_return_a_list_of_resources_with_a_plan_each(
    answer: object, problem: str
) -> None:
    (found,) = problems(answer)
    assert problem in found


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


def mistyped(seen: Observation) -> Recommendation:
    waiting = seen.window("backlog").latest
    if waiting is None or waiting.value < 1000:
        raise RuntimeError("other errors are ignored")
    return Recommendation(seen.window("finsihed").count, "counting")


UNKNOWN = "'finsihed' is not one of the resource's metrics (backlog)"
MISSPELT, RIGHT = Threshold("backlgo", 100, 10), Threshold("backlog", 100, 10)


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (mistyped, [f"resource 'plan-1': policy: raised UnknownMetric: {UNKNOWN}"]),
        (any_of(RIGHT, mistyped), [UNKNOWN]),
        (MISSPELT, ["policy.metric = 'backlgo'"]),
        (any_of(MISSPELT, mistyped), ["policy.metric = 'backlgo'", UNKNOWN]),
    ],
)
def test_each_undeclared_metric_that_a_policy_reads_is_reported_once_at_start(
    policy: Any, told: list[str]
) -> None:
    found = problems([resource(policy=policy)])
    assert len(found) == len(told)
    assert all(text in problem for text, problem in zip(told, found, strict=True))


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
