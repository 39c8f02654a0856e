"""Measures the entries of the decision log that are written, for telemetry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.learning.backlogs import age_minutes
from shared.autoscaling.learning.throughput import rate_estimate
from shared.autoscaling.policy import Resource
from shared.autoscaling.state import ScalingState
from shared.values.metering import Measurement


def measured(
    entries: Iterable[LogEntry], state: ScalingState, resources: Mapping[str, Resource]
) -> Iterator[Measurement]:
    """The measurements of entries that were written together with the state of their resource."""
    for entry in entries:
        if entry.kind is EntryKind.DECISION:
            yield from _of_decision(entry, state)
            if declared := resources.get(entry.resource_name):
                yield from _of_resource(declared, state)
        else:
            kind = {"resource": entry.resource_name, "kind": str(entry.kind)}
            yield "autoscaler.log", 1, kind


def _of_decision(entry: LogEntry, state: ScalingState) -> Iterator[Measurement]:
    resource = {"resource": entry.resource_name}
    yield "autoscaler.decisions", 1, {**resource, "outcome": _outcome(entry), "guard": entry.guard}
    if entry.current is not None and entry.desired is not None:
        yield "autoscaler.capacity", entry.current, resource
        yield "autoscaler.desired", entry.desired, resource
    if entry.metric and entry.value is not None:
        metric = {**resource, "metric": entry.metric}
        yield "autoscaler.metric", entry.value, metric
        history = state.histories.get(entry.metric)
        if history and history.samples:
            age = (entry.time - history.samples[-1].time).total_seconds()
            yield "autoscaler.sample.age", max(age, 0), metric
    age_in_minutes = age_minutes(entry.evidence)
    if age_in_minutes is not None:
        yield "autoscaler.age", 60 * age_in_minutes, resource


def _of_resource(declared: Resource, state: ScalingState) -> Iterator[Measurement]:
    """What is declared for the resource, and what was learned about it."""
    resource = {"resource": declared.name}
    yield "autoscaler.minimum", declared.limits.minimum, resource
    yield "autoscaler.maximum", declared.limits.maximum, resource
    yield "autoscaler.age.limit", 60 * declared.goal.age_limit_minutes, resource
    estimate = rate_estimate(declared.throughput, state.learned)
    if estimate is not None:
        yield "autoscaler.throughput", estimate.likely, resource
        yield "autoscaler.throughput.low", estimate.low, resource
        yield "autoscaler.throughput.error", estimate.relative_error, resource


def _outcome(entry: LogEntry) -> str:
    if not entry.applies or entry.current is None or entry.desired is None:
        return "hold"
    return "out" if entry.desired > entry.current else "in"
