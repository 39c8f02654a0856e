"""Learning how fast instances work, and how long they take to come. Pure.

*From changes.* While a queue is never empty, its backlog changes by ``λ - μ·n`` per minute, so a
change by ``dn`` instances bends it by ``ds = -μ·dn + Δλ``. Regression of ds on dn through the
origin gives μ = -Σ ds·dn / Σ dn²: the true rate of a busy instance, not the throughput observed,
which idle instances lower. But arrivals and changes go together: more instances are ordered when
load rises, and often come as it falls again, so scale-outs overrate μ and scale-ins underrate it.
Therefore the two are kept apart, and only where both agree is μ known; the lower one is taken.

*From counts.* Where finished or incoming items are counted, no change of capacity is needed, and
the result is better by far. In an interval in which the backlog never was empty and the number of
instances n did not change, all of them were busy, and

    finished = μ·n·minutes          (finished = incoming - growth of the backlog)

The ratio estimator over such intervals is μ = Σ finished / Σ n·minutes, its standard error that of
the residuals (Cochran, Sampling Techniques, 1977, chapter 6). Intervals shortly after a change are
left out: nobody knows exactly from when on a new instance works.

*Outliers.* An observation is a pair: a ``part`` and the ``whole`` that it grows with, such as items
and the busy minutes that they took. One that is far off must not count, for a sum never gets rid of
it again. Whether it is far off shows by the median of the last few ratios, which half of them may
miss: so the last few are kept one by one, and become part of sums as they are replaced by newer
ones. The limit is nine times the median absolute deviation above the median, but at least twice
and at most ten times the median. Nothing is too small: a count of zero is as good as any.

The dead time is the mean wait from order to confirmation of scale-outs that went through at once.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from statistics import median, median_low

from shared.autoscaling.declaring import Throughput
from shared.autoscaling.measurements import CAPACITY_METRIC, MetricValue, time_of
from shared.autoscaling.state import (
    ActionStatus,
    BusyIntervals,
    Desired,
    Learned,
    RegressionSums,
    ScalingState,
)

SLOPE_MINUTES = 4
SLOPE_SAMPLES_MIN = 3
OBSERVATIONS_MIN = 2.9
"""Three, less what they have lost in weight."""
DEAD_TIMES_MIN = 3
DEAD_TIME_MINUTES_MAX = 30
RELATIVE_ERROR_MAX = 0.25
CHANGES_WEIGHT = 0.98
"""Weight of what was known before at each new change: some fifty changes are remembered."""
INTERVALS_WEIGHT = 0.99
"""The same at each new interval: some hundred are remembered."""
SETTLING = timedelta(minutes=2)
"""After a change of capacity."""
INTERVAL_MAX = 1.5
"""An interval longer than this many usual ones lacks a sample, and with it what it counted."""

Pair = tuple[float, float]
"""Part and whole; the whole is not zero."""
RECENT_MAX = 15
JUDGED_MIN = 3
"""Of so few observations that are not zero nobody can say which one is wrong."""
DEVIATIONS_MAX = 9
TIMES_MIN, TIMES_MAX = 2, 10
PART_MAX = 1e18
"""Squares of larger ones make sums infinite."""

Samples = Sequence[MetricValue]


# --- what is known ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LearnedEstimate:
    """A value and its standard error, both in the unit of the value."""

    value: float
    standard_error: float

    @property
    def confident(self) -> bool:
        known = 0 < self.value < math.inf
        return known and self.standard_error <= RELATIVE_ERROR_MAX * self.value


def known_throughput(fixed: Throughput, learned: Learned) -> Throughput:
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
    out, into = _slope(learned.out), _slope(learned.into)
    if out is None or into is None:
        return None
    distance = abs(out.value - into.value) / 2
    error = max(out.standard_error, into.standard_error, distance)
    return LearnedEstimate(min(out.value, into.value), error)


def _slope(sums: RegressionSums) -> LearnedEstimate | None:
    sums = _with_changes(_sound_changes(sums), believable(sums.recent))
    if sums.changes < OBSERVATIONS_MIN or sums.dn_dn <= 0:
        return None
    rate = -sums.ds_dn / sums.dn_dn
    unexplained = max(sums.ds_ds - rate * rate * sums.dn_dn, 0.0)
    variance = unexplained / (sums.changes - 1) / sums.dn_dn
    return LearnedEstimate(rate, math.sqrt(variance))


@lru_cache(maxsize=256)
def rate_of(work: BusyIntervals) -> tuple[float, float] | None:
    """Items per busy instance and minute, and the standard error; None before enough intervals."""
    work = _with_intervals(_sound_intervals(work), believable(work.recent))
    if work.intervals < OBSERVATIONS_MIN or work.busy <= 0:
        return None
    rate = work.done / work.busy
    residual = work.done_done - 2 * rate * work.done_busy + rate * rate * work.busy_busy
    spread = max(residual, 0.0) * work.intervals / (work.intervals - 1)
    return rate, math.sqrt(spread) / work.busy


# --- from changes of capacity -----------------------------------------------------------------


def change_to_learn_from(state: ScalingState, now: datetime) -> bool:
    """Whether some minutes have passed since a confirmed change that was not looked at yet."""
    desired = state.desired
    if desired is None or desired.changed_at is None or desired.epoch <= state.learned.epoch:
        return False
    confirmed = desired.status is ActionStatus.CONFIRMED
    return confirmed and now >= desired.changed_at + timedelta(minutes=SLOPE_MINUTES)


def learn_from_change(state: ScalingState, backlog_name: str | None) -> ScalingState:
    """The state with what the last confirmed change teaches, where it is time for that."""
    desired = state.desired
    assert desired is not None
    assert desired.changed_at is not None
    learned = _with_dead_time(replace(state.learned, epoch=desired.epoch), desired)
    backlog = state.histories.get(backlog_name or "")
    capacity = state.histories.get(CAPACITY_METRIC)
    if backlog is not None and capacity is not None:
        learned = _with_slopes(learned, desired.changed_at, backlog.samples, capacity.samples)
    return replace(state, learned=learned)


def _with_dead_time(learned: Learned, desired: Desired) -> Learned:
    """Only of orders that were neither deferred nor given up: other waits are no dead time."""
    assert desired.changed_at is not None
    waited_minutes = (desired.changed_at - desired.requested_at).total_seconds() / 60
    out = desired.target > desired.previous
    if not out or desired.attempts or not 0 < waited_minutes <= DEAD_TIME_MINUTES_MAX:
        return learned
    count = learned.dead_times + 1
    weight = max(1 / count, 1 - CHANGES_WEIGHT)
    mean = learned.dead_time_minutes + weight * (waited_minutes - learned.dead_time_minutes)
    return replace(learned, dead_times=count, dead_time_minutes=mean)


def _with_slopes(
    learned: Learned, changed_at: datetime, backlog: Samples, capacity: Samples
) -> Learned:
    span = timedelta(minutes=SLOPE_MINUTES)
    before = _busy_slope(backlog, changed_at - span, changed_at)
    after = _busy_slope(backlog, changed_at, changed_at + span)
    dn = _single_change(capacity, changed_at - span, changed_at + span)
    if before is None or after is None or dn == 0:
        return learned
    if dn > 0:
        return replace(learned, out=_with_change(learned.out, dn, after - before))
    return replace(learned, into=_with_change(learned.into, dn, after - before))


def _with_change(sums: RegressionSums, dn: float, ds: float) -> RegressionSums:
    recent, older = with_recent(sums.recent, (ds, dn))
    return _with_changes(_sound_changes(replace(sums, recent=recent)), older)


def _sound_changes(sums: RegressionSums) -> RegressionSums:
    """Without sums that cannot be right."""
    if contradicted(sums.ds_dn, sums.dn_dn, sums.recent):
        return RegressionSums(recent=sums.recent)
    return sums


def _with_changes(sums: RegressionSums, pairs: Sequence[Pair]) -> RegressionSums:
    for ds, dn in pairs:
        sums = RegressionSums(
            changes=CHANGES_WEIGHT * sums.changes + 1,
            dn_dn=CHANGES_WEIGHT * sums.dn_dn + dn * dn,
            ds_dn=CHANGES_WEIGHT * sums.ds_dn + ds * dn,
            ds_ds=CHANGES_WEIGHT * sums.ds_ds + ds * ds,
            recent=sums.recent,
        )
    return sums


def _single_change(samples: Samples, start: datetime, end: datetime) -> float:
    """By how much the capacity changed between the two times; 0 unless exactly once."""
    first = max(bisect_right(samples, start, key=time_of) - 1, 0)
    values = [sample.value for sample in samples[first:] if sample.time <= end]
    changes = [b - a for a, b in pairwise(values) if a != b]
    return changes[0] if len(changes) == 1 else 0.0


def _busy_slope(samples: Samples, start: datetime, end: datetime) -> float | None:
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


# --- from counts of items ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Counted:
    """A metric whose samples say how many items were finished, or came, since the one before."""

    samples: Samples
    incoming: bool = False


def learn_from_counts(
    state: ScalingState, throughput: Throughput, backlog_name: str | None
) -> ScalingState:
    """The state with what finished or incoming items have taught since it was asked last."""
    samples = state.histories.get(throughput.counted_metric or "")
    backlog = state.histories.get(backlog_name or "")
    capacity = state.histories.get(CAPACITY_METRIC)
    if samples is None or backlog is None or capacity is None:
        return state
    counted = Counted(samples.samples, incoming=throughput.completed_metric is None)
    work = with_counted(state.learned.work, counted, backlog.samples, capacity.samples)
    if work is state.learned.work:
        return state
    return replace(state, learned=replace(state.learned, work=work))


def with_counted(
    work: BusyIntervals, counted: Counted, backlog: Samples, capacities: Samples
) -> BusyIntervals:
    """The sums with every interval that is over and was not looked at before."""
    samples = counted.samples
    if len(samples) < 2 or not backlog or not capacities:
        return work
    seen_until = min(backlog[-1].time, capacities[-1].time)
    first = 1 if work.until is None else max(bisect_right(samples, work.until, key=time_of), 1)
    if first == len(samples) or samples[first].time > seen_until:
        return work
    usual = median_low([after.time - before.time for before, after in pairwise(samples)])
    for before, after in pairwise(samples[first - 1 :]):
        if after.time > seen_until:
            break
        span = after.time - before.time
        if span <= INTERVAL_MAX * usual:
            instances = _busy_instances(before.time, after.time, backlog, capacities)
            busy_minutes = instances * span / timedelta(minutes=1)
            grown = _at(backlog, after.time) - _at(backlog, before.time) if counted.incoming else 0
            if busy_minutes > 0:
                work = _with_interval(work, after.value - grown, busy_minutes)
        work = replace(work, until=after.time)
    return work


def _with_interval(work: BusyIntervals, done: float, busy: float) -> BusyIntervals:
    recent, older = with_recent(work.recent, (done, busy))
    return _with_intervals(_sound_intervals(replace(work, recent=recent)), older)


def _sound_intervals(work: BusyIntervals) -> BusyIntervals:
    """Without sums that cannot be right."""
    if contradicted(work.done, work.busy, work.recent):
        return BusyIntervals(until=work.until, recent=work.recent)
    return work


def _with_intervals(work: BusyIntervals, pairs: Sequence[Pair]) -> BusyIntervals:
    for done, busy in pairs:
        work = BusyIntervals(
            until=work.until,
            intervals=INTERVALS_WEIGHT * work.intervals + 1,
            done=INTERVALS_WEIGHT * work.done + done,
            busy=INTERVALS_WEIGHT * work.busy + busy,
            done_done=INTERVALS_WEIGHT * work.done_done + done * done,
            done_busy=INTERVALS_WEIGHT * work.done_busy + done * busy,
            busy_busy=INTERVALS_WEIGHT * work.busy_busy + busy * busy,
            recent=work.recent,
        )
    return work


def _busy_instances(start: datetime, end: datetime, backlog: Samples, capacities: Samples) -> float:
    """How many instances were busy all the time; 0 where that is not certain."""
    first = bisect_right(backlog, start, key=time_of) - 1
    last = bisect_left(backlog, end, key=time_of)
    if first < 0 or any(sample.value <= 0 for sample in backlog[first : last + 1]):
        return 0.0
    at = bisect_right(capacities, start - SETTLING, key=time_of) - 1
    then = capacities[max(at, 0)]
    until = bisect_right(capacities, end, key=time_of)
    changed = any(sample.value != then.value for sample in capacities[max(at, 0) : until])
    return 0.0 if changed or then.time > start else then.value


def _at(backlog: Samples, time: datetime) -> float:
    """Between two samples on the straight line."""
    after = bisect_left(backlog, time, key=time_of)
    before = max(after - 1, 0)
    left, right = backlog[before], backlog[min(after, len(backlog) - 1)]
    if right.time <= left.time:
        return right.value
    return left.value + (right.value - left.value) * ((time - left.time) / (right.time - left.time))


# --- outliers ---------------------------------------------------------------------------------


def with_recent(recent: Sequence[Pair], pair: Pair) -> tuple[tuple[Pair, ...], Sequence[Pair]]:
    """The observations that are kept one by one now, and those that become part of sums."""
    seen = (*recent, pair)
    return seen[-RECENT_MAX:], _within(seen[:-RECENT_MAX], _limit(seen))


def believable(recent: Sequence[Pair]) -> Sequence[Pair]:
    return _within(recent, _limit(recent))


def contradicted(part: float, whole: float, recent: Sequence[Pair]) -> bool:
    """Whether sums over earlier observations cannot be right by what was observed of late."""
    if not abs(part) <= PART_MAX or not abs(whole) <= PART_MAX:  # NaN among them
        return True
    ratios = _ratios(recent)
    return len(ratios) >= JUDGED_MIN and abs(part) > TIMES_MAX * median(ratios) * abs(whole)


def _within(pairs: Iterable[Pair], limit: float) -> Sequence[Pair]:
    return [
        (part, whole)
        for part, whole in pairs
        if abs(part) <= PART_MAX and abs(part) <= limit * abs(whole)
    ]


def _limit(pairs: Sequence[Pair]) -> float:
    ratios = _ratios(pairs)
    if len(ratios) < JUDGED_MIN:
        return math.inf
    usual = median(ratios)
    deviation = median([abs(ratio - usual) for ratio in ratios])
    return min(max(usual + DEVIATIONS_MAX * deviation, TIMES_MIN * usual), TIMES_MAX * usual)


def _ratios(pairs: Sequence[Pair]) -> list[float]:
    """Zeros say nothing of how large others may be."""
    return [abs(part / whole) for part, whole in pairs if part]
