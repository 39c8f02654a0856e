"""One sample's way through the state: merge, confirm, decide, learn, request. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from shared.autoscaling.actions import confirm_if_observed, request
from shared.autoscaling.decide import decide, remember
from shared.autoscaling.guards import is_missing
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
from shared.autoscaling.observing import samples_of
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
    counted = resource.service.counted_metric
    counts = metric.name == counted
    window_seconds = resource.history_seconds if counts else resource.window_seconds
    merged = merge(state, metric, now, window_seconds, resource.history_seconds)
    new, outcome = merged.state, merged.outcome
    if outcome is not MergeOutcome.ACCEPTED:
        return Step(new, outcome)
    confirmed = False
    if metric.name == CAPACITY_METRIC:
        new = confirm_if_observed(new, metric.value)
        confirmed = new.desired is not state.desired
        if not _all_missing(resource, new, now):
            return Step(new, outcome, None, confirmed)
    if counts:
        return Step(_with_finished(resource, new), outcome)
    decided_on = new
    decision = decide(resource, new, now)
    new = remember(resource, new, decision)
    if lesson_due(new, now):
        new = learn(new, _backlog_name(resource))
    if counted is not None:
        new = _with_finished(resource, new)
    if decision.applies:
        new = new.with_desired(request(decision, new.desired))
    return Step(new, outcome, decision, confirmed, decided_on)


def _with_finished(resource: Resource, state: ScalingState) -> ScalingState:
    return learn_finished(state, resource.service, _backlog_name(resource))


def _all_missing(resource: Resource, state: ScalingState, now: datetime) -> bool:
    """True where no other metric has come for so long that it counts as missing."""
    counted = resource.service.counted_metric
    for name in resource.metrics:
        rule, samples = resource.guards.missing_for(name), samples_of(state, name)
        if name == counted:
            continue
        # One that never came is missing once the app has had the time to read it.
        if not is_missing(samples or samples_of(state, CAPACITY_METRIC)[:1], rule, now):
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
