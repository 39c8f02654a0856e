"""An autoscale setting of Azure Monitor as a resource with rules and profiles. Pure."""

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
"""Aggregations that grow with the number of samples."""
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
COUNTS = {"active": "active", "messagecount": "active", "messages": "active",
          "dead": "dead_letter", "scheduled": "scheduled"}  # fmt: skip
DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")
CLOCK = re.compile(r"(?:(\d+)\.)?(\d+):(\d+):(\d+)")


@dataclass(frozen=True, slots=True)
class When:
    """When a profile holds: weekdays and times of day, or one interval between two local times."""

    weekdays: tuple[str, ...] = ()
    start: str = ""
    end: str = ""
    time_zone: str = "UTC"
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class ProfileOf:
    name: str
    limits: Limits
    policy: MetricRules | None
    when: When | None = None


@dataclass(frozen=True, slots=True)
class Converted:
    """What the rules are written from; ``notes`` say what differs from the original."""

    name: str
    target: AppServicePlan
    metrics: Mapping[str, MetricSource]
    default: ProfileOf
    profiles: tuple[ProfileOf, ...]
    cooldown: Cooldown
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Reading:
    metrics: dict[str, MetricSource] = field(default_factory=dict)
    cooldowns: dict[str, set[float]] = field(default_factory=lambda: {"out": set(), "in": set()})
    notes: list[str] = field(default_factory=list)


def convert(document: Any) -> Converted:
    """Raises BacktestError, which names the place."""
    setting = _setting(document)
    target = _target(setting)
    reading = _Reading()
    profiles = [_profile(p, f"profiles[{n}]", reading) for n, p in enumerate(_listed(setting))]
    ends = {_marks_end(p.name): p for p in profiles if _marks_end(p.name)}
    regular = _regular(profiles, ends)
    fixed = [p for p in profiles if p.when and p.when.fixed]
    timed = [*fixed, *_recurring(profiles, ends, reading)]
    if not reading.metrics:
        raise BacktestError("profiles: no rule has a metricTrigger: nothing would be measured")
    reading.notes += _left_out(setting)
    return Converted(
        name=target.name,
        target=target,
        metrics=reading.metrics,
        default=regular,
        profiles=tuple(timed),
        cooldown=_cooldown(reading),
        notes=tuple(dict.fromkeys(reading.notes)),
    )


def _regular(profiles: Sequence[ProfileOf], ends: Mapping[str, ProfileOf]) -> ProfileOf:
    """The default profile. With recurring ones Azure keeps a copy of it for each, at its end, and
    the original no more.
    """
    plain = [p for p in profiles if p.when is None and not _marks_end(p.name)]
    if not plain and not ends:
        raise BacktestError("profiles: none is the default one, without recurrence or fixedDate")
    return plain[0] if plain else replace(next(iter(ends.values())), name="default", when=None)


def _setting(document: Any) -> Mapping[str, Any]:
    """The properties, wherever the form of the document has them."""
    setting = document
    if isinstance(setting, dict) and isinstance(setting.get("resources"), list):
        kind = "microsoft.insights/autoscalesettings"
        settings = [r for r in setting["resources"] if str(r.get("type", "")).lower() == kind]
        if not settings:
            raise BacktestError("resources: none is of type Microsoft.Insights/autoscaleSettings")
        setting = settings[0]
    if isinstance(setting, dict) and isinstance(setting.get("properties"), dict):
        setting = setting["properties"]
    if not isinstance(setting, dict) or "profiles" not in setting:
        raise BacktestError("this is no autoscale setting: a JSON object with profiles is needed")
    return setting


def _target(setting: Mapping[str, Any]) -> AppServicePlan:
    uri = str(setting.get("targetResourceUri", ""))
    plan = PLAN.fullmatch(uri)
    if plan is None:
        raise BacktestError(f"targetResourceUri = {uri!r}: must be an App Service Plan")
    return AppServicePlan(*plan.groups())


def _listed(setting: Mapping[str, Any]) -> list[Any]:
    profiles = setting["profiles"]
    if not isinstance(profiles, list) or not profiles:
        raise BacktestError("profiles: at least one is needed")
    return profiles


