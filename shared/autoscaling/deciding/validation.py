"""Checks of the declarations in scaling_rules.py. All problems are reported together. Each names
the resource, the key, its value and the bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from inspect import iscoroutinefunction
from itertools import chain
from typing import Any

from shared.autoscaling.deciding.samples import observe
from shared.autoscaling.declaring import Limits
from shared.autoscaling.policies.checks import no_policy
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
from shared.autoscaling.sources import RESERVED, Source
from shared.autoscaling.state import ScalingState
from shared.values.bounds import Bounds, Check, flag_problem, problems_of
from shared.values.calls import answers, error_text
from shared.values.measurements import (
    CAPACITY_METRIC,
    HISTORY_SECONDS_MAX,
    MEASURE_MAX,
    MetricValue,
    Window,
)
from shared.values.text import METRIC_NAME, quoted

CHECK_SECONDS_MAX = 3.0
"""The policies of all resources together are checked within this time."""


def problems(resources: object, seconds: float = CHECK_SECONDS_MAX) -> list[str]:
    """All problems of the value that scaling_rules.resources() returned; empty if it is valid. A
    policy that does not answer in time is not among them (see ``failing_policies``), because it
    must not keep the other resources from being scaled."""
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


def sources(resources: object) -> Iterator[Source]:
    """The sources of all resources; what is no source is left out."""
    for resource in resources if isinstance(resources, list | tuple) else ():
        if isinstance(resource, Resource) and isinstance(resource.metrics, Mapping):
            yield from (each for each in resource.metrics.values() if isinstance(each, Source))


def needs_hub(resources: object) -> bool:
    """True if any resource has a source that only an event hub can feed."""
    return any(source.needs_hub for source in sources(resources))


def connections(resources: object) -> set[tuple[str, str]]:
    """The kind of service and the connection name of each valid source."""
    return {
        (source.service, source.connection)
        for source in sources(resources)
        if source.service and isinstance(source.connection, str)
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
    """A warning for each total that a policy reads as a value per instance. A total does not fall
    when instances are added, so such a policy adds more and more."""
    return [
        f"resource {resource.name!r}: the policy reads {name!r} as a value per instance, but its "
        f"source gives a total of all instances. Use ValuePerInstance({name!r}, …) instead of "
        "TargetTracking"
        for resource in resources
        for name in described(resource.policy).utilisation_names
        if (source := resource.source(name)).is_total or source.counts_backlog
    ]


def _declared_twice(resources: Sequence[Resource]) -> list[str]:
    """Names that several resources share, and with them their state, and targets that several
    resources would set against each other."""
    names = Counter(f"resource {resource.name!r}" for resource in resources)
    targets = Counter(f"target {resource.target}".casefold() for resource in resources)
    return [
        f"{what}: declared {n} times, must be declared once"
        for what, n in (names + targets).items()
        if n > 1
    ]


def _checked(resource: Resource) -> Iterator[str]:
    """The problems of one resource. Python does not enforce the declared types, so a check may
    raise an exception, which is a problem, too, unless an earlier one explains it."""
    yield from (found := problems_of(resource))
    for check in (_limits, _counted_metrics, _planning_step, _metrics, _guards, _policy):
        more = _found(check, resource, None if found else check.__name__[1:])
        yield from more
        found += more


def _found(check: Callable[[Any], Iterator[str]], value: object, place: str | None) -> list[str]:
    """The problems that a check finds. It may run code of the rule author, which may fail. That is
    not told without a place, or after problems that explain it."""
    found = list[str]()
    try:
        found.extend(check(value))
    except BaseException as error:
        failed = f"{place}: cannot be checked: {error_text(error)}"
        found += [] if found or place is None else [failed]
    return found


def _limits(resource: Resource) -> Iterator[str]:
    low, high = resource.limits.minimum, resource.limits.maximum
    if type(low) is type(high) is int and high < low:
        yield f"limits.maximum = {high}: must be at least limits.minimum = {low}"


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


def _undeclared(resource: Resource, place: str, name: str | None) -> Iterator[str]:
    if name is not None and name not in resource.metrics:
        declared = ", ".join(sorted(map(str, resource.metrics))) or "none"
        yield f"{place} = {name!r}: must be one of the resource's metrics ({declared})"


def _counted_metrics(resource: Resource) -> Iterator[str]:
    throughput = resource.throughput
    for key in ("completed_metric", "incoming_metric"):
        yield from _undeclared(resource, f"throughput.{key}", getattr(throughput, key))
    if throughput.completed_metric is not None and throughput.incoming_metric is not None:
        keys = "throughput.completed_metric, throughput.incoming_metric"
        yield f"{keys}: only one of the two may be set"


def _metrics(resource: Resource) -> Iterator[str]:
    if not isinstance(resource.metrics, Mapping) or not resource.metrics:
        yield f"metrics = {resource.metrics!r}: must be a dict of at least one source"
        return
    for name, source in resource.metrics.items():
        if name == CAPACITY_METRIC:
            yield f"metrics[{name!r}]: this name is reserved for the capacity of the target"
        elif not isinstance(name, str) or not METRIC_NAME.fullmatch(name):
            yield f"metrics[{name!r}]: the name must match {METRIC_NAME.pattern}"
        for problem in _found(_source, source, ""):
            yield f"metrics[{name!r}]{problem}"


def _source(source: object) -> Iterator[str]:
    if not isinstance(source, Source):
        yield f" = {quoted(source)}: must be a metric source such as ServiceBusQueue('orders')"
        return
    if type(source).read is Source.read and not source.pushed:
        yield ".read: must be defined as async def read(self, at)"
    for name in sorted(RESERVED & _own_names(type(source))):
        yield f".{name}: Source uses this name itself. Choose another one"
        return
    wrong = [f".{problem}" for problem in source.problems()]
    yield from wrong or _wrong_facts(source)


def _own_names(kind: type[Source]) -> set[str]:
    """The names that the user's own classes define."""
    own = [vars(each) for each in kind.__mro__ if not each.__module__.startswith("shared.")]
    return {name for each in own for name in (*each, *each.get("__annotations__", ()))}


