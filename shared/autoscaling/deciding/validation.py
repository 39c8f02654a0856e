"""Checks of what scaling_rules.py declares: every problem at once, with key, value and bound."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from inspect import iscoroutinefunction
from typing import Any

from shared.autoscaling.deciding.samples import observe
from shared.autoscaling.declaring import (
    AppServicePlan,
    AzureMonitorMetric,
    Cooldown,
    Goal,
    Guards,
    HubMetric,
    IngestionBreaker,
    Limits,
    ManualChange,
    MetricSource,
    Mode,
    PlanCapacity,
    PushedMetric,
    RateLimit,
    ServiceBusQueue,
    ServiceBusSubscription,
    StorageQueue,
    Throughput,
)
from shared.autoscaling.measurements import CAPACITY_METRIC, MetricValue, Window
from shared.autoscaling.policy import Observation, Resource, UnknownMetric, ask, described, members
from shared.autoscaling.state import ScalingState
from shared.values.text import NAME, UUID

PLAN_CAPACITY_MAX = 100
"""No App Service Plan tier has more instances (Isolated v2: 100)."""

WINDOW_SECONDS_MAX = 14_400
"""Four hours of samples every 15 s fit into the rows of a resource."""

CONNECTED = ServiceBusSubscription | ServiceBusQueue | StorageQueue
COUNTS = ("active", "dead_letter", "scheduled")
AGGREGATIONS = ("average", "total", "minimum", "maximum", "count")
RESOURCE_ID = re.compile(
    rf"/subscriptions/{UUID.pattern}/resourceGroups/[^/]+/providers/[^/]+(/[^/]+/[^/]+)+/?", re.I
)
TIME_GRAIN = re.compile(r"PT?\d+[DHM]")


def problems(resources: object) -> list[str]:
    """What is wrong with what scaling_rules.resources() answered; empty where nothing is."""
    if not isinstance(resources, list | tuple):
        kind = type(resources).__name__
        return [f"scaling_rules.resources() answered a {kind}: a list of Resource is needed"]
    wrong = [] if resources else ["scaling_rules.resources(): declares no resource"]
    for position, resource in enumerate(resources):
        if isinstance(resource, Resource):
            wrong += [f"resource {resource.name!r}: {problem}" for problem in _checked(resource)]
        else:
            wrong.append(f"resources[{position}] = {resource!r}: must be a Resource")
    return wrong + _declared_twice([r for r in resources if isinstance(r, Resource)])


def needs_hub(resources: object) -> bool:
    """Whether a source of any resource is of no use without an event hub."""
    declared = resources if isinstance(resources, list | tuple) else ()
    return any(
        isinstance(source, PushedMetric | IngestionBreaker)
        for resource in declared
        if isinstance(resource, Resource) and isinstance(resource.metrics, Mapping)
        for source in resource.metrics.values()
    )


def connections(resources: object) -> set[tuple[type, str]]:
    """Kind of source and name of connection of all declared sources, as far as they are sound."""
    declared = resources if isinstance(resources, list | tuple) else ()
    return {
        (type(source), source.connection)
        for resource in declared
        if isinstance(resource, Resource) and isinstance(resource.metrics, Mapping)
        for source in resource.metrics.values()
        if isinstance(source, CONNECTED) and isinstance(source.connection, str)
    }


def _declared_twice(resources: Sequence[Resource]) -> list[str]:
    """Two resources of one name share their state, two of one target undo each other's work."""
    names = Counter(f"resource {resource.name!r}" for resource in resources)
    targets = Counter(f"target {resource.target}".casefold() for resource in resources)
    return [f"{what}: declared {n} times" for what, n in (names + targets).items() if n > 1]


def _checked(resource: Resource) -> Iterator[str]:
    """Rules are Python, nothing enforces their types: what a check stumbles over is a problem."""
    if wrong := list(_kinds(resource)):
        yield from wrong
        return
    for check in (_name, _target, _limits, _modes, _durations, _metrics, _guards, _policy):
        try:
            yield from check(resource)
        except Exception as error:
            yield f"{check.__name__[1:]}: cannot be checked: {type(error).__name__}: {error}"


def _kinds(resource: Resource) -> Iterator[str]:
    """A tuple where a value with fields belongs is the commonest slip."""
    kinds = {"limits": Limits, "cooldown": Cooldown, "guards": Guards, "goal": Goal}
    for field, kind in {**kinds, "throughput": Throughput}.items():
        value = getattr(resource, field)
        if not isinstance(value, kind):
            yield f"{field} = {value!r}: must be {kind.__name__}(…)"


def _name(resource: Resource) -> Iterator[str]:
    if not isinstance(resource.name, str) or not NAME.fullmatch(resource.name):
        yield f"name = {resource.name!r}: must match {NAME.pattern}"


def _target(resource: Resource) -> Iterator[str]:
    plan = resource.target
    if not isinstance(plan, AppServicePlan):
        yield f"target = {plan!r}: must be an AppServicePlan"
        return
    if not isinstance(plan.subscription_id, str) or not UUID.fullmatch(plan.subscription_id):
        yield f"target.subscription_id = {plan.subscription_id!r}: must be a UUID"
    for key in ("resource_group", "name"):
        value = getattr(plan, key)
        if not isinstance(value, str) or not value or "/" in value:
            yield f"target.{key} = {value!r}: must be a name without slashes"


