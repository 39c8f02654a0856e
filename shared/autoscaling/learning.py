"""Learning the throughput per instance and the dead time of a scale-out. Pure.

The throughput μ is the number of items that one busy instance finishes in a minute. It comes from
the best source that is available:

1. *Settings.* A throughput that is set by hand is used as it is.
2. *Counts.* A metric counts the items that were finished, or those that arrived. Such counts are
   precise, and no change of the capacity is needed to learn from them.
3. *Backlog.* backlog_rate.py estimates the throughput from the course of the backlog. The first few
   counts are uncertain as well. Until they are certain, the source with the smaller relative error
   is used.

*Counts.* The time between two samples of a count is called an interval. If the backlog was never
empty in an interval, and the number of instances n did not change, all instances were busy, and

    finished = μ·n·minutes

If the metric counts arrivals, the finished items are the arrivals less the growth of the backlog.
Over all such intervals, μ = Σ finished / Σ n·minutes. This is the ratio estimator, and its standard
error is computed from its residuals, finished - μ·n·minutes (Cochran, Sampling Techniques, 1977,
chapter 6). Intervals shortly after a change of the capacity are left out, because it is not known
exactly when a new instance begins to work.

*Outliers.* An observation is a pair: a ``part``, and the ``whole`` with which it grows. Here, they
are the finished items and the instance-minutes of an interval. An outlier must not be added to the
sums, because they forget only slowly (see ``INTERVALS_WEIGHT``). The recent observations are
therefore kept one by one. When a new observation replaces the oldest of them, the oldest is added
to the sums, unless it is an outlier.

An observation is an outlier if its ratio part / whole is too far above the median of the recent
ratios. The median stays usable even if almost half of these ratios are wrong. The limit is nine
median absolute deviations above the median, but at least twice and at most ten times the median.
There is no lower limit, because a count of zero is valid.

*Dead time.* The dead time is the mean wait from the request for a scale-out to its confirmation,
plus ``DECISION_MINUTES``. Only scale-outs that succeeded at the first attempt count.
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
"""Three intervals. The sum of their weights is a little lower, because older ones weigh less."""
ROUGH_ERROR = 0.3
"""The relative error that is assumed after fewer intervals. Such a throughput is uncertain."""
DEAD_TIMES_MIN = 3
DEAD_TIME_MINUTES_MAX = 30
DECISION_MINUTES = 1.0
"""Added to the measured wait, because a decision uses a sample that describes the minute before."""
DEAD_TIME_WEIGHT_MIN = 0.02
"""The newest dead time has at least this weight in the mean, so about the last fifty count."""
INTERVALS_WEIGHT = 0.99
"""Each new interval multiplies the sums by this first, so about the last hundred count."""
SETTLING = timedelta(minutes=2)
"""An interval is left out if it begins sooner than this after a change of the capacity."""
INTERVAL_MAX = 1.5
"""If an interval is longer than this many usual intervals, a sample is missing in it, and the items
that this sample counted are missing too. Such an interval is left out.
"""
LATE_MAX = timedelta(minutes=5)
"""A missing sample can still arrive until there is a sample that is this much newer than the last
sample before the gap.
"""

Pair = tuple[float, float]
"""An observation: its part and its whole. The whole is not zero."""
RECENT_MAX = 15
"""The number of observations that are kept one by one."""
JUDGED_MIN = 3
"""Outliers can be recognized only among at least this many observations that are not zero."""
DEVIATIONS_MAX = 9
TIMES_MIN, TIMES_MAX = 2, 10
PART_MAX = 1e18
"""An observation with a larger part is an outlier, because its square could make a sum infinite."""


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
    """The values that are set by hand. The others are those that were learned, if they are certain
    enough, or else None.

    ``estimate`` is the result of ``rate_estimate``. If it comes from the backlog, the low end of
    the estimate is used. Its relative error is then 0, so that no policy subtracts a second margin.
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

    The wait for an action that was deferred or given up had another cause, so it does not count.
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
    """The state with the samples of the backlog since the last call taken into account."""
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
    """A metric that counts the items finished since its previous sample, or those that arrived if
    ``incoming`` is true.
    """

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
    """The state with the counts of items since the last call taken into account.

    ``grain`` is the time that one sample of the counted metric covers, if it is known.
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
    """The intervals, with all those added that have ended and were not evaluated before."""
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
    """The intervals. If the recent ones contradict the sums, the sums are dropped."""
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
    """The number of instances that were busy all the time; 0 if this is not certain."""
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
    """The backlog at ``time``, interpolated linearly between the samples before and after it."""
    after = bisect_left(backlog, time, key=time_of)
    before = max(after - 1, 0)
    left, right = backlog[before], backlog[min(after, len(backlog) - 1)]
    if right.time <= left.time:
        return right.value
    return left.value + (right.value - left.value) * ((time - left.time) / (right.time - left.time))


# --- outliers ---------------------------------------------------------------------------------


def with_recent(recent: Sequence[Pair], pair: Pair) -> tuple[tuple[Pair, ...], Sequence[Pair]]:
    """The observations that are now kept one by one, and those to add to the sums."""
    seen = (*recent, pair)
    return seen[-RECENT_MAX:], _within(seen[:-RECENT_MAX], _limit(seen))


def believable(recent: Sequence[Pair]) -> Sequence[Pair]:
    """The observations that are not outliers."""
    return _within(recent, _limit(recent))


def contradicted(part: float, whole: float, recent: Sequence[Pair]) -> bool:
    """True if recent observations show that sums over earlier observations must be wrong."""
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
    """The ratios of the observations. Zeros are left out, because they do not show how large other
    ratios may be.
    """
    return [abs(part / whole) for part, whole in pairs if part]
