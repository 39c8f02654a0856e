"""The rate per instance and the start-up time of a scale-out. Pure.

The rate μ is the number of items that one busy instance finishes in a minute. The app takes
the rate per instance from the best available source:

1. *Settings.* A rate that is set by hand is used as it is.
2. *Counts.* A metric counts the items that were finished, or the items that arrived. Such counts
   are precise, and no change of the capacity is needed to learn from them.
3. *Backlog.* backlog_rate.py estimates the rate from the course of the backlog. This estimate
   is less precise. But an estimate from only a few counts is uncertain, too. Until the estimate
   from counts is certain, the app uses the estimate with the smaller relative error.

*Counts.* The time between two samples of a count is called an interval. Assume that the backlog was
never empty in an interval, and that the number of instances n did not change. Then all instances
were busy, and the number of finished items is

    finished = μ·n·minutes

If the metric counts arrivals, the finished items are the arrivals less the growth of the backlog.
The sums over all such intervals give the estimate μ = Σ finished / Σ n·minutes. In statistics, this
is called the ratio estimator. Its standard error is computed from the residuals, which are
finished - μ·n·minutes (Cochran, Sampling Techniques, 1977, chapter 6). Intervals shortly after a
change of the capacity are left out, because it is not known exactly when a new instance begins to
work.

*Stopped workers.* An interval in which nothing was finished is only used if the times before and
after it at which something was finished are close enough (``fall_limit`` in backlogs.py). Otherwise
the instances may not have worked at all. Outliers are left out: see outliers.py.

*Start-up time.* Resource Manager shows an ordered number within seconds, long before the instances
work, so a confirmation says nothing about their start. The start-up time is the one that is set, or
``START_UP_MINUTES``. Only the wait until the number is read is learned: if it is longer than
``START_UP_MINUTES``, so is the start-up time. Until the start-up time has passed since the request,
an instance that is read does not count as working (``started``).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from statistics import median_low

from shared.autoscaling.declaring import Throughput
from shared.autoscaling.learning.backlog_rate import Samples, low_end, posterior
from shared.autoscaling.learning.outliers import (
    PART_MAX,
    Pair,
    believable,
    contradicted,
    with_recent,
)
from shared.autoscaling.policies.queue_age import START_UP_MINUTES
from shared.autoscaling.policy import RateEstimate, RateSource
from shared.autoscaling.state import ActionStatus, BusyIntervals, Learned, ScalingState
from shared.values.measurements import CAPACITY_METRIC, NO_SAMPLES, MetricValue, time_of

OBSERVATIONS_MIN = 2.9
"""A standard error is computed from three or more intervals. The weights of three intervals add up
to slightly less than 3, because older intervals weigh less.
"""
ROUGH_ERROR = 0.3
"""With fewer intervals, this relative error is assumed. It is so high that the rate counts as
uncertain.
"""
START_UP_MINUTES_MAX = 30
START_UP_WEIGHT_MIN = 0.02
"""The newest start-up time has at least this weight in the mean. So the mean covers about the last
50 start-up times.
"""
INTERVALS_WEIGHT = 0.99
"""Before a new interval is added, the sums are multiplied by this factor. So the sums cover about
the last 100 intervals.
"""
SETTLING = timedelta(minutes=2)
"""An interval is left out if it begins sooner than this after a change of the capacity."""
INTERVAL_MAX = 1.5
"""If an interval is longer than the usual interval times this factor, a sample was lost, and the
items that this sample counted are missing. Such an interval is left out.
"""
LATE_MAX = timedelta(minutes=5)
"""If a sample is missing, the app waits for it. It stops waiting when the newest sample is this
much newer than the last sample before the gap.
"""

FINISHED_WAIT_MAX = timedelta(minutes=20)
"""The longest wait for the next finished item before an interval without one is used or left out.
Samples are kept for only somewhat longer.
"""


# --- what is known ----------------------------------------------------------------------------


def rate_estimate(fixed: Throughput, learned: Learned) -> RateEstimate | None:
    """The rate per instance from the best source there is; None before any work was seen."""
    rate = fixed.rate_per_instance_minute
    if rate is not None:
        return RateEstimate(RateSource.SETTINGS, rate, rate, 0.0)
    work = learned.work
    counted = counted_rate(work) if work.busy or work.recent else None
    if counted is not None and counted.sure:
        return counted
    slope = posterior(learned.trend) if learned.trend.busy else None
    if counted is None or slope is None:
        return slope or counted
    return min(slope, counted, key=lambda each: each.relative_error)


def known_throughput(
    fixed: Throughput, learned: Learned, estimate: RateEstimate | None
) -> Throughput:
    """The rate per instance and the start-up time.

    A value that is set by hand is used as it is. Otherwise, the learned value is used if it is
    certain enough. If there is neither, the field is None.

    ``estimate`` is the result of ``rate_estimate``. If the estimate comes from the backlog, its low
    end is used as the throughput. The relative error is then set to 0, so that no policy subtracts
    a second margin.
    """
    known = fixed
    if fixed.rate_per_instance_minute is None and estimate is not None and estimate.sure:
        error = 0 if estimate.source is RateSource.BACKLOG else estimate.relative_error
        known = replace(known, rate_per_instance_minute=estimate.low, relative_error=error)
    if fixed.start_up_minutes is None and learned.dead_time_minutes > START_UP_MINUTES:
        known = replace(known, start_up_minutes=learned.dead_time_minutes)
    return known


@lru_cache(maxsize=256)
def counted_rate(work: BusyIntervals) -> RateEstimate | None:
    """The rate per instance according to the items that were counted in busy intervals.

    The result is None if there is no such interval, or if the intervals contradict each other too
    much.
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


