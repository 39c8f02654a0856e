"""A sample's way through the state: merge, confirm, decide, learn, request. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import assert_never

from shared.autoscaling.actions import as_of, confirm_if_observed, request
from shared.autoscaling.deciding.decide import Decision, decide, remember
from shared.autoscaling.deciding.guards import is_missing
from shared.autoscaling.deciding.samples import MergeOutcome, merge, samples_of
from shared.autoscaling.declaring import (
    IngestionBreaker,
    MetricSource,
    PlanCapacity,
    PushedMetric,
    ServiceBusQueue,
    ServiceBusSubscription,
    StorageQueue,
)
from shared.autoscaling.errors import BadMessage
from shared.autoscaling.learning import change_to_learn_from, learn_from_change, learn_from_counts
from shared.autoscaling.measurements import CAPACITY_METRIC, Metric
from shared.autoscaling.policy import Resource, described
from shared.autoscaling.state import ScalingState


@dataclass(frozen=True, slots=True)
class Transition:
    """The state after a sample, and the decision where there was one to take."""

    state: ScalingState
    outcome: MergeOutcome
    decision: Decision | None = None
    confirmed: bool = False
    """Whether the sample showed that a pending change has come to pass."""
    decided_on: ScalingState | None = None
    """What the decision was taken from."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The step of all samples that came together, and what became of each."""

    step: Transition
    decided_by: Metric | None = None
    """The newest of the samples that led to the decision."""
    accepted: int = 0
    duplicates: int = 0
    stale: tuple[Metric, ...] = ()
    refused: tuple[BadMessage, ...] = ()


def advance(resource: Resource, state: ScalingState, metric: Metric, now: datetime) -> Transition:
    """What one sample does. Raises BadMessage, see ``merge``.

    A count of finished or incoming items only teaches. The target's own capacity decides nothing
    either, but it may confirm what was decided; and it keeps the app deciding while every other
    metric is missing.
    """
    state = as_of(state, now)
    taken, outcome = _taken_in(resource, state, metric, now)
    if outcome is not MergeOutcome.ACCEPTED:
        return Transition(taken, outcome)
    if metric.name == resource.throughput.counted_metric:
        return Transition(_with_finished(resource, taken), outcome)
    confirmed = taken.desired is not state.desired
    if not _decides(resource, taken, metric, now):
        return Transition(taken, outcome, None, confirmed)
    return _decided(resource, taken, now, confirmed)


def advance_all(
    resource: Resource, state: ScalingState, metrics: Iterable[Metric], now: datetime
) -> Steps:
    """What samples do that came together: all are taken in, then there is one decision.

    The samples that are kept are those that ``advance`` keeps for one after the other in the same
    order, and so is what they confirm of the order that stands. What is learned and decided is
    learned and decided once, when all are known. A single sample does what it does by ``advance``.
    What ``advance`` refuses does not keep the others out.
    """
    new = state = as_of(state, now)
    refused = list[BadMessage]()
    by_outcome: dict[MergeOutcome, list[Metric]] = {outcome: [] for outcome in MergeOutcome}
    for metric in metrics:
        try:
            new, outcome = _taken_in(resource, new, metric, now)
            by_outcome[outcome].append(metric)
        except BadMessage as error:
            refused.append(error)
    accepted, stale = by_outcome[MergeOutcome.ACCEPTED], by_outcome[MergeOutcome.STALE]
    duplicates = len(by_outcome[MergeOutcome.DUPLICATE])
    if any(metric.name == resource.throughput.counted_metric for metric in accepted):
        new = _with_finished(resource, new)
    step = Transition(new, MergeOutcome.ACCEPTED, None, new.desired is not state.desired)
    newest = _newest([each for each in accepted if _decides(resource, new, each, now)])
    if newest is not None:
        step = _decided(resource, new, now, step.confirmed)
    return Steps(step, newest, len(accepted), duplicates, tuple(stale), tuple(refused))


def _taken_in(
    resource: Resource, state: ScalingState, metric: Metric, now: datetime
) -> tuple[ScalingState, MergeOutcome]:
    """The state that knows the sample, and nothing decided on it. Raises BadMessage."""
    counts = metric.name == resource.throughput.counted_metric
    window_seconds = resource.history_seconds if counts else resource.window_seconds
    merged = merge(state, metric, now, window_seconds, resource.history_seconds)
    new = merged.state
    if merged.outcome is MergeOutcome.ACCEPTED and metric.name == CAPACITY_METRIC:
        new = confirm_if_observed(new, metric.value)
    return new, merged.outcome


def _decides(resource: Resource, state: ScalingState, metric: Metric, now: datetime) -> bool:
    if metric.name == CAPACITY_METRIC:
        return _all_missing(resource, state, now)
    return metric.name != resource.throughput.counted_metric


def _newest(metrics: Sequence[Metric]) -> Metric | None:
    return max(metrics, key=lambda metric: metric.value.time, default=None)


def _decided(resource: Resource, state: ScalingState, now: datetime, confirmed: bool) -> Transition:
    decision = decide(resource, state, now)
    new = remember(resource, state, decision)
    if change_to_learn_from(new, now):
        new = learn_from_change(new, _backlog_name(resource))
    if resource.throughput.counted_metric is not None:
        new = _with_finished(resource, new)
    if decision.applies:
        new = new.with_desired(request(decision, new.desired))
    return Transition(new, MergeOutcome.ACCEPTED, decision, confirmed, state)


def _with_finished(resource: Resource, state: ScalingState) -> ScalingState:
    return learn_from_counts(state, resource.throughput, _backlog_name(resource))


def _all_missing(resource: Resource, state: ScalingState, now: datetime) -> bool:
    """True where no other metric has come for so long that it counts as missing."""
    counted = resource.throughput.counted_metric
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
    named = described(resource.policy).metric_names
    read = tuple(resource.metrics) if named is None else named
    names = {name for name in read if counts_backlog(resource.metrics.get(name))}
    return names.pop() if len(names) == 1 else None


def counts_backlog(source: MetricSource | None) -> bool:
    """True for what counts waiting items, unlike dead letters and scheduled messages."""
    if isinstance(source, StorageQueue):
        return True
    if isinstance(source, ServiceBusQueue | ServiceBusSubscription):
        return source.count == "active"
    if source is None or isinstance(source, PlanCapacity | IngestionBreaker | PushedMetric):
        return False
    assert_never(source)  # each new source is to be decided about
