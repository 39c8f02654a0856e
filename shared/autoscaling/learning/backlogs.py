"""Finds the backlogs of a resource, and those that have not fallen for long. Pure. More work than
the instances can finish has the same effect as stopped workers, so such a backlog is only reported,
unless counts say that nothing was finished: a guard then prevents scale-out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from shared.autoscaling.learning.throughput import rate_estimate, start_up_minutes
from shared.autoscaling.policy import Resource
from shared.autoscaling.state import ScalingState, Stall
from shared.values.measurements import (
    CAPACITY_METRIC,
    NO_SAMPLES,
    Evidence,
    Samples,
)

LIMIT_MIN = timedelta(minutes=10)
COMPLETIONS = 6
"""In the time that the instances usually need for this many items, a backlog should fall."""
AGE_MINUTES_MAX = 7 * 1440.0
"""Of an item that would be older, the age is not known."""
MINUTES_MAX = 1440.0
"""The limit after which a backlog counts as unfallen is at most a day."""
GAP_MAX = timedelta(minutes=10)
"""A longer time without samples hides whether the backlog fell."""
COUNTS_LATE_MAX = timedelta(minutes=10)
"""Counts of finished items that are older say nothing about the present."""


def age_minutes(evidence: Evidence) -> float | None:
    """The age of the oldest waiting item if all instances work, by Little's law: backlog ÷ arrivals
    per minute. None if the evidence lacks one of them, or if almost nothing arrives."""
    backlog, arrivals = evidence.get("backlog"), evidence.get("arrivals_per_minute")
    if not isinstance(backlog, int | float) or not isinstance(arrivals, int | float):
        return None
    if not backlog:
        return 0.0
    age = backlog / arrivals if arrivals else math.inf
    return age if age <= AGE_MINUTES_MAX else None


AGE_AT_MOST = "age_at_most_minutes"
AGES_DIFFER_MINUTES = 1.0
"""The longest possible age is stated if it exceeds the estimate by more than this."""


def with_longest_age(
    resource: Resource, stalled: Sequence[Stall], evidence: Evidence, now: datetime
) -> Evidence:
    """The evidence with the longest time that the oldest item may have waited, which is as long as
    nothing was seen to be finished if the instances do not all work."""
    age = age_minutes(evidence)
    for stall in stalled if age is not None else ():
        longest = (now - (stall.oldest_at or now)) / timedelta(minutes=1)
        if longest > (age or 0.0) + AGES_DIFFER_MINUTES and stall.metric == resource.backlog_metric:
            return {**evidence, AGE_AT_MOST: longest}
    return evidence


@dataclass(frozen=True, slots=True)
class Unfallen:
    """A backlog that has not fallen for longer than ``fall_limit``, although work waits."""

    stall: Stall
    seen_until: datetime
    limit: timedelta
    none_finished: bool
    """True if items are counted, and none has been counted as finished since the stall began."""

    @property
    def minutes(self) -> float:
        return (self.seen_until - self.stall.since) / timedelta(minutes=1)

    @property
    def text(self) -> str:
        """What has been observed, such as "orders has not fallen for 42 min"."""
        name, minutes = self.stall.metric, f"{self.minutes:.0f} min"
        if not self.none_finished:
            return f"{name} has not fallen for {minutes}"
        return f"{name} has not fallen for {minutes}, and nothing was counted as finished"


def stalls(resource: Resource, state: ScalingState) -> list[Stall]:
    """The present stall of each backlog of the resource that is waiting."""
    present: list[Stall] = []
    before = {stall.metric: stall for stall in state.learned.stalls}
    for name, source in resource.metrics.items():
        samples = state.histories.get(name, NO_SAMPLES).samples
        newest = samples[-1] if samples and source.counts_backlog else None
        if newest is None or newest.status or newest.value <= 0:
            continue
        known = before.get(name)
        found = _stall(name, samples, known)
        for count in reversed(_counts(resource, state, name)):
            if count.value > 0:
                found = Stall(name, count.time, count.time) if count.time > found.since else found
                break
        present.append(known if known and known.since == found.since else found)
    return present


def _stall(name: str, samples: Samples, known: Stall | None) -> Stall:
    """The stall at the newest sample, at which work is waiting. It began no earlier than the entity
    was last disabled."""
    after = samples[-1]
    for before in reversed(samples[:-1]):
        if before.status:
            break
        if before.value <= 0:
            return Stall(name, before.time, before.time)
        if before.value > after.value:
            return Stall(name, after.time, after.time)
        if after.time - before.time > GAP_MAX:
            return Stall(name, after.time)
        after = before
    return known if known is not None and known.since <= after.time else Stall(name, after.time)


def with_stalls(
    resource: Resource, state: ScalingState, stalled: Sequence[Stall], age: float | None
) -> ScalingState:
    """The state, in which stalls are kept for longer than samples are. ``age`` is the present age
    in minutes of the oldest item. At the beginning of a stall, it is added to the time that items
    may have waited. A stall of one sample is not kept, because the next one usually ends it."""
    known = state.learned.stalls
    kept: list[Stall] = []
    for stall in stalled:
        if stall.since == state.histories[stall.metric].samples[-1].time:
            continue
        is_new = stall not in known and stall.oldest_at is not None and age is not None
        if is_new and stall.metric == resource.backlog_metric:
            kept.append(replace(stall, oldest_at=stall.since - timedelta(minutes=age or 0.0)))
        else:
            kept.append(stall)
    if tuple(kept) == known:
        return state
    return replace(state, learned=replace(state.learned, stalls=tuple(kept)))


def unfallen(
    resource: Resource, state: ScalingState, stalled: Sequence[Stall] | None = None
) -> list[Unfallen]:
    """The backlogs that have not fallen for longer than ``fall_limit``. ``stalled`` is the result
    of ``stalls``, if the caller has it already."""
    found = []
    for stall in stalls(resource, state) if stalled is None else stalled:
        newest = state.histories[stall.metric].samples[-1]
        if newest.time - stall.since <= LIMIT_MIN:  # most often
            continue
        limit = fall_limit(resource, state)
        if newest.time - stall.since > limit and not _in_process(resource, state, newest.value):
            none = _none_finished(resource, state, stall)
            found.append(Unfallen(stall, newest.time, limit, none))
    return found


def fall_limit(resource: Resource, state: ScalingState) -> timedelta:
    """The time within which a backlog falls if the instances work: the longest of ``LIMIT_MIN``,
    the age limit, the time from one scale-out until the next takes effect, and the time in which
    ``COMPLETIONS`` items are usually finished."""
    estimate = rate_estimate(resource.throughput, state.learned)
    start_up = start_up_minutes(resource.throughput, state.learned)
    minutes = [
        LIMIT_MIN / timedelta(minutes=1),
        resource.goal.age_limit_minutes,
        resource.cooldown.scale_out_seconds / 60 + start_up,
    ]
    if estimate is not None:
        minutes.append(COMPLETIONS / (estimate.likely * _instances(state)))
    return timedelta(minutes=min(max(minutes), MINUTES_MAX))


def _instances(state: ScalingState) -> float:
    newest = state.histories.get(CAPACITY_METRIC, NO_SAMPLES).latest
    return newest.value if newest else 1.0


def _in_process(resource: Resource, state: ScalingState, value: float) -> bool:
    """True if all counted items may be in process, as long as it is not known how long one
    takes."""
    unknown = rate_estimate(resource.throughput, state.learned) is None
    return unknown and value <= _instances(state)


def _none_finished(resource: Resource, state: ScalingState, stall: Stall) -> bool:
    """True if finished items are counted, and all counts since the stall began are zero."""
    counted = _counts(resource, state, stall.metric)
    until = state.histories[stall.metric].samples[-1].time
    return bool(counted) and counted[-1].time > max(stall.since, until - COUNTS_LATE_MAX)


def _counts(resource: Resource, state: ScalingState, name: str) -> Samples:
    """The counts of the finished items of this backlog; empty if they are not counted."""
    completed = resource.throughput.completed_metric
    if completed is None or resource.backlog_metric != name:
        return ()
    return state.histories.get(completed, NO_SAMPLES).samples
