"""Learning how fast instances work, and how long they take to come, from confirmed changes.

While a queue is never empty, its backlog changes by ``λ - μ·n`` per minute, so a change by ``dn``
instances bends it by ``ds = -μ·dn + Δλ``. Regression of ds on dn through the origin gives
μ = -Σ ds·dn / Σ dn²: the true rate of a busy instance, not the throughput observed, which idle
instances lower. But arrivals and changes go together: more instances are ordered when load rises,
and often come as it falls again, so scale-outs overrate μ and scale-ins underrate it. Therefore
the two are kept apart, and only where both agree is μ known; the lower one is taken. A change
whose bend is far off does not count (see outliers.py).

Where somebody counts finished or incoming items that is better by far: see busy_rate.py.

The dead time is the mean wait from order to confirmation of scale-outs that went through at once.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise

from shared.autoscaling.declaring import Service
from shared.autoscaling.desired import ActionStatus, Desired
from shared.autoscaling.learning.outliers import Pair, believable, contradicted, with_recent
from shared.autoscaling.learning.throughput import Counted, rate_of, with_finished
from shared.autoscaling.measurements import CAPACITY_METRIC, MetricValue
from shared.autoscaling.state import Learned, Lessons, ScalingState

SLOPE_MINUTES = 4
SLOPE_SAMPLES_MIN = 3
CHANGES_MIN = 2.9
"""Three, less what they have lost in weight."""
DEAD_TIMES_MIN = 3
DEAD_TIME_MINUTES_MAX = 30
RELATIVE_ERROR_MAX = 0.25
MEMORY = 0.98
"""Weight of what was known before at each new change: some fifty changes are remembered."""


@dataclass(frozen=True, slots=True)
class LearnedEstimate:
    """A value and its standard error, both in the unit of the value."""

    value: float
    standard_error: float

    @property
    def confident(self) -> bool:
        known = 0 < self.value < math.inf
        return known and self.standard_error <= RELATIVE_ERROR_MAX * self.value


def known_service(fixed: Service, learned: Learned) -> Service:
    """What is fixed by hand counts; else what was learned, once that is known well enough."""
    if fixed.rate_per_instance_minute is not None and fixed.dead_time_minutes is not None:
        return fixed
    rate, dead_time = fixed.rate_per_instance_minute, fixed.dead_time_minutes
    relative_error = fixed.relative_error
    estimate = best_rate(learned) if rate is None else None
    if estimate is not None:
        rate, relative_error = estimate.value, estimate.standard_error / estimate.value
    if dead_time is None and learned.dead_times >= DEAD_TIMES_MIN:
        dead_time = learned.dead_time_minutes
    return replace(
        fixed,
        rate_per_instance_minute=rate,
        dead_time_minutes=dead_time,
        relative_error=relative_error,
    )


def best_rate(learned: Learned) -> LearnedEstimate | None:
    """From finished items where that is known well enough, else from changes of capacity."""
    counted = rate_of(learned.work)
    for estimate in (LearnedEstimate(*counted) if counted else None, learned_rate(learned)):
        if estimate is not None and estimate.confident:
            return estimate
    return None


def learned_rate(learned: Learned) -> LearnedEstimate | None:
    """Items per busy instance and minute; None before enough changes in both directions.

    The two estimates err to opposite sides: half their distance is an error too.
    """
    out, into = _estimate(learned.out), _estimate(learned.into)
    if out is None or into is None:
        return None
    distance = abs(out.value - into.value) / 2
    error = max(out.standard_error, into.standard_error, distance)
    return LearnedEstimate(min(out.value, into.value), error)


def _estimate(lessons: Lessons) -> LearnedEstimate | None:
    lessons = _with_sums(_sound(lessons), believable(lessons.recent))
    if lessons.changes < CHANGES_MIN or lessons.dn_dn <= 0:
        return None
    rate = -lessons.ds_dn / lessons.dn_dn
    unexplained = max(lessons.ds_ds - rate * rate * lessons.dn_dn, 0.0)
    variance = unexplained / (lessons.changes - 1) / lessons.dn_dn
    return LearnedEstimate(rate, math.sqrt(variance))


def lesson_due(state: ScalingState, now: datetime) -> bool:
    """Whether some minutes have passed since a confirmed change that was not looked at yet."""
    desired = state.desired
    if desired is None or desired.changed_at is None or desired.epoch <= state.learned.epoch:
        return False
    confirmed = desired.status is ActionStatus.CONFIRMED
    return confirmed and now >= desired.changed_at + timedelta(minutes=SLOPE_MINUTES)


def learn(state: ScalingState, backlog_name: str | None) -> ScalingState:
    """The state with the lesson of the last confirmed change, where one is due."""
    desired = state.desired
    assert desired is not None
    assert desired.changed_at is not None
    learned = _with_dead_time(replace(state.learned, epoch=desired.epoch), desired)
    backlog = state.histories.get(backlog_name or "")
    capacity = state.histories.get(CAPACITY_METRIC)
    if backlog is not None and capacity is not None:
        learned = _with_slopes(learned, desired.changed_at, backlog.samples, capacity.samples)
    return replace(state, learned=learned)


def learn_finished(state: ScalingState, service: Service, backlog_name: str | None) -> ScalingState:
    """The state with what finished or incoming items have taught since it was asked last."""
    counted = state.histories.get(service.counted_metric or "")
    backlog = state.histories.get(backlog_name or "")
    capacity = state.histories.get(CAPACITY_METRIC)
    if counted is None or backlog is None or capacity is None:
        return state
    found = Counted(counted.samples, incoming=service.completed_metric is None)
    work = with_finished(state.learned.work, found, backlog.samples, capacity.samples)
    if work is state.learned.work:
        return state
    return replace(state, learned=replace(state.learned, work=work))


def _with_dead_time(learned: Learned, desired: Desired) -> Learned:
    """Only of orders that were neither deferred nor given up: other waits are no dead time."""
    assert desired.changed_at is not None
    waited_minutes = (desired.changed_at - desired.requested_at).total_seconds() / 60
    out = desired.target > desired.previous
    if not out or desired.attempts or not 0 < waited_minutes <= DEAD_TIME_MINUTES_MAX:
        return learned
    count = learned.dead_times + 1
    weight = max(1 / count, 1 - MEMORY)
    mean = learned.dead_time_minutes + weight * (waited_minutes - learned.dead_time_minutes)
    return replace(learned, dead_times=count, dead_time_minutes=mean)


def _with_slopes(
    learned: Learned,
    changed_at: datetime,
    backlog: Sequence[MetricValue],
    capacity: Sequence[MetricValue],
) -> Learned:
    span = timedelta(minutes=SLOPE_MINUTES)
    before = _busy_slope(backlog, changed_at - span, changed_at)
    after = _busy_slope(backlog, changed_at, changed_at + span)
    dn = _single_change(capacity, changed_at - span, changed_at + span)
    if before is None or after is None or dn == 0:
        return learned
    if dn > 0:
        return replace(learned, out=_with(learned.out, dn, after - before))
    return replace(learned, into=_with(learned.into, dn, after - before))


def _with(lessons: Lessons, dn: float, ds: float) -> Lessons:
    recent, older = with_recent(lessons.recent, (ds, dn))
    return _with_sums(_sound(replace(lessons, recent=recent)), older)


def _sound(lessons: Lessons) -> Lessons:
    """Without sums that cannot be right."""
    if contradicted(lessons.ds_dn, lessons.dn_dn, lessons.recent):
        return Lessons(recent=lessons.recent)
    return lessons


def _with_sums(lessons: Lessons, pairs: Sequence[Pair]) -> Lessons:
    for ds, dn in pairs:
        lessons = Lessons(
            changes=MEMORY * lessons.changes + 1,
            dn_dn=MEMORY * lessons.dn_dn + dn * dn,
            ds_dn=MEMORY * lessons.ds_dn + ds * dn,
            ds_ds=MEMORY * lessons.ds_ds + ds * ds,
            recent=lessons.recent,
        )
    return lessons


def _single_change(samples: Sequence[MetricValue], start: datetime, end: datetime) -> float:
    """By how much the capacity changed between the two times; 0 unless exactly once."""
    first = max(bisect_right(samples, start, key=lambda sample: sample.time) - 1, 0)
    values = [sample.value for sample in samples[first:] if sample.time <= end]
    changes = [b - a for a, b in pairwise(values) if a != b]
    return changes[0] if len(changes) == 1 else 0.0


def _busy_slope(samples: Sequence[MetricValue], start: datetime, end: datetime) -> float | None:
    """Least-squares slope in items per minute; None where the queue ran empty or was not seen."""
    points = [
        ((s.time - start).total_seconds() / 60, s.value) for s in samples if start <= s.time <= end
    ]
    if len(points) < SLOPE_SAMPLES_MIN or any(value <= 0 for _, value in points):
        return None
    mean_x = sum([x for x, _ in points]) / len(points)
    mean_y = sum([y for _, y in points]) / len(points)
    spread = sum([(x - mean_x) ** 2 for x, _ in points])
    if spread <= 0:
        return None
    return sum([(x - mean_x) * (y - mean_y) for x, y in points]) / spread