def _profile(given: Any, place: str, reading: _Reading) -> ProfileOf:
    try:
        capacity = given["capacity"]
        limits = Limits(max(int(capacity["minimum"]), 1), int(capacity["maximum"]))
        default = int(capacity.get("default", limits.minimum))
        rules = tuple(
            _rule(rule, f"{place}.rules[{n}]", reading) for n, rule in enumerate(given["rules"])
        )
        name = str(given["name"])
        when = _when(given, place)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise BacktestError(f"{place}: {type(error).__name__}: {error}") from error
    if default > limits.minimum and not _marks_end(name):
        reading.notes.append(
            f"profile {name}: capacity.default = {default} has no counterpart; while metrics are "
            "missing nothing is scaled in (see Guards.missing)"
        )
    return ProfileOf(name, limits, MetricRules(rules) if rules else None, when)


def _rule(given: Mapping[str, Any], place: str, reading: _Reading) -> MetricRule:
    trigger, action = given["metricTrigger"], given["scaleAction"]
    direction = _direction(action, trigger)
    aggregation = str(trigger.get("timeAggregation", "Average")).lower()
    comparison, unit = OPERATORS.get(trigger["operator"]), UNITS.get(action["type"])
    if direction is None or comparison is None or unit is None or aggregation not in AGGREGATIONS:
        raise BacktestError(
            f"{place}: direction {action['direction']!r}, operator {trigger['operator']!r}, type "
            f"{action['type']!r} or timeAggregation {aggregation!r} is not known"
        )
    reading.cooldowns[direction].add(_seconds(action.get("cooldown", "PT5M"), place))
    threshold = float(trigger["threshold"])
    if not math.isfinite(threshold):
        raise BacktestError(f"{place}: threshold = {threshold}: must be a number")
    metric = _metric(trigger, reading)
    if aggregation in SUMS and not isinstance(reading.metrics[metric], AzureMonitorMetric):
        reading.notes.append(
            f"{place}: {aggregation} of {metric}: read every 15 s instead of once a minute, so the "
            "same load adds up to four times as much: the threshold needs a change"
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
    """``az monitor autoscale rule create --scale to 5`` writes None; then the comparison tells."""
    if action["direction"] == "None" and action["type"] == "ExactCount":
        return "out" if str(trigger["operator"]).startswith("GreaterThan") else "in"
    return {"Increase": "out", "Decrease": "in"}.get(action["direction"])


def _metric(trigger: Mapping[str, Any], reading: _Reading) -> str:
    """The metric's name among ours; its source is remembered."""
    source = _source(trigger, reading)
    for name, known in reading.metrics.items():
        if known == source:
            return name
    last = str(trigger.get("metricResourceUri", "")).rstrip("/").split("/")[-1]
    base = re.sub(r"[^A-Za-z0-9._~-]+", "-", f"{last}-{trigger['metricName']}").strip("-").lower()
    name, number = base, 1
    while name in reading.metrics:
        number += 1
        name = f"{base}-{number}"
    reading.metrics[name] = source
    return name


def _source(trigger: Mapping[str, Any], reading: _Reading) -> MetricSource:
    uri, metric = str(trigger.get("metricResourceUri", "")), str(trigger["metricName"])
    if queue := QUEUE.fullmatch(uri):
        reading.notes.append(f"{queue[1]}: read from the account of AzureWebJobsStorage")
        return StorageQueue(queue[1])
    bus, named = BUS.fullmatch(uri), [
        value
        for dimension in trigger.get("dimensions") or []
        if dimension.get("DimensionName", dimension.get("dimensionName")) == "EntityName"
        for value in dimension.get("Values", dimension.get("values")) or []
    ]  # fmt: skip
    queues = [bus[1]] if bus and bus[1] else named if bus else []
    count = next((c for word, c in COUNTS.items() if word in metric.lower()), None)
    if len(queues) == 1 and count:
        reading.notes.append(f"{queues[0]}: read as a queue, with ServiceBusConnection")
        return ServiceBusQueue(queues[0], count)  # type: ignore[arg-type]
    reading.notes.append(
        f"{metric} of {uri.rsplit('/', maxsplit=1)[-1]}: must be streamed to the event hub by a "
        "diagnostic setting (see EventHubConnection)"
    )
    statistic = STATISTICS.get(str(trigger.get("statistic", "Average")), "average")
    grain = str(trigger.get("timeGrain", "PT1M"))
    return AzureMonitorMetric(uri, metric, statistic, grain)  # type: ignore[arg-type]


def _when(given: Mapping[str, Any], place: str) -> When | None:
    if fixed := given.get("fixedDate"):
        zone = _zone(fixed.get("timeZone"), place)
        return When((), str(fixed["start"])[:19], str(fixed["end"])[:19], zone, fixed=True)
    if not (recurrence := given.get("recurrence")):
        return None
    schedule = recurrence["schedule"]
    days = tuple(day[:3] for day in schedule["days"])
    if unknown := [day for day in days if day not in WEEKDAYS]:
        raise BacktestError(f"{place}: {unknown[0]!r} is no day of the week")
    start = time(int(schedule["hours"][0]), int(schedule["minutes"][0]))
    zone = _zone(schedule.get("timeZone"), place)
    return When(days, start.isoformat("minutes"), "", zone)


def _zone(name: Any, place: str) -> str:
    """Azure has Windows' names of time zones."""
    text = win_tz.get(str(name or "UTC"), str(name or "UTC"))
    try:
        ZoneInfo(text)
    except (KeyError, ValueError, OSError):
        raise BacktestError(f"{place}: time zone {text!r} is not known") from None
    return text


def _marks_end(name: str) -> str:
    """The portal writes the end of a recurring profile as a profile whose name is JSON."""
    try:
        mark = json.loads(name)
    except ValueError:
        return ""
    return str(mark.get("for", "")) if isinstance(mark, dict) else ""


def _recurring(
    profiles: Sequence[ProfileOf], ends: Mapping[str, ProfileOf], reading: _Reading
) -> Iterator[ProfileOf]:
    """Each recurring profile for the intervals in which it holds."""
    begins = [
        Begins(n, p.when.weekdays, p.when.start, ends_another=bool(_marks_end(p.name)))
        for n, p in enumerate(profiles)
        if p.when and not p.when.fixed
    ]
    if len({p.when.time_zone for p in profiles if p.when and not p.when.fixed}) > 1:
        reading.notes.append("recurring profiles have several time zones: check where they meet")
    for each in begins:
        name = profiles[each.profile].name
        if not each.ends_another and name not in ends:
            reading.notes.append(
                f"profile {name}: has no end in the setting: as in Azure it holds until the next "
                "recurring one begins"
            )
    for held in week(begins):
        profile = profiles[held.profile]
        assert profile.when is not None
        when = When(held.weekdays, held.start, held.end, profile.when.time_zone)
        yield replace(profile, when=when)


def _cooldown(reading: _Reading) -> Cooldown:
    for direction, seconds in reading.cooldowns.items():
        if len(seconds) > 1:
            reading.notes.append(
                f"cooldowns of rules {direction}: {sorted(seconds)} s; here there is one for each "
                "direction, the longest"
            )
    longest = {d: max(seconds, default=600) for d, seconds in reading.cooldowns.items()}
    return Cooldown(longest["out"], longest["in"], scale_out_pierces=False)


def _left_out(setting: Mapping[str, Any]) -> Iterator[str]:
    if setting.get("enabled") is False:
        yield "the setting is disabled; the rules are not"
    if setting.get("notifications"):
        yield "notifications are not carried over: see WebhookUrl"
    mode = (setting.get("predictiveAutoscalePolicy") or {}).get("scaleMode", "Disabled")
    if mode != "Disabled":
        yield "predictive scaling is not carried over"


def _seconds(text: Any, place: str) -> float:
    """``PT10M``, or ``00:10:00`` as some tools write it."""
    iso, clock = DURATION.fullmatch(str(text)), CLOCK.fullmatch(str(text))
    parts = iso.groups() if iso else clock.groups() if clock else ()
    if not any(parts):
        raise BacktestError(f"{place}: {text!r} is no duration such as PT10M")
    days, hours, minutes, seconds = (int(part or 0) for part in parts)
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
