"""One sample's way through the state: merge, confirm, decide, learn, request. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from shared.autoscaling.actions import confirm_if_observed, request
from shared.autoscaling.decide import decide, remember, samples_of
from shared.autoscaling.guards import seconds_without, waited_seconds
from shared.autoscaling.learning import learn, learn_finished, lesson_due
from shared.autoscaling.model import (
    CAPACITY_METRIC,
    Decision,
    Metric,
    MetricSource,
    Resource,
    ScalingState,
    StorageQueue,
)
from shared.autoscaling.samples import MergeOutcome, merge
from shared.quick import quick


@quick
@dataclass(frozen=True, slots=True)
class Step:
    """The state after a sample, and the decision where there was one to take."""

    state: ScalingState
    outcome: MergeOutcome
    decision: Decision | None = None
    confirmed: bool = False
    """Whether the sample showed that a pending change has come to pass."""
    decided_on: ScalingState | None = None
    """What the decision was taken from."""


def advance(resource: Resource, state: ScalingState, metric: Metric, now: datetime) -> Step:
    """What one sample does. Raises BadMessage, see ``merge``.

    A count of finished or incoming items only teaches. The target's own capacity decides nothing
    either, but it may confirm what was decided; and it keeps the app deciding while every other
    metric is missing.
    """
    counts = metric.name == resource.service.counted_metric
    window_seconds = resource.history_seconds if counts else resource.window_seconds
    merged = merge(state, metric, now, window_seconds, resource.history_seconds)
    if merged.outcome is not MergeOutcome.ACCEPTED:
        return Step(merged.state, merged.outcome)
    new = merged.state
    confirmed = False
    if metric.name == CAPACITY_METRIC:
        new = confirm_if_observed(new, metric.value)
        confirmed = new.desired is not state.desired
        if not _all_missing(resource, new, now):
            return Step(new, merged.outcome, None, confirmed)
    if counts:
        return Step(_with_finished(resource, new), merged.outcome)
    decided_on = new
    decision = decide(resource, new, now)
    new = remember(resource, new, decision)
    if lesson_due(new, now):
        new = learn(new, _backlog_name(resource))
    if resource.service.counted_metric is not None:
        new = _with_finished(resource, new)
    if decision.applies:
        new = replace(new, desired=request(decision, new.desired))
    return Step(new, merged.outcome, decision, confirmed, decided_on)


def _with_finished(resource: Resource, state: ScalingState) -> ScalingState:
    return learn_finished(state, resource.service, _backlog_name(resource))


def _all_missing(resource: Resource, state: ScalingState, now: datetime) -> bool:
    """True where no other metric has come for so long that it counts as missing."""
    for name in resource.metrics:
        if name == resource.service.counted_metric:
            continue
        silent = seconds_without(samples_of(state, name), now)
        if silent is None:
            silent = waited_seconds(samples_of(state, CAPACITY_METRIC), now)
        if silent <= resource.guards.missing_for(name).after_seconds:
            return False
    return True


def _backlog_name(resource: Resource) -> str | None:
    """The one metric that counts waiting items and whose slope tells how fast instances work."""
    named = getattr(resource.policy, "metric_names", tuple(resource.metrics))
    names = {name for name in named if counts_backlog(resource.metrics.get(name))}
    return names.pop() if len(names) == 1 else None


def counts_backlog(source: MetricSource | None) -> bool:
    """True for what counts waiting items, unlike dead letters and scheduled messages."""
    return isinstance(source, StorageQueue) or getattr(source, "count", None) == "active"