def _limits(resource: Resource) -> Iterator[str]:
    low, high = resource.limits.minimum, resource.limits.maximum
    for key, value in (("minimum", low), ("maximum", high)):
        if type(value) is not int:
            yield f"limits.{key} = {value!r}: must be a whole number"
            return
    if low < 1:
        yield f"limits.minimum = {low}: must be at least 1"
    if high < low:
        yield f"limits.maximum = {high}: must be at least limits.minimum = {low}"
    if high > PLAN_CAPACITY_MAX:
        yield f"limits.maximum = {high}: must be at most {PLAN_CAPACITY_MAX}"


def _modes(resource: Resource) -> Iterator[str]:
    for key, kind in (("mode", Mode), ("on_manual_change", ManualChange)):
        if not isinstance(getattr(resource, key), kind):
            yield f"{key} = {getattr(resource, key)!r}: must be a {kind.__name__}"


def _durations(resource: Resource) -> Iterator[str]:
    cooldown = resource.cooldown
    yield from _bounded("cooldown.scale_out_seconds", cooldown.scale_out_seconds, 0, 86_400)
    yield from _bounded("cooldown.scale_in_seconds", cooldown.scale_in_seconds, 0, 86_400)
    yield from _bounded("window_seconds", resource.window_seconds, 1, WINDOW_SECONDS_MAX)
    yield from _bounded("history_seconds", resource.history_seconds, 0, WINDOW_SECONDS_MAX)
    yield from _bounded("goal.age_limit_minutes", resource.goal.age_limit_minutes, 0.01, 1440)
    yield from _bounded("goal.switch_cost", resource.goal.switch_cost, 0, 1e6)
    yield from _bounded("goal.late_penalty", resource.goal.late_penalty, 0, 1e6)
    yield from _counted(resource)
    yield from _planning_step(resource)
    rate, dead_time = (
        resource.throughput.rate_per_instance_minute,
        resource.throughput.dead_time_minutes,
    )
    if rate is not None:
        yield from _bounded("throughput.rate_per_instance_minute", rate, 1e-6, 1e12)
    if dead_time is not None:
        yield from _bounded("throughput.dead_time_minutes", dead_time, 0, 120)


def _planning_step(resource: Resource) -> Iterator[str]:
    """A policy that plans in steps cannot keep a limit that is shorter than one of them."""
    minutes = resource.goal.age_limit_minutes
    for member in members(resource.policy):
        seconds: Any = described(member).step_seconds
        if {type(seconds), type(minutes)} <= {int, float} and minutes * 60 < seconds:
            yield (
                f"goal.age_limit_minutes = {minutes}: must be at least the step of {seconds:g} s "
                f"in which {type(member).__name__} plans; set step_seconds (PlanningStepSeconds) "
                f"to at most {minutes * 60:g}"
            )


def _counted(resource: Resource) -> Iterator[str]:
    known = ", ".join(sorted(map(str, resource.metrics))) or "none"
    throughput = resource.throughput
    for key in ("completed_metric", "incoming_metric"):
        name = getattr(throughput, key)
        if name is not None and name not in resource.metrics:
            yield f"throughput.{key} = {name!r}: is not one of the resource's metrics ({known})"
    if throughput.completed_metric is not None and throughput.incoming_metric is not None:
        keys = "throughput.completed_metric, throughput.incoming_metric"
        yield f"{keys}: only one of the two may be set"


def _bounded(key: str, value: object, low: float, high: float) -> Iterator[str]:
    if type(value) not in (int, float):
        yield f"{key} = {value!r}: must be a number"
    elif not low <= value <= high:  # type: ignore[operator]  # false for NaN too
        yield f"{key} = {value}: must be {low:g} to {high:g}"


def _metrics(resource: Resource) -> Iterator[str]:
    if not isinstance(resource.metrics, Mapping) or not resource.metrics:
        yield f"metrics = {resource.metrics!r}: a dict of at least one source is needed"
        return
    for name, source in resource.metrics.items():
        if name == CAPACITY_METRIC:
            yield f"metrics[{name!r}]: this name is reserved for the target's own capacity"
        elif not isinstance(name, str) or not NAME.fullmatch(name):
            yield f"metrics[{name!r}]: the name must match {NAME.pattern}"
        for problem in _source(source):
            yield f"metrics[{name!r}]{problem}"


def _source(source: MetricSource) -> Iterator[str]:
    if not isinstance(source, MetricSource):
        yield f" = {source!r}: must be a metric source such as ServiceBusQueue"
        return
    if isinstance(source, PlanCapacity | HubMetric | IngestionBreaker):
        return
    if isinstance(source, AzureMonitorMetric):
        yield from _azure_monitor(source)
        return
    for key in ("topic", "subscription", "queue", "connection"):
        value = getattr(source, key, "none")
        if not isinstance(value, str) or not value:
            yield f".{key} = {value!r}: must be a name"
    if not isinstance(source, StorageQueue) and source.count not in COUNTS:
        yield f".count = {source.count!r}: must be one of {', '.join(COUNTS)}"


