"""What operators see of a resource, as plain values for JSON. All functions are pure.

Times are ISO 8601 text in UTC, and durations are seconds. An unknown value is None, never zero.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, fields, is_dataclass
from datetime import datetime
from typing import Any, TypedDict

from shared.autoscaling.acting.actions import as_of
from shared.autoscaling.deciding.decide import (
    Decision,
    EntryKind,
    LogEntry,
    effective_mode,
    effective_override,
    within_plan,
)
from shared.autoscaling.deciding.guards import recent_changes
from shared.autoscaling.deciding.samples import known_capacity
from shared.autoscaling.deciding.stretches import AGE, Stretch
from shared.autoscaling.declaring import Mode
from shared.autoscaling.learning.backlogs import AGE_AT_MOST
from shared.autoscaling.learning.throughput import rate_estimate
from shared.autoscaling.operating.conditions import silences
from shared.autoscaling.operating.overrides import described
from shared.autoscaling.policy import RateSource, Recommendation, Resource
from shared.autoscaling.ports import Snapshot
from shared.autoscaling.sources import Source
from shared.autoscaling.state import ActionStatus, ScalingState
from shared.notifications.conditions import ConditionShown, LastingCondition
from shared.values.measurements import CAPACITY_METRIC, MetricValue, Window
from shared.values.redaction import redacted
from shared.values.samples import format_time
from shared.values.text import TimeText, one_line, shown

Shown = dict[str, Any]
EvidenceShown = dict[str, Any]


class PlanShown(TypedDict):
    """An App Service Plan."""

    subscription_id: str
    resource_group: str
    name: str


class LimitsShown(TypedDict):
    """The range of the capacity, in instances, as far as the plan can have it."""

    minimum: int
    maximum: int


class DesiredShown(TypedDict):
    """The capacity that the app last asked for. ``reached`` is the part of it that the plan had at
    ``progressed_at``. If the action ended there, that is the ``target``, and ``given_up`` the
    capacity that was asked for."""

    target: int
    epoch: int
    status: ActionStatus
    reason: str
    requested_at: TimeText
    attempts: int
    last_error: str | None
    reached: int | None
    progressed_at: TimeText | None
    given_up: int | None


class OverrideShown(TypedDict):
    """The override in force."""

    said: str
    reason: str
    mode: Mode | None
    exact: int | None
    floor: int | None
    freeze_scale_in: bool
    expires_at: TimeText | None


class RulesShown(TypedDict):
    """The version of the rules that decides."""

    version: str
    activated_at: TimeText


class EstimateShown(TypedDict):
    """The rate per instance, in items a minute."""

    said: str
    certainty: str
    source: RateSource
    likely: float
    low: float
    relative_error: float
    sure: bool


class MetricShown(TypedDict):
    """A metric with its newest sample."""

    name: str
    source: str
    pushed: bool
    value: float | None
    time: TimeText | None
    age_seconds: float | None
    lag_seconds: float | None
    stale: bool


class CandidateShown(TypedDict):
    """What one policy recommends."""

    rule: str
    capacity: int
    reason: str
    evidence: EvidenceShown


class SampleShown(TypedDict):
    """One value of a metric, with the time of its source."""

    name: str
    value: float
    time: TimeText


class DecisionShown(TypedDict):
    """A decision, and everything that led to it."""

    time: TimeText
    current: int | None
    desired: int | None
    applies: bool
    reason: str
    limited_by: list[str]
    candidates: list[CandidateShown]
    evidence: EvidenceShown
    counterfactual: str


class DecisionEntry(DecisionShown):
    """An entry of the decision log. ``metric`` and ``value`` are of the newest of the ``samples``
    that led to the decision. Entries of older versions have no ``samples``. ``repeated`` counts the
    decisions before it that said the same in a row, numbers aside, since ``repeated_since``."""

    id: str
    kind: EntryKind
    epoch: int | None
    metric: str | None
    value: float | None
    samples: list[SampleShown]
    repeated: int
    repeated_since: TimeText | None


class SpentShown(TypedDict):
    """Instance-hours of the day and of the month in UTC, what the month would have had at the
    maximum, and the price of one. ``said`` has the money if there is a price."""

    today: float | None
    month: float
    month_at_maximum: float
    price: float | None
    said: str


class ChangeRow(DecisionEntry):
    """An entry in a list for people: a change with its outcome in words, the ``guard`` that limited
    it last, and the ``later`` entries about it, oldest first."""

    outcome: str
    guard: str
    later: list[DecisionEntry]


class ResourceStatus(TypedDict):
    """The state of a resource. An unknown value is null. ``changes_last_hour`` counts the changes
    of the capacity by the app."""

    name: str
    target: PlanShown
    limits: LimitsShown
    as_of: TimeText
    capacity: int | None
    capacity_at: TimeText | None
    capacity_stale: bool
    desired: DesiredShown | None
    changes_last_hour: int
    mode: Mode
    mode_reason: str
    override: OverrideShown | None
    rules: RulesShown | None
    estimate: EstimateShown | None
    metrics: list[MetricShown]
    newest: DecisionEntry | None
    spent: SpentShown | None
    unreadable: list[str]
    conditions: list[ConditionShown]


class ResourceUnreadable(TypedDict):
    """A resource whose state cannot be read, with the reason."""

    name: str
    error: str
    conditions: list[ConditionShown]


class HistoryPoint(TypedDict):
    """Capacity and metrics of one step. ``metrics`` are the highest values, beside the ``lowest``
    and the ``last`` ones. ``age_minutes`` is the age of the oldest item if all instances work.
    ``age_at_most_minutes`` is its age if they do not, where it is much higher.
    """

    time: TimeText
    capacity: int
    desired: int | None
    metrics: dict[str, float | None]
    lowest: dict[str, float | None]
    last: dict[str, float | None]
    age_minutes: float | None
    age_at_most_minutes: float | None


class History(TypedDict):
    """The points of the chart, and the entries of the log except decisions without a change."""

    as_of: TimeText
    points: list[HistoryPoint]
    events: list[DecisionEntry]


def status(
    resource: Resource,
    snapshot: Snapshot,
    found: Iterable[LastingCondition],
    price: float | None = None,
) -> ResourceStatus:
    """The status of a resource: capacity, desired state, mode, override, rate per instance,
    metrics, the newest decision, what is wrong (``found``), and what it costs at the ``price`` of
    an instance-hour.
    """
    state, now = as_of(snapshot.state, snapshot.read_at), snapshot.read_at
    mode, mode_reason = effective_mode(resource, state, now)
    capacity = known_capacity(state)
    desired, override, rules = state.desired, effective_override(state, now), state.rules
    estimate = rate_estimate(resource.throughput, state.learned)
    silent = silences(resource, state, now)
    limits = within_plan(resource, state).limits
    return {
        "name": resource.name,
        "target": shown(PlanShown, resource.target, format_time),
        "limits": shown(LimitsShown, limits, format_time),
        "as_of": format_time(now),
        "capacity": int(capacity.value) if capacity else None,
        "capacity_at": format_time(capacity.time) if capacity else None,
        "capacity_stale": CAPACITY_METRIC in silent,
        "desired": shown(DesiredShown, desired, format_time, last_error=desired.last_error or None)
        if desired
        else None,
        "changes_last_hour": len(recent_changes(desired, now)),
        "mode": mode,
        "mode_reason": mode_reason,
        "override": shown(OverrideShown, override, format_time, said=described(override))
        if override
        else None,
        "rules": shown(RulesShown, rules, format_time) if rules else None,
        "estimate": shown(EstimateShown, estimate, format_time, said=str(estimate))
        if estimate
        else None,
        "metrics": list(_metrics(resource, state, silent, now)),
        "newest": decision_entry(snapshot.decided) if snapshot.decided else None,
        "spent": _spent(snapshot.decided, now, limits.maximum, price),
        "unreadable": list(snapshot.unreadable),
        "conditions": [each.to_json() for each in found],
    }


def _spent(
    decided: LogEntry | None, now: datetime, maximum: int, price: float | None
) -> SpentShown | None:
    """None if nothing is known of this month."""
    if decided is None or not decided.hours or decided.time.month != now.month:
        return None
    today, _, month, known = decided.hours
    day = today if decided.time.date() == now.date() else None
    most, passed = known * maximum, (now.day - 1) * 24 + now.hour

    def told(hours: float | None) -> str:
        if hours is None:
            return "?"
        return f"{hours:,.2f} instance-hours" if price is None else f"{hours * price:,.2f}"

    gap = f" ({known:,.0f} of {passed:,} hours are known)" if known < 0.99 * passed else ""
    said = f"{told(day)} today, {told(month)} this month{gap}; at the maximum {told(most)}"
    return {
        "today": day,
        "month": month,
        "month_at_maximum": most,
        "price": price,
        "said": f"≈ {said}",
    }


def decision_entry(entry: LogEntry) -> DecisionEntry:
    """One entry of the log, with all recommendations, the guards that applied, and the evidence."""
    read = [sample(name, value) for name, values in entry.samples.items() for value in values]
    others = {"id": entry.entry_id, "metric": entry.metric or None, "samples": read}
    return shown(DecisionEntry, entry, format_time, **others, **_reasons(entry))


def decision(made: Decision) -> Shown:
    told = shown(DecisionShown, made, format_time, **_reasons(made))
    return {"resource": made.resource_name, **told}


def _reasons(made: Decision | LogEntry) -> Shown:
    return {
        "limited_by": list(made.limited_by),
        "candidates": [_candidate(candidate) for candidate in made.candidates],
        "evidence": _evidence(made.evidence),
        "counterfactual": str(made.counterfactual),
    }


def sample(name: str, read: MetricValue) -> SampleShown:
    return {"name": name, "value": read.value, "time": format_time(read.time)}


def points(course: Iterable[Stretch], step_seconds: float) -> list[HistoryPoint]:
    """Capacity and metrics over time, oldest first.

    There is one point for each step, and another one for each change of the capacity or the desired
    capacity within a step.
    """
    by_step: dict[tuple[int, int, int | None], Stretch] = {}
    for each in course:
        key = int(each.time.timestamp() // step_seconds), each.capacity, each.desired
        by_step[key] = by_step[key].joined(each) if key in by_step else each
    return [_point(each) for each in by_step.values()]


def _point(seen: Stretch) -> HistoryPoint:
    highest = {name: high for name, (_, high, _) in seen.ages.items()}
    return {
        "time": format_time(seen.time),
        "capacity": seen.capacity,
        "desired": seen.desired,
        "metrics": {name: high for name, (_, high, _) in seen.metrics.items()},
        "lowest": {name: low for name, (low, _, _) in seen.metrics.items()},
        "last": {name: last for name, (_, _, last) in seen.metrics.items()},
        "age_minutes": highest.get(AGE),
        "age_at_most_minutes": highest.get(AGE_AT_MOST),
    }


OUTCOMES = {
    EntryKind.CONFIRMED: "confirmed",
    EntryKind.FAILED: "refused",
    EntryKind.PROGRESS: "in progress",
    EntryKind.DEFERRED: "delayed",
    EntryKind.IGNORED: "ignored",
    EntryKind.RESENT: "sent again",
}
"""What became of a change, by the kind of the newest entry about it."""


EVERY = "every"


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Which entries are listed: without ``kind``, all except decisions that request nothing."""

    kind: str = ""
    guard: str = ""
    text: str = ""
    before: datetime | None = None

    def fits(self, entry: LogEntry, later: Sequence[LogEntry]) -> bool:
        about = (entry, *later)
        texts = (entry.kind, *entry.limited_by, *[each.reason for each in about])
        return (
            entry.is_within(None, self.before)
            and (self.kind == EVERY or not entry.requests_nothing)
            and self.kind in ("", EVERY, *[each.kind for each in about])
            and (not self.guard or self.guard in entry.limited_by)
            and self.text.lower() in "\n".join(texts).lower()
        )


