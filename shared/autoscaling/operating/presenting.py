"""Converts states, decisions and log entries to plain values for JSON. All functions are pure.

Times are ISO 8601 text in UTC, and durations are seconds. An unknown value is None, never zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, fields, is_dataclass
from datetime import datetime
from typing import Any

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
from shared.autoscaling.learning.backlogs import AGE_AT_MOST, age_minutes
from shared.autoscaling.learning.throughput import rate_estimate
from shared.autoscaling.operating.overrides import described
from shared.autoscaling.operating.shown import (
    CandidateShown,
    DecisionEntry,
    DesiredShown,
    EstimateShown,
    EvidenceShown,
    History,
    HistoryPoint,
    LimitsShown,
    MetricShown,
    OverrideShown,
    PlanShown,
    ResourceStatus,
    RulesShown,
    SampleShown,
)
from shared.autoscaling.operating.staleness import silences
from shared.autoscaling.policy import Recommendation, Resource
from shared.autoscaling.ports import Snapshot
from shared.autoscaling.sources import Source
from shared.autoscaling.state import ScalingState
from shared.notifications.conditions import LastingCondition
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue, Window
from shared.values.redaction import redacted
from shared.values.samples import format_time
from shared.values.text import one_line, shown

DECISION = EntryKind.DECISION

Shown = dict[str, Any]


def status(
    resource: Resource,
    snapshot: Snapshot,
    found: Iterable[LastingCondition],
) -> ResourceStatus:
    """The status of a resource: capacity, desired state, mode, override, rate per instance,
    metrics, the newest decision, and what is wrong (``found``).
    """
    state, now = as_of(snapshot.state, snapshot.read_at), snapshot.read_at
    mode, mode_reason = effective_mode(resource, state, now)
    capacity = known_capacity(state)
    desired, override, rules = state.desired, effective_override(state, now), state.rules
    estimate = rate_estimate(resource.throughput, state.learned)
    silent = silences(resource, state, now)
    return {
        "name": resource.name,
        "target": shown(PlanShown, resource.target, format_time),
        "limits": shown(LimitsShown, within_plan(resource, state).limits, format_time),
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
        "unreadable": list(snapshot.unreadable),
        "conditions": [each.to_json() for each in found],
    }


def decision_entry(entry: LogEntry) -> DecisionEntry:
    """One entry of the log, with all recommendations, the guards that applied, and the evidence."""
    return {
        "id": entry.entry_id,
        "time": format_time(entry.time),
        "kind": entry.kind,
        "current": entry.current,
        "desired": entry.desired,
        "epoch": entry.epoch,
        "applies": entry.applies,
        "reason": entry.reason,
        "limited_by": list(entry.limited_by),
        "candidates": [_candidate(candidate) for candidate in entry.candidates],
        "evidence": _evidence(entry.evidence),
        "counterfactual": str(entry.counterfactual),
        "metric": entry.metric or None,
        "value": entry.value,
        "samples": [
            _sample(name, value) for name, values in entry.samples.items() for value in values
        ],
        "repeated": entry.repeated,
        "repeated_since": format_time(since) if (since := entry.repeated_since) else None,
    }


def decision(made: Decision) -> Shown:
    return {
        "resource": made.resource_name,
        "time": format_time(made.time),
        "current": made.current,
        "desired": made.desired,
        "applies": made.applies,
        "reason": made.reason,
        "limited_by": list(made.limited_by),
        "candidates": [_candidate(candidate) for candidate in made.candidates],
        "evidence": _evidence(made.evidence),
        "counterfactual": str(made.counterfactual),
    }


def reading(metric: Metric) -> SampleShown:
    return _sample(metric.name, metric.value)


def _sample(name: str, sample: MetricValue) -> SampleShown:
    return {"name": name, "value": sample.value, "time": format_time(sample.time)}


def history(entries: Sequence[LogEntry], now: datetime, step_seconds: float) -> History:
    """The points of the chart, and the log entries except decisions without a change, newest
    first."""
    return {
        "as_of": format_time(now),
        "points": points(entries, step_seconds),
        "events": [decision_entry(e) for e in entries if e.applies or e.kind is not DECISION],
    }


def points(entries: Iterable[LogEntry], step_seconds: float) -> list[HistoryPoint]:
    """Capacity and metrics over time, oldest first.

    There is one point for each step, and another one for each change of the capacity or the desired
    capacity within a step. A point holds the highest values of its step.
    """
    by_step: dict[tuple[int, int, int | None], HistoryPoint] = {}
    for entry in sorted(entries, key=lambda e: e.time):
        if entry.current is None or not entry.seen:
            continue
        step = int(entry.time.timestamp() // step_seconds)
        first: HistoryPoint = {
            "time": format_time(entry.time),
            "capacity": entry.current,
            "desired": entry.desired,
            "metrics": {},
            "age_minutes": None,
            "age_at_most_minutes": None,
        }
        point = by_step.setdefault((step, entry.current, entry.desired), first)
        for name, samples in entry.seen.items():
            if name != CAPACITY_METRIC:
                highest = max(sample.value for sample in samples)
                point["metrics"][name] = _highest(point["metrics"].get(name), highest)
        point["age_minutes"] = _highest(point["age_minutes"], age_minutes(entry.evidence))
        at_most = _evidence(entry.evidence).get(AGE_AT_MOST)
        point["age_at_most_minutes"] = _highest(point["age_at_most_minutes"], at_most)
    return list(by_step.values())


def _highest(first: float | None, second: float | None) -> float | None:
    return max((value for value in (first, second) if value is not None), default=None)


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
