"""Checks of what scaling_rules.py declares: every problem at once, with key, value and bound."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from shared.autoscaling.model import (
    CAPACITY_METRIC,
    AppServicePlan,
    ManualChange,
    MetricSource,
    Mode,
    PlanCapacity,
    Resource,
    StorageQueue,
)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,99}")
"""Names become table keys, which bear neither slashes nor question marks nor number signs."""

PLAN_CAPACITY_MAX = 100
"""No App Service Plan tier has more instances (Isolated v2: 100)."""

COUNTS = ("active", "dead_letter", "scheduled")
UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def problems(resources: Sequence[object]) -> list[str]:
    """What is wrong with the declarations; empty where nothing is."""
    found = [] if resources else ["scaling_rules.resources(): declares no resource"]
    names = Counter(r.name for r in resources if isinstance(r, Resource))
    found += [f"resource {n!r}: declared {count} times" for n, count in names.items() if count > 1]
    for position, resource in enumerate(resources):
        if not isinstance(resource, Resource):
            found.append(f"resources[{position}] = {resource!r}: must be a Resource")
            continue
        found += [f"resource {resource.name!r}: {problem}" for problem in _checked(resource)]
    return found


def connections(resources: Sequence[object]) -> set[str]:
    """The names of all connections that the declared sources need."""
    return {
        source.connection
        for resource in resources
        if isinstance(resource, Resource)
        for source in resource.metrics.values()
        if not isinstance(source, PlanCapacity) and hasattr(source, "connection")
    }


def _checked(resource: Resource) -> list[str]:
    try:
        return list(_resource(resource))
    except (TypeError, AttributeError) as error:  # rules are Python: nothing enforces their types
        return [f"a value has the wrong type: {error}"]


def _resource(resource: Resource) -> Iterator[str]:
    if not NAME.fullmatch(resource.name):
        yield f"name = {resource.name!r}: must match {NAME.pattern}"
    yield from _target(resource)
    yield from _limits(resource)
    yield from _durations(resource)
    yield from _metrics(resource)
    yield from _policy(resource)


def _target(resource: Resource) -> Iterator[str]:
    plan = resource.target
    if not isinstance(plan, AppServicePlan):
        yield f"target = {plan!r}: must be an AppServicePlan"
        return
    if not UUID.fullmatch(plan.subscription_id):
        yield f"target.subscription_id = {plan.subscription_id!r}: must be a UUID"
    for key in ("resource_group", "name"):
        value = getattr(plan, key)
        if not value or "/" in value:
            yield f"target.{key} = {value!r}: must be a name without slashes"


def _limits(resource: Resource) -> Iterator[str]:
    low, high = resource.limits.minimum, resource.limits.maximum
    if low < 1:
        yield f"limits.minimum = {low}: must be at least 1"
    if high < low:
        yield f"limits.maximum = {high}: must be at least limits.minimum = {low}"
    if high > PLAN_CAPACITY_MAX:
        yield f"limits.maximum = {high}: must be at most {PLAN_CAPACITY_MAX}"
    for key, kind in (("mode", Mode), ("on_manual_change", ManualChange)):
        if not isinstance(getattr(resource, key), kind):
            yield f"{key} = {getattr(resource, key)!r}: must be a {kind.__name__}"


def _durations(resource: Resource) -> Iterator[str]:
    for key in ("scale_out_seconds", "scale_in_seconds"):
        if not 0 <= getattr(resource.cooldown, key) <= 86_400:
            yield f"cooldown.{key} = {getattr(resource.cooldown, key)}: must be 0 to 86400"
    if not 1 <= resource.window_seconds <= 86_400:
        yield f"window_seconds = {resource.window_seconds}: must be 1 to 86400"


def _metrics(resource: Resource) -> Iterator[str]:
    if not resource.metrics:
        yield "metrics: at least one source is needed"
    for name, source in resource.metrics.items():
        if name == CAPACITY_METRIC:
            yield f"metrics[{name!r}]: this name is reserved for the target's own capacity"
        elif not NAME.fullmatch(name):
            yield f"metrics[{name!r}]: the name must match {NAME.pattern}"
        for problem in _source(source):
            yield f"metrics[{name!r}]{problem}"


def _source(source: MetricSource) -> Iterator[str]:
    if not isinstance(source, MetricSource):
        yield f" = {source!r}: must be a metric source such as ServiceBusQueue"
        return
    if isinstance(source, PlanCapacity):
        return
    for key in ("topic", "subscription", "queue", "connection"):
        if hasattr(source, key) and not getattr(source, key):
            yield f".{key} = '': must not be empty"
    if not isinstance(source, StorageQueue) and source.count not in COUNTS:
        yield f".count = {source.count!r}: must be one of {', '.join(COUNTS)}"


def _policy(resource: Resource) -> Iterator[str]:
    policy = resource.policy
    if not callable(policy):
        yield f"policy = {policy!r}: must be callable with an Observation"
        return
    for name in getattr(policy, "metric_names", ()):
        if name not in resource.metrics:
            known = ", ".join(sorted(resource.metrics)) or "none"
            yield f"policy.metric = {name!r}: is not one of the resource's metrics ({known})"
    for problem in getattr(policy, "problems", list)():
        yield f"policy.{problem}"
