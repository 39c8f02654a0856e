"""Converts an autoscale setting of Azure Monitor into a resource with rules and profiles. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import time
from typing import Any
from zoneinfo import ZoneInfo

from tzlocal.windows_tz import win_tz

from backtest.autoscale_week import Begins, week
from backtest.errors import BacktestError
from shared.autoscaling.declaring import (
    AppServicePlan,
    AzureMonitorMetric,
    Cooldown,
    Limits,
    MetricSource,
    ServiceBusQueue,
    StorageQueue,
)
from shared.autoscaling.policies import MetricRule, MetricRules
from shared.autoscaling.policies.schedule import WEEKDAYS

OPERATORS = {
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "Equals": "==",
    "NotEquals": "!=",
}
AGGREGATIONS = ("average", "minimum", "maximum", "total", "count", "last")
SUMS = ("total", "count")
"""Aggregations whose value grows with the number of samples."""
STATISTICS = {"Average": "average", "Min": "minimum", "Max": "maximum", "Sum": "total",
              "Count": "count"}  # fmt: skip
UNITS = {"ChangeCount": "instances", "PercentChangeCount": "percent", "ExactCount": "exactly"}
PLAN = re.compile(
    r"/subscriptions/([\w-]+)/resourceGroups/([\w.()-]+)"
    r"/providers/Microsoft\.Web/serverfarms/([\w-]+)/?",
    re.IGNORECASE,
)
BUS = re.compile(r".*/Microsoft\.ServiceBus/namespaces/[^/]+(?:/queues/([^/]+))?/?", re.IGNORECASE)
QUEUE = re.compile(r".*/storageAccounts/[^/]+/services/queue/queues/([^/]+)/?", re.IGNORECASE)
COUNTS = {
    "activemessages": "active", "activemessagecount": "active", "messages": "active",
    "messagecount": "active", "deadletteredmessages": "dead_letter",
    "deadlettermessagecount": "dead_letter", "scheduledmessages": "scheduled",
    "scheduledmessagecount": "scheduled",
}  # fmt: skip
"""Metrics of a queue that the app reads directly. Others, such as IncomingMessages, count what
happened in a minute."""
DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")
CLOCK = re.compile(r"(?:(\d+)\.)?(\d+):(\d+):(\d+)")


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


@dataclass(frozen=True, slots=True)
class Converted:
    """What the rules file is generated from. ``notes`` describe differences from the original."""

    name: str
    target: AppServicePlan
    metrics: Mapping[str, MetricSource]
    default: ConvertedProfile
    profiles: tuple[ConvertedProfile, ...]
    cooldown: Cooldown
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Collected:
    """The sources, cooldowns and notes that the conversion of profiles and rules collects."""

    metrics: dict[str, MetricSource] = field(default_factory=dict)
    cooldowns: dict[str, set[float]] = field(default_factory=lambda: {"out": set(), "in": set()})
    notes: list[str] = field(default_factory=list)


def convert(document: Any) -> Converted:
    """Convert a JSON document. Raises a BacktestError that names the key with the problem."""
    setting = _setting(document)
    target = _target(setting)
    collected = _Collected()
    profiles = [_profile(p, f"profiles[{n}]", collected) for n, p in enumerate(_listed(setting))]
    ends = {_ended_profile(p.name): p for p in profiles if _ended_profile(p.name)}
    regular = _regular(profiles, ends)
    fixed = [p for p in profiles if p.when and p.when.fixed]
    timed = [*fixed, *_recurring(profiles, ends, collected)]
    if not collected.metrics:
        raise BacktestError("profiles: no rule has a metricTrigger, so nothing would be measured")
    collected.notes += _left_out(setting)
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
    )


def _regular(
    profiles: Sequence[ConvertedProfile], ends: Mapping[str, ConvertedProfile]
) -> ConvertedProfile:
    """The default profile.

    If there are recurring profiles, Azure does not store the default profile itself. Instead, it
    stores a copy of the default profile for the end of each recurring one.
    """
    plain = [p for p in profiles if p.when is None and not _ended_profile(p.name)]
    if not plain and not ends:
        raise BacktestError(
            "profiles: there is no default profile, that is, one without recurrence or fixedDate"
        )
    return plain[0] if plain else replace(next(iter(ends.values())), name="default", when=None)


def _setting(document: Any) -> Mapping[str, Any]:
    """The properties of the setting. The document may be a template, a resource, or just the
    properties."""
    setting = document
    if isinstance(setting, dict) and isinstance(setting.get("resources"), list):
        kind = "microsoft.insights/autoscalesettings"
        settings = [r for r in setting["resources"] if str(r.get("type", "")).lower() == kind]
        if not settings:
            raise BacktestError(
                "resources: no resource is of type Microsoft.Insights/autoscaleSettings"
            )
        setting = settings[0]
    if isinstance(setting, dict) and isinstance(setting.get("properties"), dict):
        setting = setting["properties"]
    if not isinstance(setting, dict) or "profiles" not in setting:
        raise BacktestError("not an autoscale setting: expected a JSON object with profiles")
    return setting


def _target(setting: Mapping[str, Any]) -> AppServicePlan:
    uri = str(setting.get("targetResourceUri", ""))
    plan = PLAN.fullmatch(uri)
    if plan is None:
        raise BacktestError(f"targetResourceUri = {uri!r} is not an App Service Plan")
    return AppServicePlan(*plan.groups())


def _listed(setting: Mapping[str, Any]) -> list[Any]:
    profiles = setting["profiles"]
    if not isinstance(profiles, list) or not profiles:
        raise BacktestError("profiles must be a list with at least one profile")
    return profiles


def _profile(given: Any, place: str, collected: _Collected) -> ConvertedProfile:
    try:
        capacity = given["capacity"]
        limits = Limits(max(int(capacity["minimum"]), 1), int(capacity["maximum"]))
        default = int(capacity.get("default", limits.minimum))
        rules = tuple(
            _rule(rule, f"{place}.rules[{n}]", collected) for n, rule in enumerate(given["rules"])
        )
        name = str(given["name"])
        when = _when(given, place)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise BacktestError(f"{place}: {type(error).__name__}: {error}") from error
    fallback = min(default, limits.maximum) if default > limits.minimum else None
    return ConvertedProfile(name, limits, MetricRules(rules) if rules else None, when, fallback)


def _rule(given: Mapping[str, Any], place: str, collected: _Collected) -> MetricRule:
    trigger, action = given["metricTrigger"], given["scaleAction"]
    direction = _direction(action, trigger)
    aggregation = str(trigger.get("timeAggregation", "Average")).lower()
    comparison, unit = OPERATORS.get(trigger["operator"]), UNITS.get(action["type"])
    if direction is None or comparison is None or unit is None or aggregation not in AGGREGATIONS:
        raise BacktestError(
            f"{place}: direction {action['direction']!r}, operator {trigger['operator']!r}, type "
            f"{action['type']!r} or timeAggregation {aggregation!r} is not supported"
        )
    collected.cooldowns[direction].add(_seconds(action.get("cooldown", "PT5M"), place))
    threshold = float(trigger["threshold"])
    if not math.isfinite(threshold):
        raise BacktestError(f"{place}: threshold = {threshold} is not a finite number")
    metric = _metric(trigger, collected)
    if aggregation in SUMS and not isinstance(collected.metrics[metric], AzureMonitorMetric):
        collected.notes.append(
            f"{place}: {aggregation} of {metric} is read every 15 s instead of once a minute, so "
            "for the same load the value is about four times as high. Adjust the threshold"
        )
    return MetricRule(
        metric=metric,
        comparison=comparison,
        threshold=threshold,
        direction=direction,  # type: ignore[arg-type]
        by=max(int(action["value"]), 1),
        unit=unit,  # type: ignore[arg-type]
        aggregation=aggregation,
        window_seconds=_seconds(trigger.get("timeWindow", "PT10M"), place),
        per_instance=bool(trigger.get("dividePerInstance")),
    )


def _direction(action: Mapping[str, Any], trigger: Mapping[str, Any]) -> str | None:
    """The direction of a rule. ``az monitor autoscale rule create --scale to 5`` writes the
    direction "None"; then the comparison of the trigger determines the direction."""
    if action["direction"] == "None" and action["type"] == "ExactCount":
        return "out" if str(trigger["operator"]).startswith("GreaterThan") else "in"
    return {"Increase": "out", "Decrease": "in"}.get(action["direction"])


def _metric(trigger: Mapping[str, Any], collected: _Collected) -> str:
    """The name of the metric in the rules. Its source is added to ``collected``."""
    source = _source(trigger, collected)
    for name, existing in collected.metrics.items():
        if existing == source:
            return name
    last = str(trigger.get("metricResourceUri", "")).rstrip("/").split("/")[-1]
    base = re.sub(r"[^A-Za-z0-9._~-]+", "-", f"{last}-{trigger['metricName']}").strip("-").lower()
    name, number = base, 1
    while name in collected.metrics:
        number += 1
        name = f"{base}-{number}"
    collected.metrics[name] = source
    return name


def _source(trigger: Mapping[str, Any], collected: _Collected) -> MetricSource:
    uri, metric = str(trigger.get("metricResourceUri", "")), str(trigger["metricName"])
    if queue := QUEUE.fullmatch(uri):
        collected.notes.append(f"{queue[1]} is read from the account of AzureWebJobsStorage")
        return StorageQueue(queue[1])
    bus, selected = BUS.fullmatch(uri), _selected(trigger, collected)
    if bus and bus[1]:
        # A queue's metrics are metrics of its namespace, selected by the dimension EntityName.
        uri, selected = uri[: bus.start(1)].rsplit("/queues", 1)[0], {"EntityName": [bus[1]]}
    queues = selected.get("EntityName", []) if bus else []
    count = COUNTS.get(metric.lower())
    if len(queues) == 1 and count:
        collected.notes.append(
            f"{metric} of queue {queues[0]} is read directly through ServiceBusConnection, not "
            "from Azure Monitor"
        )
        return ServiceBusQueue(queues[0], count)  # type: ignore[arg-type]
    collected.notes.append(
        f"{metric} of {uri.rstrip('/').rsplit('/', maxsplit=1)[-1]} is read from Azure Monitor, "
        "so its values arrive minutes late, as they do for the autoscale setting. "
        "The app needs the role Monitoring Reader on this resource"
    )
    statistic = STATISTICS.get(str(trigger.get("statistic", "Average")), "average")
    grain = str(trigger.get("timeGrain", "PT1M"))
    return AzureMonitorMetric(uri, metric, statistic, grain, _filter(selected))  # type: ignore[arg-type]


def _selected(trigger: Mapping[str, Any], collected: _Collected) -> dict[str, list[str]]:
    """The values of each dimension that the rule selects."""
    selected = dict[str, list[str]]()
    for dimension in trigger.get("dimensions") or []:
        given = {str(key).lower(): value for key, value in dimension.items()}
        name, values = str(given["dimensionname"]), [str(v) for v in given.get("values") or []]
        if str(given.get("operator", "Equals")).lower() == "equals":
            selected[name] = values
        else:
            collected.notes.append(
                f"{trigger['metricName']}: the condition {given['operator']} on dimension {name} "
                "is not converted, so all of its values count"
            )
    return selected


def _filter(selected: Mapping[str, Sequence[str]]) -> str:
    """The values as a filter of Azure Monitor, in which a quote is written twice."""
    return " and ".join(
        " or ".join(f"{name} eq '{value.replace(chr(39), chr(39) * 2)}'" for value in values)
        for name, values in selected.items()
    )


def _when(given: Mapping[str, Any], place: str) -> When | None:
    if fixed := given.get("fixedDate"):
        zone = _zone(fixed.get("timeZone"), place)
        return When((), str(fixed["start"])[:19], str(fixed["end"])[:19], zone, fixed=True)
    if not (recurrence := given.get("recurrence")):
        return None
    schedule = recurrence["schedule"]
    days = tuple(day[:3] for day in schedule["days"])
    if unknown := [day for day in days if day not in WEEKDAYS]:
        raise BacktestError(f"{place}: {unknown[0]!r} is not a day of the week")
    start = time(int(schedule["hours"][0]), int(schedule["minutes"][0]))
    zone = _zone(schedule.get("timeZone"), place)
    return When(days, start.isoformat("minutes"), "", zone)


def _zone(name: Any, place: str) -> str:
    """The IANA name of a time zone. Azure uses the names of Windows."""
    text = win_tz.get(str(name or "UTC"), str(name or "UTC"))
    try:
        ZoneInfo(text)
    except (KeyError, ValueError, OSError):
        raise BacktestError(f"{place}: time zone {text!r} is unknown") from None
    return text


def _ended_profile(name: str) -> str:
    """If the profile called ``name`` marks the end of a recurring profile, the name of that
    recurring profile. Otherwise empty.

    The portal stores the end of a recurring profile as another profile, whose name is JSON.
    """
    try:
        end = json.loads(name)
    except ValueError:
        return ""
    return str(end.get("for", "")) if isinstance(end, dict) else ""


def _recurring(
    profiles: Sequence[ConvertedProfile],
    ends: Mapping[str, ConvertedProfile],
    collected: _Collected,
) -> Iterator[ConvertedProfile]:
    """Yield each recurring profile with the intervals in which it applies."""
    begins = [
        Begins(n, p.when.weekdays, p.when.start, ends_another=bool(_ended_profile(p.name)))
        for n, p in enumerate(profiles)
        if p.when and not p.when.fixed
    ]
    if len({p.when.time_zone for p in profiles if p.when and not p.when.fixed}) > 1:
        collected.notes.append(
            "the recurring profiles use different time zones: check the times at which one profile "
            "ends and the next begins"
        )
    for each in begins:
        name = profiles[each.profile].name
        if not each.ends_another and name not in ends:
            collected.notes.append(
                f"profile {name} has no end in the setting. As in Azure, it applies until the next "
                "recurring profile begins"
            )
    for interval in week(begins):
        profile = profiles[interval.profile]
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


def _left_out(setting: Mapping[str, Any]) -> Iterator[str]:
    if setting.get("enabled") is False:
        yield "the setting is disabled, but the rules converted from it are active"
    if setting.get("notifications"):
        yield "notifications are not converted: see WebhookUrl"
    mode = (setting.get("predictiveAutoscalePolicy") or {}).get("scaleMode", "Disabled")
    if mode != "Disabled":
        yield "predictive scaling is not converted"


def _seconds(text: Any, place: str) -> float:
    """The seconds of a duration such as ``PT10M``. Some tools write it as ``00:10:00``."""
    iso, clock = DURATION.fullmatch(str(text)), CLOCK.fullmatch(str(text))
    parts = iso.groups() if iso else clock.groups() if clock else ()
    if not any(parts):
        raise BacktestError(f"{place}: {text!r} is not a duration such as PT10M")
    days, hours, minutes, seconds = (int(part or 0) for part in parts)
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
