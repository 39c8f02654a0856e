"""Converts an autoscale setting of Azure Monitor into a resource with rules and profiles. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, time
from itertools import product
from typing import Any, TypeVar
from zoneinfo import available_timezones

from tzlocal.windows_tz import win_tz

from backtest.autoscale_document import DEPLOY, find
from backtest.autoscale_week import Begins, week
from backtest.errors import BacktestError
from shared.autoscaling import MetricRule, MetricRules
from shared.autoscaling.azure_monitor.source import AzureMonitorMetric
from shared.autoscaling.declaring import AppServicePlan, Cooldown, Limits
from shared.autoscaling.policies.schedule import WEEKDAYS
from shared.autoscaling.sources import (
    PlanCapacity,
    ServiceBusQueue,
    ServiceBusSubscription,
    Source,
    StorageQueue,
)
from shared.values import durations
from shared.values.text import number, whole

OPERATORS = {
    "greaterthan": ">",
    "greaterthanorequal": ">=",
    "lessthan": "<",
    "lessthanorequal": "<=",
    "equals": "==",
    "notequals": "!=",
}
AGGREGATIONS = {name: name for name in ("average", "minimum", "maximum", "total", "count", "last")}
SUMS = ("total", "count")
"""Aggregations whose value grows with the number of samples."""
STATISTICS = {"average": "average", "min": "minimum", "max": "maximum", "sum": "total",
              "count": "count"}  # fmt: skip
UNITS = {"changecount": "instances", "percentchangecount": "percent", "exactcount": "exactly"}
DIRECTIONS = {"increase": "out", "decrease": "in"}
PLAN = re.compile(
    r"/subscriptions/([\w-]+)/resourceGroups/([\w.()-]+)"
    r"/providers/Microsoft\.Web/serverfarms/([\w-]+)/?",
    re.IGNORECASE,
)
BUS = re.compile(
    r"(?P<id>.*/Microsoft\.ServiceBus/namespaces/(?P<namespace>[^/]+))"
    r"(?:/(?P<kind>queues|topics)/(?P<entity>[^/]+)(?:/subscriptions/(?P<subscription>[^/]+))?)?/?",
    re.IGNORECASE,
)
QUEUE = re.compile(
    r".*/storageAccounts/([^/]+)/(?:services/queue|queueServices/default)/queues/([^/]+)/?",
    re.IGNORECASE,
)
COUNTS = {"active": "ActiveMessages", "dead_letter": "DeadletteredMessages",
          "scheduled": "ScheduledMessages"}  # fmt: skip
"""The counts of a queue that the app reads directly, and the metric of the namespace that counts
the same. Others, such as IncomingMessages, count what happened in a minute."""
COUNTED = {
    **{metric.lower(): count for count, metric in COUNTS.items()}, "activemessagecount": "active",
    "deadlettermessagecount": "dead_letter", "scheduledmessagecount": "scheduled",
}  # fmt: skip
ALL_MESSAGES = ("messages", "messagecount")
"""Metrics that count dead letters and scheduled messages, too."""
READ_KEYS = {
    "profile": "name capacity rules recurrence fixeddate",
    "rule": "metrictrigger scaleaction",
    "trigger": "metricname metricnamespace metricresourceuri metricresourcelocation timegrain "
    "statistic timewindow timeaggregation operator threshold dimensions divideperinstance",
    "action": "direction type value cooldown",
}
"""The keys of each part of a setting that are read, or that mean nothing for the app."""
PER_INSTANCE = "As in Azure, the length of a queue is divided by the number of instances"
DAYS: Mapping[str, str] = dict(
    zip(
        ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"),
        WEEKDAYS,
        strict=True,
    )
)
ZONES = {
    **{name.lower(): zone for name, zone in win_tz.items()},
    **{name.lower(): name for name in available_timezones()},
}
"""The IANA name of each time zone. Azure uses the names of Windows."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class When:
    """When a profile applies: at given times on given days of the week, or in one interval of local
    time.
    """

    weekdays: tuple[str, ...] = ()
    start: str = ""
    end: str = ""
    time_zone: str = "UTC"
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class ConvertedProfile:
    name: str
    limits: Limits
    policy: MetricRules | None
    when: When | None = None
    fallback: int | None = None
    """The number of instances while metrics are missing, if it is above the minimum."""
    ends: str = ""
    """The name of the recurring profile that this copy of the default profile ends."""

    def is_like(self, other: ConvertedProfile) -> bool:
        """True if both profiles scale alike, whenever they apply."""
        return (self.limits, self.policy, self.fallback) == (
            other.limits, other.policy, other.fallback
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Converted:
    """What the rules file is generated from. ``notes`` describe differences from the original, and
    ``left_out`` names what was not converted."""

    name: str
    target: AppServicePlan
    metrics: Mapping[str, Source]
    default: ConvertedProfile
    profiles: tuple[ConvertedProfile, ...]
    cooldown: Cooldown
    notes: tuple[str, ...]
    left_out: tuple[str, ...]


@dataclass(slots=True)
class _Collected:
    """The sources, cooldowns and notes that the conversion of profiles and rules collects."""

    metrics: dict[str, Source] = field(default_factory=dict)
    cooldowns: dict[str, set[float]] = field(default_factory=lambda: {"out": set(), "in": set()})
    owners: dict[str, list[str]] = field(default_factory=dict)
    """The namespaces or accounts that need a connection, by the name of the first connection."""
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def connection(self, first: str, owner: str) -> str:
        """The name of the connection of this namespace or account."""
        owners = self.owners.setdefault(first, [])
        if owner.lower() not in owners:
            owners.append(owner.lower())
        number = owners.index(owner.lower()) + 1
        return first if number == 1 else f"{first}{number}"

    def check_keys(self, part: str, given: Mapping[str, Any], place: str) -> None:
        """Note the keys of this part of the setting that nothing reads."""
        for key in given.keys() - set(READ_KEYS[part].split()):
            if given[key] not in (None, "", [], {}):
                self.left_out.append(f"{place}.{key}")


def convert(document: Any, name: str | None = None) -> Converted:
    """Convert a JSON document: its only setting, or the one with that name.

    Raises a BacktestError that names the key with the problem.
    """
    found = find(document, name)
    setting, target = found.properties, _target(found.properties)
    collected = _Collected(notes=list(found.notes), left_out=list(found.left_out))
    profiles = [
        profile
        for n, given in enumerate(_listed(setting))
        for profile in _profiles(given, f"profiles[{n}]", collected)
    ]
    regular = _regular(profiles)
    fixed = [p for p in profiles if p.when and p.when.fixed]
    timed = [*fixed, *_recurring(profiles, regular, collected)]
    if not collected.metrics:
        collected.metrics["plan-capacity"] = PlanCapacity(target)
        collected.notes.append("no rule reads a metric, so only the limits of the profiles apply")
    _add_left_out(setting, collected)
    if any(profile.fallback for profile in (regular, *timed)):
        collected.notes.append(
            "capacity.default of the default profile applies to all profiles (see Guards.missing)"
        )
    return Converted(
        name=target.name,
        target=target,
        metrics=collected.metrics,
        default=regular,
        profiles=tuple(timed),
        cooldown=_cooldown(collected),
        notes=tuple(dict.fromkeys(collected.notes)),
        left_out=tuple(dict.fromkeys(collected.left_out)),
    )


def _regular(profiles: Sequence[ConvertedProfile]) -> ConvertedProfile:
    """The default profile.

    If there are recurring profiles, Azure need not store the default profile itself. Instead, it
    stores a copy of the default profile for the end of each recurring one. Without such a copy, a
    recurring profile applies at all times, so any of them can stand for the default profile.
    """
    plain = [p for p in profiles if p.when is None]
    if len(plain) > 1:
        names = ", ".join(p.name for p in plain)
        raise BacktestError(f"profiles: {names} are default profiles, but there can be only one")
    recurring = [p for p in profiles if p.when and not p.when.fixed]
    copies = [p for p in recurring if p.ends]
    for profile in (*plain, *copies, *recurring):
        return profile if profile.when is None else replace(profile, name="default", when=None)
    raise BacktestError(
        "profiles: there is no default profile, that is, one without recurrence or fixedDate"
    )


def _target(setting: Mapping[str, Any]) -> AppServicePlan:
    uri = _text({"targetresourceuri": None, **setting}, "targetResourceUri", "the setting")
    plan = PLAN.fullmatch(uri)
    if plan is None:
        raise BacktestError(
            f"targetResourceUri = {uri!r} is not an App Service Plan. This app scales nothing else"
        )
    return AppServicePlan(*plan.groups())


def _listed(setting: Mapping[str, Any]) -> list[Any]:
    profiles = setting["profiles"]
    if not isinstance(profiles, list) or not profiles:
        raise BacktestError("profiles must be a list with at least one profile")
    return profiles


def _profiles(given: Any, place: str, collected: _Collected) -> Iterator[ConvertedProfile]:
    """Yield the profile, once for each time of day at which it begins."""
    try:
        collected.check_keys("profile", _object(given, place), place)
        limits, fallback = _capacity(given["capacity"], f"{place}.capacity", collected)
        rules = tuple(
            _rule(rule, f"{place}.rules[{n}]", collected)
            for n, rule in enumerate(given.get("rules") or [])
        )
        policy = MetricRules(rules) if rules else None
        name, ends = _names_of(_text(given, "name", place))
        whens = list(_whens(given, place, collected))
    except KeyError as error:
        raise BacktestError(f"{place}: the key {error} is missing") from error
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise BacktestError(f"{place}: {type(error).__name__}: {error}") from error
    for when in whens:
        yield ConvertedProfile(name, limits, policy, when, fallback, ends if when else "")


def _object(given: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(given, dict):
        raise BacktestError(f"{place} = {given!r}: must be a JSON object")
    return given


def _text(given: Mapping[str, Any], key: str, place: str) -> str:
    if not given[key.lower()]:
        raise BacktestError(f"{place}.{key} is empty. {DEPLOY}")
    return str(given[key.lower()])


def _capacity(
    given: Mapping[str, Any], place: str, collected: _Collected
) -> tuple[Limits, int | None]:
    """The limits, and the number of instances while metrics are missing if it is above the
    minimum."""
    given = _object(given, place)
    least, most = (_parsed(whole, given[key], f"{place}.{key}") for key in ("minimum", "maximum"))
    if most < 1:
        raise BacktestError(f"{place}.maximum = {most}: a plan has at least one instance")
    if least < 1:
        collected.notes.append(
            f"{place}.minimum = {least} becomes 1, because a plan has at least one instance"
        )
    limits = Limits(max(least, 1), most)
    default = _parsed(whole, given.get("default") or 0, f"{place}.default")
    return limits, min(default, most) if default > limits.minimum else None


def _rule(given: Mapping[str, Any], place: str, collected: _Collected) -> MetricRule:
    trigger, action = (
        _object(_object(given, place)[key.lower()], f"{place}.{key}")
        for key in ("metricTrigger", "scaleAction")
    )
    for part, keys in (("rule", given), ("trigger", trigger), ("action", action)):
        collected.check_keys(part, keys, place)
    unit = _one_of(UNITS, action["type"], f"{place}.scaleAction.type")
    comparison = _one_of(OPERATORS, trigger["operator"], f"{place}.metricTrigger.operator")
    given_aggregation = trigger.get("timeaggregation") or "Average"
    key = f"{place}.metricTrigger.timeAggregation"
    aggregation = _one_of(AGGREGATIONS, given_aggregation, key)
    direction = _direction(action, comparison, f"{place}.scaleAction.direction")
    collected.cooldowns[direction].add(_seconds(action.get("cooldown") or "PT5M", place))
    threshold = _parsed(number, trigger["threshold"], f"{place}.metricTrigger.threshold")
    if not math.isfinite(threshold):
        raise BacktestError(f"{place}: threshold = {threshold} is not a finite number")
    value = action.get("value")
    step = 1 if value is None else _parsed(whole, value, f"{place}.scaleAction.value")
    if step < 1:
        raise BacktestError(
            f"{place}.scaleAction.value = {step} never changes the capacity: set it to 1 or more, "
            "or delete the rule"
        )
    metric, per_instance = _metric(trigger, place, collected)
    if aggregation in SUMS and collected.metrics[metric].series is None:
        collected.notes.append(
            f"{place}: {aggregation} of {metric} is read every 15 s instead of once a minute, so "
            "for the same load the value is about four times as high. Adjust the threshold"
        )
    return MetricRule(
        metric=metric,
        comparison=comparison,
        threshold=threshold,
        direction=direction,  # type: ignore[arg-type]
        by=step,
        unit=unit,  # type: ignore[arg-type]
        aggregation=aggregation,
        window_seconds=_seconds(trigger.get("timewindow") or "PT10M", place),
        per_instance=per_instance,
    )


def _parsed(parse: Callable[[str], T], value: Any, place: str) -> T:
    try:
        return parse(str(value))
    except ValueError as error:
        raise BacktestError(f"{place}: {error}") from None


def _one_of(known: Mapping[str, T], value: Any, place: str) -> T:
    """The value for this key, in any case."""
    found = known.get(str(value).lower())
    if found is None:
        raise BacktestError(f"{place} = {value!r} is not supported: use one of {', '.join(known)}")
    return found


def _direction(action: Mapping[str, Any], comparison: str, place: str) -> str:
    """The direction of a rule. ``az monitor autoscale rule create --scale to 5`` writes the
    direction "None"; then the comparison of the trigger determines the direction."""
    if str(action["direction"]).lower() == "none" and action["type"].lower() == "exactcount":
        return "out" if comparison.startswith(">") else "in"
    return _one_of(DIRECTIONS, action["direction"], place)


def _metric(trigger: Mapping[str, Any], place: str, collected: _Collected) -> tuple[str, bool]:
    """The name of the metric in the rules, and whether its value is divided by the capacity.

    The source of the metric is added to ``collected``.
    """
    source, per_instance = _source(trigger, place, collected)
    for name, existing in collected.metrics.items():
        if existing == source:
            return name, per_instance
    last = str(trigger["metricresourceuri"]).rstrip("/").split("/")[-1]
    base = re.sub(r"[^A-Za-z0-9._~-]+", "-", f"{last}-{trigger['metricname']}").strip("-").lower()
    name, number = base, 1
    while name in collected.metrics:
        number += 1
        name = f"{base}-{number}"
    collected.metrics[name] = source
    return name, per_instance


def _source(trigger: Mapping[str, Any], place: str, collected: _Collected) -> tuple[Source, bool]:
    uri, metric = (_text(trigger, key, place) for key in ("metricResourceUri", "metricName"))
    divides = str(trigger.get("divideperinstance")).lower() == "true"
    selected = _selected(trigger, place, collected)
    queue, bus = QUEUE.fullmatch(uri), BUS.fullmatch(uri)
    if queue and metric.lower() in ("approximatemessagecount", *ALL_MESSAGES):
        connection = collected.connection("AzureWebJobsStorage", queue[1])
        collected.notes.append(
            f"queue {queue[2]} of account {queue[1]} is read through {connection}: set it to this "
            f"account, or name another connection. {PER_INSTANCE}"
        )
        return StorageQueue(queue[2], connection), True
    if bus is None:
        return _monitored(uri, metric, selected, trigger, place, collected), divides
    count = "active" if metric.lower() in ALL_MESSAGES else COUNTED.get(metric.lower())
    if bus["subscription"] and not count:
        raise BacktestError(f"{place}: Azure Monitor has no {metric} of a topic's subscription")
    if bus["entity"]:
        selected["EntityName"] = [bus["entity"]]
    entities = selected.get("EntityName", [])
    is_length = bool(bus["entity"] and count)
    is_queue = str(bus["kind"]).lower() != "topics"
    if count and len(entities) == len(selected) == 1 and (bus["subscription"] or is_queue):
        collected.notes += _differences(metric, entities[0], bus["kind"], is_length or divides)
        collected.notes += _unlike_average(trigger, place)
        return _counted(bus, entities[0], count, collected), is_length or divides
    # The metrics of a queue or topic are those of its namespace, selected by a dimension.
    if count:
        metric = "Messages" if metric.lower() in ALL_MESSAGES else COUNTS[count]
    source = _monitored(bus["id"], metric, selected, trigger, place, collected)
    return source, is_length or divides


def _counted(
    bus: re.Match[str], entity: str, count: str, collected: _Collected
) -> ServiceBusQueue | ServiceBusSubscription:
    connection = collected.connection("ServiceBusConnection", bus["namespace"])
    subscription = bus["subscription"]
    what = f"subscription {subscription} of topic {entity}" if subscription else f"queue {entity}"
    collected.notes.append(
        f"{what} of namespace {bus['namespace']} is read directly through {connection}, not from "
        f"Azure Monitor: set {connection} to this namespace"
    )
    if subscription:
        return ServiceBusSubscription(entity, subscription, count, connection)  # type: ignore[arg-type]
    return ServiceBusQueue(entity, count, connection)  # type: ignore[arg-type]


def _differences(metric: str, entity: str, kind: str | None, divided: bool) -> Iterator[str]:
    """How a count that is read directly differs from the metric of Azure Monitor."""
    if metric.lower() in ALL_MESSAGES:
        yield (
            f"{metric} of {entity} includes dead letters and scheduled messages in Azure. Here, "
            "only active messages count: check the thresholds"
        )
    if kind is None:
        yield (
            f"the setting does not tell whether {entity} is a queue or a topic. It is read as a "
            "queue: for a topic, use ServiceBusSubscription"
        )
    if kind is not None:
        yield f"the thresholds of {entity} are per instance. {PER_INSTANCE}"
    elif not divided:
        yield f"the thresholds of {entity} are totals, because dividePerInstance is not set"


def _unlike_average(trigger: Mapping[str, Any], place: str) -> Iterator[str]:
    statistic = str(trigger.get("statistic") or "Average")
    if statistic.lower() != "average":
        yield f"{place}: the statistic {statistic} is not applied, because the app reads the count"


def _monitored(
    uri: str,
    metric: str,
    selected: Mapping[str, Sequence[str]],
    trigger: Mapping[str, Any],
    place: str,
    collected: _Collected,
) -> AzureMonitorMetric:
    collected.notes.append(
        f"{metric} of {uri.rstrip('/').rsplit('/', maxsplit=1)[-1]} is read from Azure Monitor, "
        "so its values arrive minutes late, as they do for the autoscale setting. "
        "The app needs the role Monitoring Reader on this resource"
    )
    statistic = trigger.get("statistic") or "Average"
    seconds = _seconds(trigger.get("timegrain") or "PT1M", place)
    if seconds < 60 or seconds % 60:
        raise BacktestError(f"{place}: timeGrain = {seconds:g} s is not a number of whole minutes")
    namespace = str(trigger.get("metricnamespace") or "")
    is_usual = f"/providers/{namespace}/".lower() in f"{uri}/".lower()
    return AzureMonitorMetric(
        uri,
        metric,
        _one_of(STATISTICS, statistic, f"{place}.metricTrigger.statistic"),  # type: ignore[arg-type]
        f"PT{seconds / 60:.0f}M",
        _filter(selected),
        namespace="" if is_usual else namespace,
    )


def _selected(
    trigger: Mapping[str, Any], place: str, collected: _Collected
) -> dict[str, list[str]]:
    """The values of each dimension that the rule selects."""
    selected = dict[str, list[str]]()
    for dimension in trigger.get("dimensions") or []:
        name, values = str(dimension["dimensionname"]), list(map(str, dimension["values"] or []))
        condition = str(dimension.get("operator") or "Equals")
        if condition.lower() != "equals":
            collected.left_out.append(f"{place}: the condition {condition} on dimension {name}")
            collected.notes.append(
                f"{trigger['metricname']}: the condition {condition} on dimension {name} "
                "is not converted, so all of its values count"
            )
        elif values != ["*"]:
            name = "EntityName" if name.lower() == "entityname" else name
            selected[name] = values
    return selected


def _filter(selected: Mapping[str, Sequence[str]]) -> str:
    """The values as a filter of Azure Monitor, in which a quote is written twice."""
    return " and ".join(
        " or ".join(f"{name} eq '{value.replace(chr(39), chr(39) * 2)}'" for value in values)
        for name, values in selected.items()
    )


def _whens(given: Mapping[str, Any], place: str, collected: _Collected) -> Iterator[When | None]:
    """Yield when the profile begins: at each combination of the hours and minutes."""
    if fixed := given.get("fixeddate"):
        zone = _zone(fixed.get("timezone"), place)
        start, end = (_local(fixed[key], f"{place}.fixedDate.{key}") for key in ("start", "end"))
        if start >= end:
            raise BacktestError(f"{place}.fixedDate: end = {end} is not after start = {start}")
        tails = [str(fixed[key])[19:] for key in ("start", "end")]
        if any(tail.strip("Z.:+0") or (tail and zone != "UTC") for tail in tails):
            collected.notes.append(f"{place}: start and end are read as local time of {zone}")
        yield When((), start, end, zone, fixed=True)
    elif recurrence := given.get("recurrence"):
        schedule = _object(recurrence["schedule"], f"{place}.recurrence.schedule")
        if (frequency := str(recurrence.get("frequency") or "Week")).lower() != "week":
            raise BacktestError(f"{place}: frequency = {frequency!r} is not supported: use Week")
        days = tuple(_day(day, place) for day in schedule["days"])
        zone = _zone(schedule.get("timezone"), place)
        hours, minutes = (
            [_parsed(whole, each, f"{place}.{key}") for each in schedule[key]]
            for key in ("hours", "minutes")
        )
        if not (days and hours and minutes):
            raise BacktestError(f"{place}: days, hours and minutes need at least one value each")
        for hour, minute in product(hours, minutes):
            yield When(days, time(hour, minute).isoformat("minutes"), "", zone)
    else:
        yield None


def _local(text: Any, place: str) -> str:
    """The time without an offset. Azure reads it as local time of the time zone."""
    try:
        return datetime.fromisoformat(str(text)[:19]).isoformat()
    except ValueError:
        raise BacktestError(
            f"{place} = {text!r} is not a time such as 2026-03-01T00:00:00"
        ) from None


def _day(name: Any, place: str) -> str:
    if (day := DAYS.get(str(name).lower())) is None:
        raise BacktestError(f"{place}: {name!r} is not a day of the week, such as Monday")
    return day


def _zone(name: Any, place: str) -> str:
    """The IANA name of a time zone."""
    if (zone := ZONES.get(str(name or "UTC").lower())) is None:
        raise BacktestError(f"{place}: time zone {name!r} is unknown")
    return zone


def _names_of(name: str) -> tuple[str, str]:
    """The profile's name, and the name of the recurring profile that it ends, or empty.

    The portal stores the end of a recurring profile as a copy of the default profile, whose name is
    JSON.
    """
    try:
        end = json.loads(name)
    except ValueError:
        return name, ""
    if not isinstance(end, dict) or not end.get("for"):
        return name, ""
    return f"{end.get('name', 'default')} after {end['for']}", str(end["for"])


def _recurring(
    profiles: Sequence[ConvertedProfile], regular: ConvertedProfile, collected: _Collected
) -> Iterator[ConvertedProfile]:
    """Yield each recurring profile with the intervals in which it applies.

    A copy of the default profile that differs from it is a profile like others.
    """
    recurring = [p for p in profiles if p.when and not p.when.fixed]
    # If a copy and a profile begin at the same time, the profile, which comes later, applies.
    recurring.sort(key=lambda profile: not profile.ends)
    begins = list[Begins]()
    for n, profile in enumerate(recurring):
        assert profile.when is not None
        is_default = bool(profile.ends) and profile.is_like(regular)
        begins.append(Begins(n, profile.when.weekdays, profile.when.start, is_default))
        if profile.ends and not is_default:
            collected.notes.append(
                f"the profile {profile.name} differs from the default profile, so it is kept"
            )
    if len({p.when.time_zone for p in recurring if p.when}) > 1:
        collected.notes.append(
            "the recurring profiles use different time zones: check the times at which one profile "
            "ends and the next begins"
        )
    ended = {profile.ends for profile in recurring}
    for profile in recurring:
        if not profile.ends and profile.name not in ended:
            collected.notes.append(
                f"profile {profile.name} has no end in the setting. As in Azure, it applies until "
                "the next recurring profile begins"
            )
    for interval in week(begins):
        profile = recurring[interval.profile]
        assert profile.when is not None
        when = When(interval.weekdays, interval.start, interval.end, profile.when.time_zone)
        yield replace(profile, when=when)


def _cooldown(collected: _Collected) -> Cooldown:
    for direction, seconds in collected.cooldowns.items():
        if len(seconds) > 1:
            collected.notes.append(
                f"the rules that scale {direction} have different cooldowns: {sorted(seconds)} s. "
                "The longest is used, because there is one cooldown for each direction"
            )
    longest = {d: max(seconds, default=600) for d, seconds in collected.cooldowns.items()}
    return Cooldown(longest["out"], longest["in"], scale_out_pierces=False)


def _add_left_out(setting: Mapping[str, Any], collected: _Collected) -> None:
    if str(setting.get("enabled")).lower() == "false":
        collected.notes.append(
            "the setting is disabled, but the rules converted from it are active"
        )
    if setting.get("notifications"):
        collected.left_out.append("notifications (see WebhookUrl)")
    predictive = setting.get("predictiveautoscalepolicy")
    mode = predictive.get("scalemode") if isinstance(predictive, dict) else None
    if str(mode or "Disabled").lower() != "disabled":
        collected.left_out.append("predictive scaling (see SeasonalFloor)")


def _seconds(text: Any, place: str) -> float:
    """The seconds of a duration such as ``PT10M``. Some tools write it as ``0:10:00``."""
    parse = durations.time_span if ":" in str(text) else durations.iso
    try:
        return parse(re.sub(" days?, ", ".", str(text))).total_seconds()
    except ValueError:
        raise BacktestError(f"{place}: {text!r} is not a duration such as PT10M") from None