FACTS: Mapping[str, Check] = {
    "counts_backlog": flag_problem,
    "is_total": flag_problem,
    "usual_lag_seconds": Bounds(0, HISTORY_SECONDS_MAX).problem,
    "highest": lambda value: "" if value is None else Bounds(0, MEASURE_MAX).problem(value),
    "roles": lambda value: "" if _are_names(value) else "must be a tuple of names of roles",
}
"""What a source says about itself, and how that is checked."""


def _are_names(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, str) for each in value)


def _wrong_facts(source: Source) -> Iterator[str]:
    for key, check in FACTS.items():
        if must := check(getattr(source, key)):
            yield f".{key} = {quoted(getattr(source, key))}: {must}"


def _guards(resource: Resource) -> Iterator[str]:
    guards = resource.guards
    named = {f"guards.missing_by_metric[{n!r}]": m for n, m in guards.missing_by_metric.items()}
    for key, missing in {"guards.missing": guards.missing, **named}.items():
        yield from _then(f"{key}.then", missing.then, resource.limits)
    for name in guards.missing_by_metric:
        yield from _undeclared(resource, "guards.missing_by_metric: metric", name)
    yield from _undeclared(resource, "guards.breaker_metric", guards.breaker_metric)
    if guards.step_back and resource.throughput.start_up_minutes is None:
        yield "guards.step_back = True: throughput.start_up_minutes must be set"
    for position, limit in enumerate(guards.rate_limits):
        place = f"guards.rate_limits[{position}]."
        if must := Bounds(1, resource.kept_history_seconds).problem(limit.period_seconds):
            yield f"{place}period_seconds = {quoted(limit.period_seconds)}: {must}"
        if (limit.instances is None) is (limit.percent is None):
            yield f"{place}instances, percent: exactly one of the two must be set"


def _then(key: str, then: object, limits: Limits) -> Iterator[str]:
    allowed = Bounds(limits.minimum, limits.maximum)
    if type(then) is int and then not in allowed:
        yield f"{key} = {then}: must be {allowed}"
    elif type(then) is not int and then not in ("hold", "hold_in"):
        yield f"{key} = {then!r}: must be 'hold', 'hold_in' or a whole number"


def _policy(resource: Resource) -> Iterator[str]:
    policy = resource.policy
    if wrong := no_policy("policy", policy):
        yield from wrong
        return
    if iscoroutinefunction(policy):
        yield f"policy = {policy!r}: must be a plain function, not an async one"
        return
    wrong_fields = [f"policy.{problem}" for problem in described(policy).problems()]
    yield from wrong_fields
    is_valid = isinstance(resource.metrics, Mapping)
    missing = [name for name in named_metrics(policy) if is_valid and name not in resource.metrics]
    for name in missing:
        yield from _undeclared(resource, "policy.metric", name)
    if wrong_fields or not is_valid:
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
    """The policy's errors about metrics that it reads and that the resource does not declare. It is
    called without samples, and with low and high values. Other errors are ignored, because a policy
    may rightly reject values that no source ever sends."""
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