def _azure_monitor(source: AzureMonitorMetric) -> Iterator[str]:
    if not isinstance(source.resource_id, str) or not RESOURCE_ID.fullmatch(source.resource_id):
        example = "/subscriptions/…/resourceGroups/…/providers/Microsoft.ServiceBus/namespaces/…"
        yield f".resource_id = {source.resource_id!r}: must be a resource ID such as {example}"
    if not isinstance(source.metric, str) or not source.metric:
        yield f".metric = {source.metric!r}: must be a name such as 'ActiveMessages'"
    if source.aggregation not in AGGREGATIONS:
        yield f".aggregation = {source.aggregation!r}: must be one of {', '.join(AGGREGATIONS)}"
    if not isinstance(source.time_grain, str) or not TIME_GRAIN.fullmatch(source.time_grain):
        yield f".time_grain = {source.time_grain!r}: must be a duration such as 'PT1M'"


def _guards(resource: Resource) -> Iterator[str]:
    guards = resource.guards
    named = {f"guards.missing_by_metric[{n!r}]": m for n, m in guards.missing_by_metric.items()}
    for key, missing in {"guards.missing": guards.missing, **named}.items():
        yield from _bounded(f"{key}.after_seconds", missing.after_seconds, 1, 86_400)
        if missing.then not in ("hold", "hold_in") and type(missing.then) is not int:
            yield f"{key}.then = {missing.then!r}: must be 'hold', 'hold_in' or a whole number"
    for name in (*guards.missing_by_metric, guards.breaker_metric):
        if name is not None and name not in resource.metrics:
            yield f"guards: metric {name!r} is not one of the resource's metrics"
    for key in ("stabilisation_out_seconds", "stabilisation_in_seconds"):
        yield from _bounded(f"guards.{key}", getattr(guards, key), 0, WINDOW_SECONDS_MAX)
    for position, limit in enumerate(guards.rate_limits):
        for problem in _rate_limit(limit, resource.history_seconds):
            yield f"guards.rate_limits[{position}].{problem}"


def _rate_limit(limit: RateLimit, history_seconds: float) -> Iterator[str]:
    if limit.direction not in ("out", "in"):
        yield f"direction = {limit.direction!r}: must be 'out' or 'in'"
    yield from _bounded("period_seconds", limit.period_seconds, 1, history_seconds)
    if (limit.instances is None) is (limit.percent is None):
        yield "instances, percent: exactly one of the two must be set"
    if limit.instances is not None and (type(limit.instances) is not int or limit.instances < 0):
        yield f"instances = {limit.instances!r}: must be a whole number of at least 0"
    if limit.percent is not None:
        yield from _bounded("percent", limit.percent, 0, 10_000)


def _policy(resource: Resource) -> Iterator[str]:
    policy = resource.policy
    if not callable(policy):
        yield f"policy = {policy!r}: must be callable with an Observation"
        return
    if isinstance(policy, type):
        yield f"policy = {policy.__name__}: is a class; write {policy.__name__}(…)"
        return
    if iscoroutinefunction(policy):
        yield f"policy = {policy!r}: must be a plain function, not an async one"
        return
    for name in described(policy).metric_names or ():
        if isinstance(resource.metrics, Mapping) and name not in resource.metrics:
            known = ", ".join(sorted(resource.metrics)) or "none"
            yield f"policy.metric = {name!r}: is not one of the resource's metrics ({known})"
    wrong = [f"policy.{problem}" for problem in described(policy).problems()]
    yield from wrong
    if not wrong and (asked := asks_for_unknown(resource)):
        yield f"policy: {asked}"


A_DAY = datetime(2026, 1, 1, 12, tzinfo=UTC)
VALUES = (0.0, 1.0, 1e6)


def asks_for_unknown(resource: Resource) -> str | None:
    """What the policy said when it asked for a metric that is not declared; None: it did not.

    It is asked with no samples, and with few and many items in each metric. What else it raises
    is left to the day: it may rightly refuse values that nobody ever sent.
    """
    for capacity in {resource.limits.minimum, resource.limits.maximum}:
        for value in (None, *VALUES):
            seen = observe(resource, _state(resource, value, capacity), capacity, A_DAY)
            if (asked := _asked(resource, seen)) is not None:
                return asked
    return None


def _asked(resource: Resource, seen: Observation) -> str | None:
    wish = ask(resource.policy, seen)
    for each in (wish, *wish.candidates):
        said = str(each.evidence.get("error", ""))
        if UnknownMetric.__name__ in said:
            return said
    return None


def _state(resource: Resource, value: float | None, capacity: int) -> ScalingState:
    times = [A_DAY - timedelta(seconds=15 * back) for back in reversed(range(20))]
    samples = Window(tuple(MetricValue(time, value) for time in times if value is not None))
    histories = dict.fromkeys(resource.metrics, samples)
    known = Window((MetricValue(A_DAY, capacity),))
    return ScalingState({**histories, CAPACITY_METRIC: known}, None)