def rows(
    entries: Sequence[LogEntry], wanted: RowFilter, limit: int
) -> tuple[list[ChangeRow], datetime | None]:
    """A row for each change with all that came of it, and for each other entry, newest first; and
    the time from before which the next rows are, None if there are no more.
    """
    later: dict[int | None, list[LogEntry]] = defaultdict(list)
    for entry in entries:
        if entry.kind in OUTCOMES:
            later[entry.epoch].insert(0, entry)
    requested = {entry.epoch for entry in entries if entry.applies}
    grouped = [
        (entry, later[entry.epoch] if entry.applies else [])
        for entry in entries
        if entry.kind not in OUTCOMES or entry.epoch not in requested
    ]
    found = [each for each in grouped if wanted.fits(*each)]
    if len(found) <= limit:
        return [_row(*each) for each in found], None
    last = found[limit - 1][0].time  # with all entries of the same time
    return [_row(*each) for each in found if each[0].time >= last], last


def _row(entry: LogEntry, later: Sequence[LogEntry]) -> ChangeRow:
    outcome = "requested" if entry.applies else ""
    if later:
        seconds = (later[-1].time - entry.time).total_seconds()
        lasted = f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"
        outcome = f"{OUTCOMES[later[-1].kind]} after {lasted}"
    return {
        **decision_entry(entry),
        "outcome": outcome,
        "guard": "" if entry.guard == "none" else entry.guard,
        "later": [decision_entry(each) for each in later],
    }


