"""Checks of the declarations in scaling_rules.py.

All problems are reported together. Each names the resource, the key, its value and the bound.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from inspect import iscoroutinefunction
from itertools import chain
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
    QueueMetric,
    RateLimit,
    ServiceBusQueue,
    ServiceBusSubscription,
    StorageQueue,
    Throughput,
    is_pushed,
)
from shared.autoscaling.lag import GRAIN
from shared.autoscaling.measurements import (
    CAPACITY_METRIC,
    HISTORY_SECONDS_MAX,
    MetricValue,
    Window,
)
from shared.autoscaling.policies.checks import text
from shared.autoscaling.policies.schedule import Profile
from shared.autoscaling.policy import (
    Observation,
    Recommendation,
    Resource,
    UnknownMetric,
    ask,
    described,
    members,
    named_metrics,
    unknown_metric,
)
from shared.autoscaling.state import ScalingState
from shared.values.calls import answers, error_text
from shared.values.text import METRIC_NAME, NAME, UUID, quoted

CHECK_SECONDS_MAX = 3.0
"""The policies of all resources together are checked within this time."""

PLAN = "AppServicePlan(subscription_id, resource_group, name)"

PLAN_CAPACITY_MAX = 100
"""The most instances that any tier of App Service Plans has (Isolated v2)."""

CONNECTED = ServiceBusSubscription | ServiceBusQueue | StorageQueue
COUNTS = ("active", "dead_letter", "scheduled")
AGGREGATIONS = ("average", "total", "minimum", "maximum", "count")
RESOURCE_ID = re.compile(
    rf"/subscriptions/{UUID.pattern}/resourceGroups/[^/]+/providers/[^/]+(/[^/]+/[^/]+)+/?", re.I
)


def problems(resources: object, seconds: float = CHECK_SECONDS_MAX) -> list[str]:
    """All problems of the value that scaling_rules.resources() returned; empty if it is valid.

    A policy that does not answer in time is not among them, because it must not keep the other
    resources from being scaled. See ``failing_policies``.
    """
    if not isinstance(resources, list | tuple):
        kind = type(resources).__name__
        return [f"scaling_rules.resources() returned a {kind}: must return a list of Resource"]
    found = [] if resources else ["scaling_rules.resources() declares no resource: declare one"]
    found_in = [list[str]() for _ in resources]
    numbered = zip(resources, range(len(resources)), found_in, strict=True)
    for answer in answers([partial(_find, *each) for each in numbered], seconds):
        if answer.done():
            answer.result()  # raises what the checks did not expect
    found += chain.from_iterable(found_in)
    return found + _declared_twice([r for r in resources if isinstance(r, Resource)])


def _find(resource: object, position: int, found: list[str]) -> None:
    """Add each problem to the list as soon as it is found, because a later check may not end."""
    if isinstance(resource, Resource):
        found.extend(f"resource {resource.name!r}: {problem}" for problem in _checked(resource))
    else:
        found.append(f"resources[{position}] = {quoted(resource)}: must be a Resource")


def needs_hub(resources: object) -> bool:
    """True if any resource has a source that only an event hub can feed."""
    declared = resources if isinstance(resources, list | tuple) else ()
    return any(
        (is_pushed(source) and not isinstance(source, QueueMetric))
        or isinstance(source, IngestionBreaker)
        for resource in declared
        if isinstance(resource, Resource) and isinstance(resource.metrics, Mapping)
        for source in resource.metrics.values()
    )


def connections(resources: object) -> set[tuple[type, str]]:
    """The kind and the connection name of each declared source; invalid ones are left out."""
    declared = resources if isinstance(resources, list | tuple) else ()
    return {
        (type(source), source.connection)
        for resource in declared
        if isinstance(resource, Resource) and isinstance(resource.metrics, Mapping)
        for source in resource.metrics.values()
        if isinstance(source, CONNECTED) and isinstance(source.connection, str)
    }


def failing_policies(
    resources: Sequence[Resource], seconds: float = CHECK_SECONDS_MAX
) -> list[str]:
    """A warning for each policy that fails, or does not answer in time, although every metric has
    samples."""
    warnings = []
    asked = answers([partial(_usual_answer, each) for each in resources], seconds)
    for resource, answer in zip(resources, asked, strict=True):
        if not answer.done():
            error = f"the policy has not answered within {seconds:g} s"
            remedy = "A policy must only compute: it must not wait, and not read anything"
        elif answer.result().failed:
            error = str(answer.result().evidence["error"])
            remedy = "A policy must return Recommendation(capacity, reason)"
        else:
            continue
        effect = "Until this is fixed, the capacity does not change"
        warnings.append(f"resource {resource.name!r}: {error}. {effect}. {remedy}")
    return warnings


def _usual_answer(resource: Resource) -> Recommendation:
    capacity = resource.limits.minimum
    seen = observe(resource, _state(resource, 1.0, capacity), capacity, SOME_NOON)
    return ask(resource.policy, seen)


def misread_totals(resources: Iterable[Resource]) -> list[str]:
    """A warning for each total that a policy reads as a value per instance.

    The total of a queue does not fall when instances are added, so such a policy adds more and
    more.
    """
    return [
        f"resource {resource.name!r}: the policy reads {name!r} as a value per instance, but its "
        f"source gives a total of all instances. Use ValuePerInstance({name!r}, …) instead of "
        "TargetTracking"
        for resource in resources
        for name in described(resource.policy).utilisation_names
        if _is_total(resource.metrics.get(name))
    ]


def _is_total(source: MetricSource | None) -> bool:
    """True if the source is known to give one value for all instances together."""
    if isinstance(source, AzureMonitorMetric):
        return source.aggregation in ("total", "count")
    return source is not None and not isinstance(source, HubMetric | QueueMetric)


def _declared_twice(resources: Sequence[Resource]) -> list[str]:
    """Names and targets that several resources share.

    Resources with the same name would share their state. Resources with the same target would undo
    each other's changes.
    """
    names = Counter(f"resource {resource.name!r}" for resource in resources)
    targets = Counter(f"target {resource.target}".casefold() for resource in resources)
    return [
        f"{what}: declared {n} times, must be declared once"
        for what, n in (names + targets).items()
        if n > 1
    ]


def _checked(resource: Resource) -> Iterator[str]:
    """The problems of one resource.

    Python does not enforce the declared types, so a check may raise an exception. The exception is
    then reported as a problem.
    """
    if wrong_classes := list(_wrong_classes(resource)):
        yield from wrong_classes
        return
    for check in (_name, _target, _limits, _modes, _durations, _metrics, _guards, _policy):
        found = list[str]()
        try:
            found.extend(check(resource))
        except BaseException as error:
            found.append(f"{check.__name__[1:]}: cannot be checked: {error_text(error)}")
        yield from found


def _wrong_classes(resource: Resource) -> Iterator[str]:
    """A problem for each field whose value has the wrong class. Such a value is most often
    a tuple."""
    kinds = {"limits": Limits, "cooldown": Cooldown, "guards": Guards, "goal": Goal}
    for field, kind in {**kinds, "throughput": Throughput}.items():
        value = getattr(resource, field)
        if not isinstance(value, kind):
            yield f"{field} = {quoted(value)}: must be {kind.__name__}(…)"


def _name(resource: Resource) -> Iterator[str]:
    if not isinstance(resource.name, str) or not NAME.fullmatch(resource.name):
        yield f"name = {resource.name!r}: must match {NAME.pattern}"


def _target(resource: Resource) -> Iterator[str]:
    yield from _plan("target", resource.target)


def _plan(place: str, plan: object) -> Iterator[str]:
    if not isinstance(plan, AppServicePlan):
        yield f"{place} = {plan!r}: must be an {PLAN}"
        return
    if not isinstance(plan.subscription_id, str) or not UUID.fullmatch(plan.subscription_id):
        yield f"{place}.subscription_id = {plan.subscription_id!r}: must be a UUID, not a name"
    for key in ("resource_group", "name"):
        value = getattr(plan, key)
        yield from text(f"{place}.{key}", value)
        if "/" in str(value):
            yield f"{place}.{key} = {value!r}: must be a name without slashes"


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
    yield from _bounded("window_seconds", resource.window_seconds, 1, HISTORY_SECONDS_MAX)
    yield from _bounded("history_seconds", resource.history_seconds, 0, HISTORY_SECONDS_MAX)
    yield from _bounded("goal.age_limit_minutes", resource.goal.age_limit_minutes, 0.01, 1440)
    yield from _bounded("goal.switch_cost", resource.goal.switch_cost, 0, 1e6)
    yield from _bounded("goal.late_penalty", resource.goal.late_penalty, 0, 1e6)
    yield from _counted_metrics(resource)
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
    """A problem if the age limit is shorter than the planning step, because a policy that plans in
    steps cannot meet such a limit."""
    minutes = resource.goal.age_limit_minutes
    for member in members(resource.policy):
        seconds: Any = described(member).step_seconds
        if {type(seconds), type(minutes)} <= {int, float} and minutes * 60 < seconds:
            yield (
                f"goal.age_limit_minutes = {minutes}: is shorter than the planning step of "
                f"{type(member).__name__} ({seconds:g} s). Raise the limit, or lower step_seconds "
                f"(setting PlanningStepSeconds) to at most {minutes * 60:g}"
            )


def _counted_metrics(resource: Resource) -> Iterator[str]:
    declared = ", ".join(sorted(map(str, resource.metrics))) or "none"
    throughput = resource.throughput
    for key in ("completed_metric", "incoming_metric"):
        name = getattr(throughput, key)
        if name is not None and name not in resource.metrics:
            yield f"throughput.{key} = {name!r}: must be one of the resource's metrics ({declared})"
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
        yield f"metrics = {resource.metrics!r}: must be a dict of at least one source"
        return
    for name, source in resource.metrics.items():
        if name == CAPACITY_METRIC:
            yield f"metrics[{name!r}]: this name is reserved for the capacity of the target"
        elif not isinstance(name, str) or not METRIC_NAME.fullmatch(name):
            yield f"metrics[{name!r}]: the name must match {METRIC_NAME.pattern}"
        for problem in _source(source):
            yield f"metrics[{name!r}]{problem}"


def _source(source: MetricSource) -> Iterator[str]:
    if not isinstance(source, MetricSource):
        yield f" = {source!r}: must be a metric source such as ServiceBusQueue('orders')"
        return
    if isinstance(source, PlanCapacity):
        yield from _plan(".plan", source.plan)
    if isinstance(source, AzureMonitorMetric):
        yield from _azure_monitor(source)
    for key in ("topic", "subscription", "queue", "connection"):
        yield from text(f".{key}", getattr(source, key, "none"))
    if isinstance(source, ServiceBusQueue | ServiceBusSubscription) and source.count not in COUNTS:
        yield f".count = {source.count!r}: must be one of {', '.join(COUNTS)}"


def _azure_monitor(source: AzureMonitorMetric) -> Iterator[str]:
    if text("", source.resource_id) or not RESOURCE_ID.fullmatch(source.resource_id):
        example = "/subscriptions/…/resourceGroups/…/providers/Microsoft.ServiceBus/namespaces/…"
        yield f".resource_id = {source.resource_id!r}: must be a resource ID such as {example}"
    yield from text(".metric", source.metric)
    if source.aggregation not in AGGREGATIONS:
        yield f".aggregation = {source.aggregation!r}: must be one of {', '.join(AGGREGATIONS)}"
    if not isinstance(source.time_grain, str) or not GRAIN.fullmatch(source.time_grain):
        yield f".time_grain = {source.time_grain!r}: must be a duration such as 'PT1M'"
    if not isinstance(source.filter, str) or (source.filter and source.streamed):
        yield f".filter = {source.filter!r}: must be text, and empty for a streamed metric"
    if not isinstance(source.namespace, str) or (source.namespace and source.streamed):
        yield f".namespace = {source.namespace!r}: must be text, and empty for a streamed metric"
    if not isinstance(source.streamed, bool):
        yield f".streamed = {source.streamed!r}: must be True or False"


def _guards(resource: Resource) -> Iterator[str]:
    guards = resource.guards
    named = {f"guards.missing_by_metric[{n!r}]": m for n, m in guards.missing_by_metric.items()}
    for key, missing in {"guards.missing": guards.missing, **named}.items():
        yield from _bounded(f"{key}.after_seconds", missing.after_seconds, 1, 86_400)
        yield from _then(f"{key}.then", missing.then, resource.limits)
    for name in (*guards.missing_by_metric, guards.breaker_metric):
        if name is not None and name not in resource.metrics:
            declared = ", ".join(sorted(map(str, resource.metrics)))
            yield f"guards: metric {name!r} must be one of the resource's metrics ({declared})"
    for key in ("stabilisation_out_seconds", "stabilisation_in_seconds"):
        yield from _bounded(f"guards.{key}", getattr(guards, key), 0, HISTORY_SECONDS_MAX)
    seconds = guards.nothing_finished_seconds
    yield from _bounded("guards.nothing_finished_seconds", seconds, 0, 86_400)
    for position, limit in enumerate(guards.rate_limits):
        for problem in _rate_limit(limit, resource.kept_history_seconds):
            yield f"guards.rate_limits[{position}].{problem}"


def _then(key: str, then: object, limits: Limits) -> Iterator[str]:
    if type(then) is int:
        yield from _bounded(key, then, limits.minimum, limits.maximum)
    elif then not in ("hold", "hold_in"):
        yield f"{key} = {then!r}: must be 'hold', 'hold_in' or a whole number"


def _rate_limit(limit: RateLimit, kept_seconds: float) -> Iterator[str]:
    if limit.direction not in ("out", "in"):
        yield f"direction = {limit.direction!r}: must be 'out' or 'in'"
    yield from _bounded("period_seconds", limit.period_seconds, 1, kept_seconds)
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
    is_valid = isinstance(resource.metrics, Mapping)
    missing = [name for name in named_metrics(policy) if is_valid and name not in resource.metrics]
    for name in missing:
        declared = ", ".join(sorted(resource.metrics)) or "none"
        yield f"policy.metric = {name!r}: must be one of the resource's metrics ({declared})"
    wrong_fields = [f"policy.{problem}" for problem in described(policy).problems()]
    yield from wrong_fields
    if wrong_fields:
        return
    yield from _policy_bounds(resource)
    for error in asks_for_unknown(resource):
        if not any(unknown_metric(name) in error for name in missing):  # reported above
            yield f"policy: {error.removeprefix('the policy ')}"


def _policy_bounds(resource: Resource) -> Iterator[str]:
    """Problems of a policy that the resource cannot satisfy."""
    needed = described(resource.policy).history_seconds
    if not 0 <= needed <= HISTORY_SECONDS_MAX:
        yield (
            f"policy: looks back over {needed:g} s, but samples are kept for at most "
            f"{HISTORY_SECONDS_MAX} s. Shorten its windows or steps"
        )
    low, high = resource.limits.minimum, resource.limits.maximum
    for profile in members(resource.policy):
        if not isinstance(profile, Profile):
            continue
        place = f"policy: profile {profile.name!r}"
        if profile.minimum > high:
            yield f"{place}: minimum = {profile.minimum}: must be at most limits.maximum = {high}"
        if profile.maximum is not None and profile.maximum < low:
            yield f"{place}: maximum = {profile.maximum}: must be at least limits.minimum = {low}"


SOME_NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
VALUES = (0.0, 1.0, 1e6)


def asks_for_unknown(resource: Resource) -> list[str]:
    """The policy's errors about metrics that it reads and that the resource does not declare.

    The check calls the policy without samples, and with low and high values of each metric. It
    ignores other errors, because a policy may rightly reject values that no source ever sends.
    """
    found: dict[str, None] = {}  # keeps the order
    for capacity in {resource.limits.minimum, resource.limits.maximum}:
        for value in (None, *VALUES):
            seen = observe(resource, _state(resource, value, capacity), capacity, SOME_NOON)
            found |= dict.fromkeys(_unknown_metrics(resource, seen))
    return list(found)


def _unknown_metrics(resource: Resource, seen: Observation) -> Iterator[str]:
    recommendation = ask(resource.policy, seen)
    for each in (recommendation, *recommendation.candidates):
        error = str(each.evidence.get("error", ""))
        if UnknownMetric.__name__ in error:
            yield error


def _state(resource: Resource, value: float | None, capacity: int) -> ScalingState:
    times = [SOME_NOON - timedelta(seconds=15 * back) for back in reversed(range(20))]
    samples = Window(tuple(MetricValue(time, value) for time in times if value is not None))
    histories = dict.fromkeys(resource.metrics, samples)
    capacities = Window((MetricValue(SOME_NOON, capacity),))
    return ScalingState({**histories, CAPACITY_METRIC: capacities}, None)
