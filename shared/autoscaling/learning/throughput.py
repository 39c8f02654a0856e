"""The rate per instance μ, in items a minute, and the start-up time of a scale-out. Pure.

The rate has the best available source: a setting, until what is seen refutes it (claims.py); counts
of finished or arrived items; or the course of the backlog (backlog_rate.py). While the counts are
uncertain, the one of the last two with the smaller relative error is used.

*Counts.* If the backlog was never empty between two counts, and the number of instances n did not
change, all were busy, and finished = μ·n·minutes. If arrivals are counted, finished is the arrivals
less the growth of the backlog. So μ = Σ finished / Σ n·minutes since the last jump of the rate. The
noise is the variance between adjacent intervals (von Neumann, 1941); what intervals vary beyond it
is how the rate differs between hours. Intervals in which the instances may not have worked
(``_works``) are left out, and so are outliers (``believable``).

*Start-up time.* Resource Manager shows an ordered number within seconds, long before the instances
work. So only the wait until it is read is learned, and an instance counts as working once the
start-up time has passed since the request (``started``). See docs/adr/0005-default-policy.md.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import accumulate, pairwise
from statistics import fmean, median, median_low

from shared.autoscaling.declaring import Throughput
from shared.autoscaling.learning.backlog_rate import MINUTE, Samples, low_end, posterior
from shared.autoscaling.learning.claims import LOWEST_SHARE, planned_rate
from shared.autoscaling.policies.queue_age import START_UP_MINUTES
from shared.autoscaling.policy import (
    RATE_ERROR_MAX,
    RATE_SOURCES,
    RateEstimate,
    RateSource,
    Unhelpful,
)
from shared.autoscaling.state import ActionStatus, BusyIntervals, Learned, ScalingState
from shared.values.measurements import CAPACITY_METRIC, NO_SAMPLES, MetricValue, time_of

Pair = tuple[float, float]
"""The items finished in an interval, and the instance-minutes (not 0)."""
RECENT_MAX = 120
"""The number of intervals that are kept."""
JUDGED_MIN, JUDGED_MAX = 3, 15
DEVIATIONS_MAX, TIMES_MIN, TIMES_MAX = 9, 2, 10
"""See ``believable``, which uses few of the last intervals, so that a new rate is believed soon."""
PART_MAX, WHOLE_MIN = 1e18, 1e-6
"""An interval with a larger part or a smaller whole is an outlier: squares could be infinite."""
INTERVALS_MIN = 3
"""With fewer intervals, the standard error is not known, and ``ROUGH_ERROR`` is assumed."""
ROUGH_ERROR = 0.3
START_UP_MINUTES_MAX = 30
START_UP_WEIGHT_MIN = 0.02
"""The least weight of the newest start-up time in the mean, which so covers about the last 50."""
JUMP_DEVIATIONS, JUMP_SHARE = 4.0, 0.05
"""The rate has jumped if the intervals before and after differ by more than so many standard
deviations and this share."""
LIMITED_SHARE = 0.25
"""The limit lies behind the instances if more of them finish less than this share of what they
should in addition."""
LIMITED_RISE = 1.45
"""A rise by less than this factor does not show it, either: it is half as many again, less what the
length of intervals varies."""
SLOWER_SHARE = 0.7
"""If less than this share is completed as soon as they start, the workers have become slower."""
LIMITED_MAX = 30
"""Only so many intervals after the last ones with fewer instances show it."""
HOURS_NOISE = 1.5
"""What exceeds the variance between adjacent intervals by this factor is variance between hours."""
SETTLING_MINUTES = 1.0
"""An interval is left out if it begins sooner than the start-up time and this many minutes after a
change of the capacity."""
INTERVAL_MAX = 1.5
"""In an interval longer than the usual one times this, a sample was lost, so it is left out."""
LATE_MAX = timedelta(minutes=5)
"""The app waits for a missing sample until the newest one is this much newer than the gap."""
FINISHED_WAIT_MAX = timedelta(minutes=20)
"""The longest wait for the next finished item before an interval without one is used or left
out."""


# --- what is known ----------------------------------------------------------------------------


def rate_estimate(fixed: Throughput, learned: Learned) -> RateEstimate | None:
    """The rate per instance from the best source there is; None before any work was seen."""
    told, claim = fixed.rate_per_instance_minute, learned.claim
    if told is None:
        return seen_rate(learned)
    doubted = claim is not None and claim.told == told and not fixed.trust_rate
    if claim and doubted and claim.refuted_at and (seen := seen_rate(learned)):
        rate = seen.low if seen.source is RateSource.COUNTED else seen.likely
        lowest = 0.0 if claim.shown else LOWEST_SHARE * told
        return replace(seen, low=max(rate, lowest), told=told)
    counted = counted_rate(learned.work)
    rate = planned_rate(claim) if claim and doubted else told
    if counted is not None and counted.sure:
        rate = max(rate, min(counted.low, told))  # a doubt lowers it at most to what is counted
    source = RateSource.DOUBTED if rate < 0.99 * told else RateSource.SETTINGS
    return RateEstimate(source, rate, rate, 0.0, unhelpful=counted.unhelpful if counted else None)


def contradiction(fixed: Throughput, learned: Learned, now: datetime) -> str:
    """What is seen, if it has refuted the rate that is set by hand; otherwise empty."""
    estimate, claim = rate_estimate(fixed, learned), learned.claim
    if estimate is None or estimate.told is None or claim is None or claim.since is None:
        return ""
    minutes = (now - claim.since) / MINUTE
    lasted = f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.0f} h"
    seen = f"{estimate.likely:.3g} ± {estimate.relative_error * estimate.likely:.2g}"
    told = f"the setting says {estimate.told:.3g} a minute"
    source = RATE_SOURCES[estimate.source]
    return f"{told}; in the last {lasted} instances finished {seen} each ({source})"


def seen_rate(learned: Learned) -> RateEstimate | None:
    """The rate per instance that is seen; None before any work was seen."""
    counted = counted_rate(learned.work)
    if counted is not None and counted.sure:
        return counted
    slope = posterior(learned.trend) if learned.trend.busy else None
    if counted is None or slope is None:
        return slope or counted
    return min(slope, counted, key=lambda each: each.relative_error)


def known_throughput(
    fixed: Throughput, learned: Learned, estimate: RateEstimate | None
) -> Throughput:
    """The rate per instance and the start-up time; None for what is not known. Of the ``estimate``
    of ``rate_estimate``, the low end is used if it is certain enough or replaces a setting."""
    known = fixed
    if estimate is not None and (estimate.sure or estimate.told):
        known = replace(known, rate_per_instance_minute=estimate.low)
    if fixed.start_up_minutes is None and learned.dead_time_minutes > START_UP_MINUTES:
        known = replace(known, start_up_minutes=learned.dead_time_minutes)
    return known


@lru_cache(maxsize=256)
def counted_rate(work: BusyIntervals) -> RateEstimate | None:
    """The rate per instance according to the counts of busy intervals since its last jump; None
    without any, or if they contradict each other too much. The low end includes what the next hour
    may differ. Intervals with instances that helped nobody do not count, because the limit lies
    behind them, nor those in which most deliveries failed."""
    known = [(*each, *each)[:4] for each in work.recent if each[1] >= WHOLE_MIN]
    together = min(work.since_empty, LIMITED_MAX) if work.minutes else 0
    rise, enough, most = _unhelpful_rise(known, together)
    used = [each for at, each in enumerate(known) if at < rise or each[1] <= enough]
    pairs = believable(
        [(done, busy) for done, busy, useful, sure in used if busy == sure and 2 * useful >= done]
    )
    since = _since_jump(pairs)
    done, busy = map(sum, zip(*since, strict=True)) if since else (0.0, 0.0)
    if done <= 0 or busy <= 0:
        return None
    rate = done / busy
    if len(since) < INTERVALS_MIN:
        return RateEstimate(RateSource.COUNTED, rate, low_end(rate, ROUGH_ERROR), ROUGH_ERROR)
    chance = math.sqrt(_noise(since) / busy) / rate
    if chance > RATE_ERROR_MAX:
        return None
    error = min(math.hypot(chance, _between_hours(pairs, rate)), RATE_ERROR_MAX)
    low, unhelpful = low_end(rate, error), None
    if most:
        few, many = round(enough / work.minutes), round(most / work.minutes)
        unhelpful = Unhelpful(few, many - few, work.until) if many > few else None
    return RateEstimate(RateSource.COUNTED, rate, low, error, chance=chance, unhelpful=unhelpful)


def believable(pairs: Sequence[Pair]) -> Sequence[Pair]:
    """The intervals that are not outliers: whose rate is at most the median of the last ones plus
    nine median absolute deviations, but at least twice and at most ten times the median. There is
    no lower limit, because a count of zero is valid, but does not show how large others may be."""
    rates, limit = [abs(part / whole) for part, whole in pairs[-JUDGED_MAX:] if part], math.inf
    if len(rates) >= JUDGED_MIN:
        usual = median(rates)
        deviation = median([abs(rate - usual) for rate in rates])
        limit = min(max(usual + DEVIATIONS_MAX * deviation, TIMES_MIN * usual), TIMES_MAX * usual)
    return [(part, whole) for part, whole in pairs if abs(part) <= min(limit * whole, PART_MAX)]


def _since_jump(pairs: Sequence[Pair]) -> Sequence[Pair]:
    """The intervals since the last clear jump of the rate."""
    noise, clearest, jump = _noise(pairs), 1.0, 0
    done, busy = ([*accumulate(each)] for each in zip(*pairs, strict=True)) if pairs else ([], [])
    for at in range(INTERVALS_MIN, len(pairs) - INTERVALS_MIN + 1):
        before, after = busy[at - 1], busy[-1] - busy[at - 1]
        old, new = done[at - 1] / before, (done[-1] - done[at - 1]) / after
        clear = JUMP_DEVIATIONS * math.sqrt(noise * (1 / before + 1 / after))
        clear += JUMP_SHARE * max(old, new)
        if abs(new - old) > clearest * clear:
            clearest, jump = abs(new - old) / clear, at
    return _since_jump(pairs[jump:]) if jump else pairs


def _unhelpful_rise(known: Sequence[tuple[float, ...]], together: int) -> tuple[int, float, float]:
    """The end of the last intervals before more instances completed nothing more, also by now, and
    the instance-minutes of an interval before and since then. This can be told only of the last
    ``together``, in which the queue was never empty."""
    at_most = [(useful, busy) for _, busy, useful, _ in known]
    at_least = [(useful, sure) for *_, useful, sure in known]
    first, last = max(len(known) - together, 0) + INTERVALS_MIN, at_least[-INTERVALS_MIN:]
    for at in range(first, len(known) - INTERVALS_MIN + 1):
        after = at_least[at : at + INTERVALS_MIN]
        fewest = min([sure for _, sure in after]) / LIMITED_RISE
        for end in range(at, first - 1, -1) if after[0][1] > at_least[at - 1][1] else ():
            before = at_most[end - INTERVALS_MIN : end]
            if max([busy for _, busy in before]) <= fewest:
                few = [(done, n) for _, n, done, sure in known[:end] if n == sure <= fewest]
                useful = [
                    fmean([n for n, _ in some])
                    for some in (before, at_most[end : at + INTERVALS_MIN])
                ]
                helps = _helps(before, after, _noise(few)) or _helps(before, last)
                if not helps and useful[1] >= SLOWER_SHARE * useful[0]:
                    return end, before[-1][1], max([sure for _, sure in at_least[at:]])
                break
    return len(known), math.inf, 0.0


def _helps(before: Sequence[Pair], after: Sequence[Pair], noise: float = 0.0) -> bool:
    """True if more instances may finish more."""
    (old, fewer), (new, more) = (map(sum, zip(*each, strict=True)) for each in (before, after))
    if more <= fewer:
        return False
    chance = JUMP_DEVIATIONS * more * math.sqrt(noise * (1 / fewer + 1 / more))
    return new - old + chance >= LIMITED_SHARE * old / fewer * (more - fewer)


def _noise(pairs: Sequence[Pair]) -> float:
    """The variance between adjacent intervals, for one instance-minute."""
    squares = [
        (off := done / busy - after / long) * off / (1 / busy + 1 / long)
        for (done, busy), (after, long) in pairwise(pairs)
    ]
    return fmean(squares or [0.0])


def _between_hours(pairs: Sequence[Pair], rate: float) -> float:
    """The standard deviation of the rate between hours, as a share of the rate: the part of the
    variance that adjacent intervals do not have."""
    rates = [done / busy for done, busy in pairs]
    mean, noise = fmean(rates), HOURS_NOISE * _noise(pairs) / fmean([busy for _, busy in pairs])
    varied = sum([(each - mean) * (each - mean) for each in rates]) / (len(rates) - 1)
    return math.sqrt(max(varied - noise, 0.0)) / rate


# --- the start-up time ----------------------------------------------------------------------------


def start_up_minutes(fixed: Throughput, learned: Learned) -> float:
    """The start-up time: the one that is set or learned, or the usual one."""
    told = fixed.start_up_minutes
    return max(learned.dead_time_minutes, START_UP_MINUTES) if told is None else told


def starting_minutes(fixed: Throughput, learned: Learned) -> float:
    """How long an instance is still starting after it was first read."""
    return max(start_up_minutes(fixed, learned) - learned.dead_time_minutes, 0.0)


def started(read: Samples, minutes: float) -> tuple[MetricValue, ...]:
    """The changes of the number of instances that can work: at each time, the least number that was
    read within the last ``minutes``. Changes may be ahead of the last sample."""
    starting, changes = timedelta(minutes=minutes), list[MetricValue]()
    for sample in read:
        time = sample.time + starting
        # An increase that has not taken effect yet ends with a decrease, or becomes smaller.
        while changes and changes[-1].time >= sample.time and changes[-1].value > sample.value:
            time = changes.pop().time
        if not changes or changes[-1].value > sample.value:
            changes.append(sample)
        elif changes[-1].value < sample.value:
            changes.append(MetricValue(time, sample.value))
    return tuple(changes)


def learn_wait(state: ScalingState) -> ScalingState:
    """The state after learning the wait from the request for a scale-out to the first sample that
    shows it. Each change is used once; one that was deferred, given up or confirmed in pieces is
    not, because its wait had another cause."""
    desired, learned = state.desired, state.learned
    if desired is None or desired.changed_at is None or desired.epoch <= learned.epoch:
        return state
    read = state.histories.get(CAPACITY_METRIC, NO_SAMPLES).latest
    if desired.status is not ActionStatus.CONFIRMED or not read or read.time < desired.changed_at:
        return state
    learned = replace(learned, epoch=desired.epoch)
    counted_at = datetime.fromtimestamp(max(desired.changes, default=0), UTC)
    asked_at = max(counted_at, desired.requested_at)  # the first message may be lost
    waited_minutes = (read.time - asked_at).total_seconds() / 60
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
    """A metric that counts the items finished since its previous sample, or if ``incoming``, those
    that arrived."""

    samples: Samples
    incoming: bool = False
    grain: timedelta | None = None
    """The length of each interval, if it is fixed. Such samples may come late and out of order."""
    limit: timedelta = timedelta.max
    """The time within which something is finished if the instances work."""
    start_up_minutes: float = START_UP_MINUTES
    failed: Samples = ()
    """The counts of the deliveries that failed, which are work, too; if ``incoming``, how many
    messages have been dead-lettered."""


def with_counted(
    work: BusyIntervals, counted: Counted, backlog: Samples, capacities: Samples
) -> BusyIntervals:
    """The sums ``work``, plus the intervals that have ended since the last call and in which all
    instances were busy all the time. One in which nothing was finished is used only if the
    instances worked before and after it."""
    samples = counted.samples
    if len(samples) < 2 or not backlog or not capacities:
        return work
    seen_until = min(backlog[-1].time, capacities[-1].time)
    first = 1 if work.until is None else max(bisect_right(samples, work.until, key=time_of), 1)
    if first == len(samples) or samples[first].time > seen_until:
        return work
    spans = [after.time - before.time for before, after in pairwise(samples)]
    usual = counted.grain or median_low(spans)
    settling = timedelta(minutes=counted.start_up_minutes + SETTLING_MINUTES)
    for before, after in pairwise(samples[first - 1 :]):
        span, instances = after.time - before.time, None
        lacks_sample = span > INTERVAL_MAX * usual
        may_come = counted.grain is not None and samples[-1].time < before.time + LATE_MAX
        if after.time > seen_until or (lacks_sample and may_come):
            break
        if not lacks_sample:
            instances = _busy_instances(before.time, after.time, backlog, capacities, settling)
            least, most = (each * (span / MINUTE) for each in instances or (0.0, 0.0))
            done, failed = _done(before, after, counted, backlog)
            works = least > 0 and (done > 0 or _works(before, after, counted, backlog))
            if works is None:
                break
            if works:
                rest = (done - failed, least) if failed or most > least else ()
                recent = (*work.recent, (done, most, *rest))[-RECENT_MAX:]
                work = BusyIntervals(work.until, recent, work.since_empty + 1, usual / MINUTE)
        since_empty = 0 if instances is None else work.since_empty
        work = replace(work, until=after.time, since_empty=since_empty)
    return work


def _done(
    before: MetricValue, after: MetricValue, counted: Counted, backlog: Samples
) -> tuple[float, float]:
    """The deliveries that ended in the interval, and how many of them failed."""
    if counted.incoming:
        failed = max(_growth(counted.failed, before.time, after.time), 0.0)
        return after.value - _growth(backlog, before.time, after.time), failed
    failed = next((each.value for each in counted.failed if each.time == after.time), 0.0)
    return after.value + failed, failed


def _works(start: MetricValue, end: MetricValue, counted: Counted, backlog: Samples) -> bool | None:
    """True if no more than ``counted.limit`` lies between the last time before the interval and the
    first after it at which something was finished; None if this is not known yet."""
    counts = () if counted.incoming else counted.samples
    finished = [count.time for count in counts if count.value > 0]
    finished += [after.time for before, after in pairwise(backlog) if after.value < before.value]
    last = max((time for time in finished if time <= start.time), default=backlog[0].time)
    seen_until = backlog[-1].time
    following = min((time for time in finished if time >= end.time), default=None)
    if following is None and seen_until - end.time < FINISHED_WAIT_MAX:
        return None
    return (following or seen_until) - last <= counted.limit


def _busy_instances(
    start: datetime, end: datetime, backlog: Samples, capacities: Samples, settling: timedelta
) -> tuple[float, float] | None:
    """The least and the most instances that may have worked, all of them during the whole interval:
    None if the queue may have been empty, and 0 if it is not known. A change may have taken place
    at any time since the sample before the first one that shows it."""
    first = bisect_right(backlog, start, key=time_of) - 1
    last = bisect_left(backlog, end, key=time_of)
    if first < 0 or any(sample.value <= 0 for sample in backlog[first : last + 1]):
        return None
    at = bisect_right(capacities, start - settling, key=time_of) - 1
    then = capacities[max(at, 0)]
    seen = bisect_left(capacities, end, key=time_of) + 1
    read = [sample.value for sample in capacities[max(at, 0) : seen]]
    return (0.0, 0.0) if then.time > start else (min(read), max(read))


def _growth(samples: Samples, start: datetime, end: datetime) -> float:
    return _at(samples, end) - _at(samples, start) if samples else 0.0


def _at(backlog: Samples, time: datetime) -> float:
    """The backlog at ``time``, interpolated linearly between the samples before and after it."""
    after = bisect_left(backlog, time, key=time_of)
    before = max(after - 1, 0)
    left, right = backlog[before], backlog[min(after, len(backlog) - 1)]
    if right.time <= left.time:
        return right.value
    return left.value + (right.value - left.value) * ((time - left.time) / (right.time - left.time))