def _evidence(evidence: Mapping[str, Any]) -> EvidenceShown:
    """The evidence of a policy, with infinity and NaN as None because JSON has neither."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in evidence.items()
    }


def _candidate(candidate: Recommendation) -> CandidateShown:
    return shown(CandidateShown, candidate, format_time, evidence=_evidence(candidate.evidence))


def _metrics(
    resource: Resource, state: ScalingState, silent: Mapping[str, str], now: datetime
) -> Iterable[MetricShown]:
    for name, source in resource.metrics.items():
        latest = state.histories.get(name, Window()).latest
        age = (now - latest.time).total_seconds() if latest else None
        yield {
            "name": name,
            "source": _source(source),
            "pushed": source.pushed,
            "value": latest.value if latest else None,
            "time": format_time(latest.time) if latest else None,
            "age_seconds": age,
            "lag_seconds": age if source.usual_lag_seconds else None,
            "stale": name in silent,
        }


def _source(source: Source) -> str:
    """The class and the fields of a source, without those that its class hides from ``repr``."""
    declared: Sequence[Field[Any]] = fields(source) if is_dataclass(source) else ()
    shown = [each.name for each in declared if each.repr and each.name != "connection"]
    try:
        values = [str(getattr(source, name)) for name in shown]
    except Exception:  # the class may be the user's own
        values = []
    return redacted(one_line(f"{type(source).__name__} {'/'.join(values)}".rstrip()))