# --- the start-up time ----------------------------------------------------------------------------


def starting_minutes(fixed: Throughput, learned: Learned) -> float:
    """How long an instance is still starting after it was first read."""
    known = known_throughput(fixed, learned, None).start_up_minutes
    return max((START_UP_MINUTES if known is None else known) - learned.dead_time_minutes, 0.0)


def started(read: tuple[MetricValue, ...], minutes: float) -> tuple[MetricValue, ...]:
    """The changes of the number of instances that can work: at each time, the least number that was
    read within the last ``minutes``. Changes may be ahead of the last sample.
    """
    if minutes <= 0 or len({sample.value for sample in read}) < 2:
        return read
    starting, changes = timedelta(minutes=minutes), list[MetricValue]()
    times = [sample.time for sample in read]
    rises = [
        after.time + starting for before, after in pairwise(read) if after.value > before.value
    ]
    for time in sorted({*times, *rises}):
        first = max(bisect_right(times, time - starting) - 1, 0)
        least = min([each.value for each in read[first : bisect_right(times, time)]])
        if not changes or changes[-1].value != least:
            changes.append(MetricValue(time, least))
    return tuple(changes)


def learn_wait(state: ScalingState) -> ScalingState:
    """The state after learning how long it takes from the request for a scale-out to the first
    sample that shows it.

    Each change is used only once. An action that was deferred or given up, or that was confirmed in
    part or in pieces, is not used, because the wait for its confirmation had another cause.
    """
    desired, learned = state.desired, state.learned
    if desired is None or desired.changed_at is None or desired.epoch <= learned.epoch:
        return state
    read = state.histories.get(CAPACITY_METRIC, NO_SAMPLES).latest
    if desired.status is not ActionStatus.CONFIRMED or not read or read.time < desired.changed_at:
        return state
    learned = replace(learned, epoch=desired.epoch)
    waited_minutes = (read.time - desired.requested_at).total_seconds() / 60
    out = desired.target > desired.previous
    whole = desired.reached is None and desired.given_up is None
    if out and whole and not desired.attempts and 0 < waited_minutes <= START_UP_MINUTES_MAX:
        count = learned.dead_times + 1
        weight = max(1 / count, START_UP_WEIGHT_MIN)
        mean = learned.dead_time_minutes + weight * (waited_minutes - learned.dead_time_minutes)
        learned = replace(learned, dead_times=count, dead_time_minutes=mean)
    return replace(state, learned=learned)


# --- from counts of items ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Counted:
    """A metric that counts the items that were finished since its previous sample.

    If ``incoming`` is true, the metric counts the items that arrived instead.
    """

    samples: Samples
    incoming: bool = False
    grain: timedelta | None = None
    """The length of each interval, if the source has a fixed one. Its samples may come late, and
    not in order."""
    limit: timedelta = timedelta.max
    """The time within which something is finished if the instances work."""


def with_counted(
    work: BusyIntervals, counted: Counted, backlog: Samples, capacities: Samples
) -> BusyIntervals:
    """The sums ``work``, plus the busy intervals that have ended since the last call.

    An interval is busy if all instances were busy during the whole interval. An interval in which
    nothing was finished is used only if the instances worked before and after it.
    """
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
            done = after.value - grown
            works = busy_minutes > 0 and (done > 0 or _works(before, after, counted, backlog))
            if works is None:
                break
            if works:
                work = _with_interval(work, done, busy_minutes)
        work = replace(work, until=after.time)
    return work


def _works(start: MetricValue, end: MetricValue, counted: Counted, backlog: Samples) -> bool | None:
    """True if no more than ``counted.limit`` lies between the last time before the interval and the
    first time after it at which something was finished. None if this is not known yet.
    """
    counts = () if counted.incoming else counted.samples
    finished = [count.time for count in counts if count.value > 0]
    finished += [after.time for before, after in pairwise(backlog) if after.value < before.value]
    last = max((time for time in finished if time <= start.time), default=backlog[0].time)
    seen_until = backlog[-1].time
    following = min((time for time in finished if time >= end.time), default=None)
    if following is None and seen_until - end.time < FINISHED_WAIT_MAX:
        return None
    return (following or seen_until) - last <= counted.limit


def _with_interval(work: BusyIntervals, done: float, busy: float) -> BusyIntervals:
    recent, older = with_recent(work.recent, (done, busy))
    return _with_intervals(_sound_intervals(replace(work, recent=recent)), older)


def _sound_intervals(work: BusyIntervals) -> BusyIntervals:
    """The same intervals, but without the sums if the recent intervals contradict the sums."""
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
    """The number of instances, all of which were busy during the whole interval.

    The result is 0 if it is not certain that all of them were busy. A change of the capacity may
    have taken place at any time since the sample before the first one that shows it.
    """
    first = bisect_right(backlog, start, key=time_of) - 1
    last = bisect_left(backlog, end, key=time_of)
    if first < 0 or any(sample.value <= 0 for sample in backlog[first : last + 1]):
        return 0.0
    at = bisect_right(capacities, start - SETTLING, key=time_of) - 1
    then = capacities[max(at, 0)]
    seen = bisect_left(capacities, end, key=time_of) + 1
    changed = any(sample.value != then.value for sample in capacities[max(at, 0) : seen])
    return 0.0 if changed or then.time > start else then.value


def _at(backlog: Samples, time: datetime) -> float:
    """The backlog at ``time``, interpolated linearly between the samples before and after it."""
    after = bisect_left(backlog, time, key=time_of)
    before = max(after - 1, 0)
    left, right = backlog[before], backlog[min(after, len(backlog) - 1)]
    if right.time <= left.time:
        return right.value
    return left.value + (right.value - left.value) * ((time - left.time) / (right.time - left.time))
