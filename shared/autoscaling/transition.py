"""Applies new samples to the state: merges them, confirms actions, learns, decides and requests a
change. All functions are pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from shared.autoscaling.acting.actions import as_of, confirm_if_observed, request
from shared.autoscaling.deciding import clocks
from shared.autoscaling.deciding.decide import Decision, decide, remember, within_plan
from shared.autoscaling.deciding.guards import is_missing
from shared.autoscaling.deciding.samples import (
    Merged,
    merge,
    samples_of,
    working,
)
from shared.autoscaling.learning.backlog_rate import (
    INTERVAL,
    resumed,
    with_backlog,
    with_finished,
)
from shared.autoscaling.learning.backlogs import (
    age_minutes,
    fall_limit,
    stalls,
    unfallen,
    with_stalls,
)
from shared.autoscaling.learning.claims import (
    COUNTS_KEPT,
    START_UP_MINUTES_MIN,
    undoubted,
    with_counted_rate,
    with_growth,
)
from shared.autoscaling.learning.counts import ABANDONED, failures_metric
from shared.autoscaling.learning.throughput import (
    Counted,
    counted_rate,
    learn_wait,
    start_up_minutes,
    with_counted,
)
from shared.autoscaling.policy import Resource
from shared.autoscaling.state import BusyIntervals, Learned, RateClaim, ScalingState, Stall
from shared.values.measurements import (
    CAPACITY_METRIC,
    Metric,
    received,
    span,
)


@dataclass(frozen=True, slots=True)
class Transition:
    """The state after the samples of a message, and their decision."""

    state: ScalingState
    merged: Merged
    decision: Decision | None = None
    confirmed: bool = False
    """True if a sample confirmed a pending action."""
    decided_on: ScalingState | None = None
    """The state on which the decision is based."""
    decided_by: Metric | None = None
    """The newest of the samples that led to the decision."""


def advance(
    resource: Resource,
    state: ScalingState,
    metrics: Iterable[Metric],
    now: datetime,
    *,
    decides: bool = True,
) -> Transition:
    """Apply all samples of a message, then take one decision.

    A sample that ``merge`` refuses does not affect the others. A count of items only updates the
    learned throughput. A sample of the capacity may confirm a pending action, and leads to a
    decision only while every other metric is missing. With ``decides=False``, the samples are only
    merged, because another version of the rules is in force.
    """
    state = as_of(state, now)
    found = merged(resource, state, metrics, now, decides=decides)
    new, accepted = found.state, found.accepted
    if decides and any(metric.name == resource.throughput.counted_metric for metric in accepted):
        new = _learned(resource, new, now)
    confirmed, decided_on, decision, newest = new.desired is not state.desired, None, None, None
    if deciding := [each for each in accepted if decides and _decides(resource, new, each, now)]:
        decided_on, new, decision = _decided(resource, new, now)
        newest = max(deciding, key=lambda metric: metric.value.time)
    return Transition(new, found, decision, confirmed, decided_on, newest)


def merged(
    resource: Resource,
    state: ScalingState,
    metrics: Iterable[Metric],
    now: datetime,
    *,
    decides: bool = True,
) -> Merged:
    """The state with the samples merged, and a pending action confirmed that they show to be done,
    before any decision."""
    found = merge(resource, state, metrics, now, decides=decides)
    new = found.state
    for metric in found.accepted:
        if metric.name == CAPACITY_METRIC:
            new = confirm_if_observed(new, metric.value)
    return found if new is found.state else replace(found, state=new)


def _decides(resource: Resource, state: ScalingState, metric: Metric, now: datetime) -> bool:
    if metric.name == CAPACITY_METRIC:
        return _all_missing(resource, state, now)
    return metric.name not in (resource.throughput.counted_metric, ABANDONED)


def _decided(
    resource: Resource, state: ScalingState, now: datetime
) -> tuple[ScalingState, ScalingState, Decision]:
    """The state on which the decision is based, the one after it, and the decision."""
    state, stalled = learn_wait(state), stalls(resource, state)
    if not resource.throughput.rate_trusted:
        state = _learned_from_backlog(resource, state, stalled, now)
    decision = decide(resource, state, now, stalled)
    if told := clocks.told(state):
        decision = replace(decision, reason=f"{decision.reason}; {told}")
    new = remember(resource, state, decision)
    new = with_stalls(resource, new, stalled, age_minutes(decision.evidence))
    if resource.throughput.counted_metric is not None:
        new = _learned(resource, new, now)
    if decision.applies:
        new = new.with_desired(request(decision, new.desired))
    return state, new, decision


def _learned_from_backlog(
    resource: Resource, state: ScalingState, stalled: Sequence[Stall], now: datetime
) -> ScalingState:
    """The state after learning from the samples of the backlog since the last call: not from a
    backlog that has not fallen for long, because the instances may not work, nor from that of a
    disabled entity."""
    name, known = resource.backlog_metric or "", state.learned.trend
    samples, capacities = samples_of(state, name), samples_of(state, CAPACITY_METRIC)
    if not samples or samples[-1].status or not capacities:
        return state
    claim = _claim(resource, state.learned)
    is_over = known.until is None or samples[-1].time >= known.until + INTERVAL
    if any(each.stall.metric == name for each in unfallen(resource, state, stalled)):
        trend = resumed(known, samples[-1].time)
    elif not is_over and claim == state.learned.claim:
        return state
    else:
        backlog, maximum = received(samples), within_plan(resource, state).limits.maximum
        trend = with_backlog(known, backlog, capacities, maximum, working(resource, state), claim)
    work = state.learned.work
    if claim is not None:
        if work.until and now - work.until > COUNTS_KEPT and not claim.refuted_at:
            work = BusyIntervals(work.until)
        starts_up = start_up_minutes(resource.throughput, state.learned)
        if counted_rate(work) is None and starts_up >= START_UP_MINUTES_MIN:
            claim = with_growth(claim, known, trend, now)
        trend = trend if claim.doubt else undoubted(trend, claim.told)
    return replace(state, learned=replace(state.learned, trend=trend, claim=claim, work=work))


def _claim(resource: Resource, learned: Learned) -> RateClaim | None:
    """The doubt about the rate that is set by hand; None if none is set, or if it is trusted."""
    told, known = resource.throughput.rate_per_instance_minute, learned.claim
    if told is None or resource.throughput.rate_trusted:
        return None
    return known if known and known.told == told else RateClaim(told)


def _learned(resource: Resource, state: ScalingState, now: datetime) -> ScalingState:
    """The state after learning from the counts of items since the last call."""
    throughput, known = resource.throughput, state.learned.work
    name = throughput.counted_metric or ""
    samples, series = samples_of(state, name), resource.source(name).series
    if not samples or (known.until is not None and samples[-1].time <= known.until):
        return state
    counted = Counted(
        samples,
        throughput.completed_metric is None,
        series.interval if series else None,
        fall_limit(resource, state),
        start_up_minutes(throughput, state.learned),
        samples_of(state, failures_metric(resource)),
    )
    backlog = received(samples_of(state, resource.backlog_metric or ""))
    read, trend = samples_of(state, CAPACITY_METRIC), state.learned.trend
    work = with_counted(known, counted, backlog, read)
    if work is known:
        return state
    if work.until and not counted.incoming:
        trend = with_finished(trend, samples, known.until, work.until, read)
    claim = _claim(resource, state.learned)
    if claim is not None and work.recent != known.recent and (found := counted_rate(work)):
        claim = with_counted_rate(claim, found, now) if found.sure else claim
    return replace(state, learned=replace(state.learned, work=work, trend=trend, claim=claim))


def _all_missing(resource: Resource, state: ScalingState, now: datetime) -> bool:
    """True if every metric counts as missing, apart from the capacity and the counted metric."""
    counted = resource.throughput.counted_metric
    for name, source in resource.metrics.items():
        rule, samples = resource.guards.missing_for(name), samples_of(state, name)
        if name == counted:
            continue
        # A metric without any sample counts as missing once the app has had time to read one.
        since = now - span(source.usual_lag_seconds)
        if not is_missing(samples or samples_of(state, CAPACITY_METRIC)[:1], rule, since):
            return False
    return True
