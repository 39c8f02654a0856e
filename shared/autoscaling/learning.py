"""Learning the throughput per instance and the dead time of a scale-out. Pure.

The throughput is taken from the best source that there is:

1. *Settings.* A throughput that is fixed by hand is used as it is.
2. *Counts.* Counts of finished or incoming items are precise and need no change of capacity.
3. *Backlog.* backlog_rate.py estimates the throughput from the course of the backlog.

*Counts.* If the backlog was never empty in an interval and the number of instances n did not
change, all of them were busy, and

    finished = μ·n·minutes          (finished = incoming - growth of the backlog)

The ratio estimator over such intervals is μ = Σ finished / Σ n·minutes, its standard error that of
the residuals (Cochran, Sampling Techniques, 1977, chapter 6). Intervals shortly after a change are
left out, because it is not known exactly when a new instance begins to work.

*Outliers.* An observation is a pair: a ``part`` and the ``whole`` that it grows with, such as items
and the busy minutes that they took. An outlier must not be added to a sum, because it would never
leave the sum again. Outliers are found by the median of the recent ratios, of which half may be
wrong. The recent observations are therefore kept one by one, and are added to the sums when newer
ones replace them. The limit is nine median absolute deviations above the median, but at least twice
and at most ten times the median. There is no lower limit: a count of zero is valid.

The dead time is the mean wait from the action to its confirmation, over scale-outs that succeeded
at the first attempt.
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

from shared.autoscaling.backlog_rate import Samples, low_end, posterior, with_backlog
from shared.autoscaling.declaring import Throughput
from shared.autoscaling.measurements import CAPACITY_METRIC, time_of
from shared.autoscaling.policy import RateEstimate, RateSource
from shared.autoscaling.state import ActionStatus, BusyIntervals, Learned, ScalingState

OBSERVATIONS_MIN = 2.9
"""Three, less what they have lost in weight."""
ROUGH_ERROR = 0.3
"""The relative error that is assumed for a throughput by fewer counts: it is not sure."""
DEAD_TIMES_MIN = 3
DEAD_TIME_MINUTES_MAX = 30
DECISION_MINUTES = 1.0
"""A decision is made on a sample that describes the minute before it."""
DEAD_TIME_WEIGHT_MIN = 0.02
"""Weight of the newest dead time: about fifty are remembered."""
INTERVALS_WEIGHT = 0.99
"""Weight of what was known before each new interval: about a hundred are remembered."""
SETTLING = timedelta(minutes=2)
"""Intervals that begin sooner than this after a change of capacity are left out."""
INTERVAL_MAX = 1.5
"""An interval longer than this many usual ones lacks a sample, and with it what it counted."""
LATE_MAX = timedelta(minutes=5)
"""A missing sample is waited for until the newest one is this much newer than the one before it."""

Pair = tuple[float, float]
"""Part and whole; the whole is not zero."""
RECENT_MAX = 15
JUDGED_MIN = 3
"""Fewer observations other than zero do not show which of them is wrong."""
DEVIATIONS_MAX = 9
TIMES_MIN, TIMES_MAX = 2, 10
PART_MAX = 1e18
"""Squares of larger ones make sums infinite."""


# --- what is known ----------------------------------------------------------------------------


def rate_estimate(fixed: Throughput, learned: Learned) -> RateEstimate | None:
    """The throughput per instance from the best source there is; None before any work was seen."""
    rate = fixed.rate_per_instance_minute
    if rate is not None:
        return RateEstimate(RateSource.SETTINGS, rate, rate, 0.0)
    counted = counted_rate(learned.work)
    if counted is not None and counted.sure:
        return counted
    found = (posterior(learned.trend) if learned.trend.busy else None, counted)
    known = [each for each in found if each is not None]
    return min(known, key=lambda each: each.relative_error, default=None)


def known_throughput(
    fixed: Throughput, learned: Learned, estimate: RateEstimate | None
) -> Throughput:
    """What is fixed by hand, and otherwise what was learned, if that is sure enough.

    ``estimate`` is that of ``rate_estimate``. A throughput estimated from the backlog is its low
    end, so that no further margin is needed.
    """
    if fixed.rate_per_instance_minute is not None and fixed.dead_time_minutes is not None:
        return fixed
    rate, dead_time = fixed.rate_per_instance_minute, fixed.dead_time_minutes
    relative_error = fixed.relative_error
    if rate is None and estimate is not None and estimate.sure:
        rate = estimate.low
        relative_error = 0 if estimate.source is RateSource.BACKLOG else estimate.relative_error
    if dead_time is None and learned.dead_times >= DEAD_TIMES_MIN:
        dead_time = learned.dead_time_minutes + DECISION_MINUTES
    return replace(
        fixed,
        rate_per_instance_minute=rate,
        dead_time_minutes=dead_time,
        relative_error=relative_error,
    )


@lru_cache(maxsize=256)
def counted_rate(work: BusyIntervals) -> RateEstimate | None:
    """The throughput by the items that were counted in busy intervals.

    None without such an interval, and if too many of them contradict each other.
    """
    sums = _with_intervals(_sound_intervals(work), believable(work.recent))
    if not 0 < sums.done < PART_MAX or sums.busy <= 0:
        return None
    rate = sums.done / sums.busy
    if sums.intervals < OBSERVATIONS_MIN:
        return RateEstimate(RateSource.COUNTED, rate, low_end(rate, ROUGH_ERROR), ROUGH_ERROR)
    residual = sums.done_done - 2 * rate * sums.done_busy + rate * rate * sums.busy_busy
    spread = max(residual, 0.0) * sums.intervals / (sums.intervals - 1)
    found = RateEstimate(RateSource.COUNTED, rate, rate, math.sqrt(spread) / sums.done)
    return found if found.sure else None


# --- the dead time ----------------------------------------------------------------------------


def learn_dead_time(state: ScalingState) -> ScalingState:
    """The state with the dead time of the last confirmed change, if it was not used before.

    An action that was deferred or given up waited for another reason, so it does not count.
    """
    desired, learned = state.desired, state.learned
    if desired is None or desired.changed_at is None or desired.epoch <= learned.epoch:
        return state
    if desired.status is not ActionStatus.CONFIRMED:
        return state
    learned = replace(learned, epoch=desired.epoch)
    waited_minutes = (desired.changed_at - desired.requested_at).total_seconds() / 60
    out = desired.target > desired.previous
    if out and not desired.attempts and 0 < waited_minutes <= DEAD_TIME_MINUTES_MAX:
        count = learned.dead_times + 1
        weight = max(1 / count, DEAD_TIME_WEIGHT_MIN)
        mean = learned.dead_time_minutes + weight * (waited_minutes - learned.dead_time_minutes)
        learned = replace(learned, dead_times=count, dead_time_minutes=mean)
    return replace(state, learned=learned)


# --- from the backlog -------------------------------------------------------------------------


def learn_from_backlog(state: ScalingState, backlog_name: str | None, maximum: int) -> ScalingState:
    """The state with what the backlog has taught since the last time."""
    backlog = state.histories.get(backlog_name or "")
    capacity = state.histories.get(CAPACITY_METRIC)
    if backlog is None or capacity is None:
        return state
    known = state.learned.trend
    trend = with_backlog(known, backlog.samples, capacity.samples, maximum)
    if trend is known:
        return state
    return replace(state, learned=replace(state.learned, trend=trend))


# --- from counts of items ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Counted:
    """A metric whose samples say how many items were finished, or came, since the one before."""

    samples: Samples
    incoming: bool = False
    grain: timedelta | None = None
    """The length of each interval, if the source has a fixed one. Its samples may come late, and
    not in order."""


def learn_from_counts(
    state: ScalingState,
    throughput: Throughput,
    backlog_name: str | None,
    grain: timedelta | None = None,
) -> ScalingState:
    """The state with what finished or incoming items have taught since it was asked last.

    ``grain`` is that of the counted metric.
    """
    samples = state.histories.get(throughput.counted_metric or "")
    backlog = state.histories.get(backlog_name or "")
    capacity = state.histories.get(CAPACITY_METRIC)
    if samples is None or backlog is None or capacity is None:
        return state
    counted = Counted(samples.samples, throughput.completed_metric is None, grain)
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
    spans = [after.time - before.time for before, after in pairwise(samples)]
    usual = counted.grain or median_low(spans)
    for before, after in pairwise(samples[first - 1 :]):
        span = after.time - before.time
        lacks_sample = span > INTERVAL_MAX * usual
        may_come = counted.grain is not None and samples[-1].time < before.time + LATE_MAX
        if after.time > seen_until or (lacks_sample and may_come):
            break
        if not lacks_sample:
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
