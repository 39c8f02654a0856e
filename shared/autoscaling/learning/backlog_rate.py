"""Estimates the rate per instance from the course of the backlog alone. Pure.

While all n instances are busy, the backlog grows by λ - μ·n items per minute, with the arrivals λ
and the rate μ. The model is a linear regression of deviations from exponential moving averages, in
which slow changes of λ cancel out:

    y = growth - mean growth        x = n - mean n        y = -μ·x + noise

The noise has Student's t distribution, and its variance is learned from the residuals of every
minute. n counts the instances that can work, not those that are only read.

The posterior distribution of log μ combines the likelihood with three assumptions: if the backlog
falls, an instance finishes at least its share of the decrease; twice the maximum number of
instances could serve the load; and a slow instance is more likely than a fast one, which is the
safe side. Decisions use the low end, because a rate that is too high makes work late without any
sign in the backlog. See docs/adr/0005-default-policy.md.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import pairwise

from shared.autoscaling.policy import RateEstimate, RateSource
from shared.autoscaling.state import BacklogTrend, RateClaim
from shared.values.measurements import MetricValue, time_of

MINUTE = timedelta(minutes=1)
INTERVAL = timedelta(seconds=55)
"""Samples that are closer together are skipped, because the model works in minutes."""
INTERVAL_MAX = timedelta(minutes=3)
"""In a longer interval, samples are missing, so nothing is learned from it."""
LEVEL_WEIGHT = 0.1
"""The weight of the newest minute in the moving averages."""
TOLD_LEVEL_WEIGHT = 0.07
"""The same while a rate that is set by hand is tested. If it were higher, the end of a burst that
led to a scale-out would look like work of the new instances, and hide a setting that is too
high."""
VARIANCE_WEIGHT = 0.05
"""The weight of the newest minute in the variance of the noise."""
FORGETTING = 0.004
"""Each busy minute forgets this share of what was learned, so about four hours of work count."""
TEMPER = 0.5
"""The weight of the likelihood of a minute. The noise of adjacent minutes is correlated."""
RESTORING = 0.2
"""The same for a setting that was refuted, so that a good hour does not restore it."""
LOWER = 0.5
"""A rate that is set by hand is compared with this share of it."""
FREEDOM = 4.0
"""The degrees of freedom of the noise, which has Student's t distribution."""
NOISE_MIN = 0.1
"""The standard deviation of the noise is at least this share of the arrivals."""
OUTLIER = 16.0
"""When the variance is learned, a squared residual counts as at most this many variances."""
IDLE_SHARE = 0.05
"""If the backlog is less than this many minutes of work, instances may be idle."""
GAP_MAX = 30.0
"""The uncertainty about the arrivals grows for at most this many minutes without a busy queue."""
DRAIN_GROWTH_MAX, SHOWN_GROWTH_MAX = 1.5, 3.0
"""One interval raises the lower bound of the rate by at most the first factor, because the backlog
also falls when messages are purged; by at most the second if work was finished beyond doubt."""
LEFT_SHARE = 0.2
"""A purge leaves less than this share of the fall."""
DRAIN_TOLERANCE = 0.05
"""A rate below that lower bound by more than about this share is unlikely."""
LOAD_INSTANCES_MAX = 2.0
"""The load is assumed to need at most this many times the maximum number of instances."""
CAUTION = 1.25
"""Decisions use the rate that lies this many standard deviations below the likely one."""
CELLS = 40
CELL_SPAN = 1000.0
INFORMATION_SPAN = 5.0
"""The posterior is computed at ``CELLS`` points, up to ``CELL_SPAN`` times its scale, and no
further from the value of the regression than ``INFORMATION_SPAN`` standard deviations."""

RATE_MIN = 1e-9
VALUE_MAX = 1e18

Samples = Sequence[MetricValue]
SamplePair = tuple[MetricValue, MetricValue]


def low_end(likely: float, deviation: float) -> float:
    """The rate that decisions use. ``deviation`` is the standard deviation of log μ."""
    return likely * math.exp(-CAUTION * deviation)


def with_backlog(
    trend: BacklogTrend,
    backlog: Samples,
    read: Samples,
    maximum: int,
    working: Samples = (),
    claim: RateClaim | None = None,
) -> BacklogTrend:
    """The trend, updated with every interval that has ended since the last update. ``read`` are the
    instances that were read; they share a fall of the backlog. ``working`` are those that can work,
    if some were still starting. ``claim`` is the rate that is set by hand."""
    if not backlog or not read:
        return trend
    trend = _sound(trend)
    until = trend.until or backlog[0].time
    trend = resumed(trend, min(max(until, backlog[0].time), backlog[-1].time))
    for before, after in _intervals(trend.until, backlog):
        span = after.time - before.time
        if span > INTERVAL_MAX:
            trend = _idle(replace(trend, until=after.time), span / MINUTE)
            continue
        growth = (after.value - before.value) / (span / MINUTE)
        instances = _mean_capacity(working or read, backlog, before.time, after.time)
        most = max(_capacities(read, before.time, after.time))
        seen = replace(trend, until=after.time)
        shown = [_partial_fall(*each, 2.0) for each in _pairs(backlog, before.time, after.time)]
        shown.append(_partial_fall(before, after, 0.0))
        seen = _drained(seen, -growth / most, max(shown) / most)
        trend = _with_minute(seen, growth, instances, after.value, maximum, claim)
    return trend


def _sound(trend: BacklogTrend) -> BacklogTrend:
    """The trend, or a new trend if its values are impossible, such as those of a damaged row."""
    counts, bounds = (trend.busy, trend.gap), (trend.drained, trend.needed)
    positive = (*counts, *bounds, trend.variance, trend.information)
    within = all(0 <= value <= VALUE_MAX for value in positive)
    averages = max(map(abs, (trend.growth, trend.instances, trend.against))) <= VALUE_MAX
    if within and averages and abs(trend.weighted_rate) <= VALUE_MAX * trend.information:
        return trend
    return BacklogTrend(until=trend.until)


def resumed(trend: BacklogTrend, until: datetime) -> BacklogTrend:
    """The trend, to be continued from ``until``. The time since its last sample counts as idle."""
    if trend.until is None:
        return replace(trend, until=until)
    if until == trend.until:
        return trend
    minutes = max((until - trend.until) / MINUTE, 0.0)
    return _idle(replace(trend, until=until), minutes)


def _intervals(until: datetime | None, backlog: Samples) -> Iterator[SamplePair]:
    """Pairs of samples that are at least about a minute apart, starting at ``until``."""
    assert until is not None
    first = max(bisect_right(backlog, until, key=time_of) - 1, 0)
    before = backlog[first]
    for sample in backlog[first + 1 :]:
        if sample.time - before.time >= INTERVAL:
            yield before, sample
            before = sample


def _capacities(samples: Samples, start: datetime, end: datetime) -> list[float]:
    """The capacities during an interval, the last at its end. A change occurs before the first
    sample that shows it."""
    first = max(bisect_right(samples, start, key=time_of) - 1, 0)
    last = max(bisect_right(samples, end, key=time_of), first + 1)
    return [sample.value for sample in samples[first:last]]


def _mean_capacity(samples: Samples, backlog: Samples, start: datetime, end: datetime) -> float:
    """The mean capacity during an interval, as a change acts on a part of its growth."""
    parts = [
        _capacities(samples, before.time, after.time)[-1] * ((after.time - before.time) / MINUTE)
        for before, after in _pairs(backlog, start, end)
    ]
    return sum(parts) / ((end - start) / MINUTE)


def _with_minute(
    trend: BacklogTrend,
    growth: float,
    instances: float,
    backlog: float,
    maximum: int,
    claim: RateClaim | None,
) -> BacklogTrend:
    """The trend after a minute in which the backlog grew by ``growth`` to ``backlog``."""
    told = claim.told if claim and not claim.refuted_at else None
    level = TOLD_LEVEL_WEIGHT if told else LEVEL_WEIGHT
    known, drained = None if told else posterior(trend), trend.drained
    rate = known.low if known else told or 0.0
    if backlog <= IDLE_SHARE * rate * instances:
        trend = _idle(trend, 1.0)
        expected = trend.growth - max(rate, drained) * (instances - trend.instances)
        if not trend.busy or expected <= growth:
            return trend
        return _with_level(trend, growth, instances, level, maximum)
    if not trend.busy:
        variance = trend.variance or _squared(max(abs(growth), drained))
        first = replace(trend, busy=1.0, variance=variance)
        return _with_level(first, growth, instances, 1.0, maximum)
    weight = max(level, 1 / (trend.busy + 1))
    trend = _regressed(trend, growth, instances, max(rate, drained), weight, claim)
    busy = min(trend.busy + 1, 1e6)
    trend = replace(trend, busy=busy, gap=0.0)
    return _with_level(trend, growth, instances, weight, maximum)


def with_finished(
    trend: BacklogTrend, counts: Samples, since: datetime | None, until: datetime, read: Samples
) -> BacklogTrend:
    """The trend after the counts of finished items from ``since`` to ``until``: an instance that
    was read finishes at least its share, less two standard deviations of the count."""
    for before, after in _pairs(counts, since or counts[0].time, until):
        least = after.value - 2 * math.sqrt(after.value)
        most = max(_capacities(read, before.time, after.time))
        trend = _drained(trend, 0.0, least / ((after.time - before.time) / MINUTE) / most)
    return trend


def _drained(trend: BacklogTrend, fallen: float, shown: float) -> BacklogTrend:
    """The trend, with the lower bound updated after the backlog fell by ``fallen`` and at least
    ``shown`` items were finished, both per instance-minute."""
    kept = trend.drained * (1 - FORGETTING)
    least = min(fallen, DRAIN_GROWTH_MAX * kept or math.inf)
    return replace(trend, drained=max(kept, least, min(shown, SHOWN_GROWTH_MAX * kept or math.inf)))


def _partial_fall(before: MetricValue, after: MetricValue, deviations: float) -> float:
    """The fall of the backlog in items per minute, less so many standard deviations of the number
    of finished items; 0 for one that may be a purge."""
    fall = before.value - after.value
    if fall <= 0 or after.value < LEFT_SHARE * fall:
        return 0.0
    return (fall - deviations * math.sqrt(fall)) / ((after.time - before.time) / MINUTE)


def _pairs(samples: Samples, start: datetime, end: datetime) -> Iterator[SamplePair]:
    """The adjacent samples from ``start`` to ``end``."""
    first = max(bisect_right(samples, start, key=time_of) - 1, 0)
    return pairwise(samples[first : bisect_right(samples, end, key=time_of)])


def _idle(trend: BacklogTrend, minutes: float) -> BacklogTrend:
    """The trend after minutes that reveal no arrivals, such as those of an empty queue."""
    return replace(trend, gap=min(trend.gap + minutes, GAP_MAX)) if trend.busy else trend


def _with_level(
    trend: BacklogTrend, growth: float, instances: float, weight: float, maximum: int
) -> BacklogTrend:
    """The trend, with one more minute in its moving averages, and the resulting ``needed``."""
    mean_growth = trend.growth + weight * (growth - trend.growth)
    mean_instances = trend.instances + weight * (instances - trend.instances)
    spare = max(LOAD_INSTANCES_MAX * maximum - mean_instances, 1.0)
    needed = max(mean_growth, 0.0) / spare
    return replace(trend, growth=mean_growth, instances=mean_instances, needed=needed)


def _regressed(
    trend: BacklogTrend,
    growth: float,
    instances: float,
    rate: float,
    weight: float,
    claim: RateClaim | None,
) -> BacklogTrend:
    """The trend, with one more busy minute in its regression."""
    x, y = instances - trend.instances, trend.growth - growth
    arrivals = max(growth + rate * instances, 0.0)
    noise = trend.variance * (1 + weight * (1 + trend.gap)) + _squared(NOISE_MIN * arrivals)
    noise = max(noise, 1e-12)
    information, weighted, variance = trend.information, trend.weighted_rate, trend.variance
    residual, spread, trust = y, noise, 1.0
    if information > 0:
        residual = y - weighted / information * x
        spread = noise + x * x / information
        trust = (FREEDOM + 1) / (FREEDOM + residual * residual / spread)
    if information > 0 or abs(x) < IDLE_SHARE:
        surprise = min(residual * residual / spread, OUTLIER) * noise
        variance += VARIANCE_WEIGHT * (surprise - variance)
    if abs(x) > 1e-3:
        gained = TEMPER * trust * x / noise
        information = information * (1 - FORGETTING) + gained * x
        weighted = weighted * (1 - FORGETTING) + gained * y
    against = trend.against
    if claim is not None:
        ratio = _log_ratio(y - claim.told * x, y - LOWER * claim.told * x, noise)
        against += ratio * (RESTORING if claim.refuted_at else 1.0)
    return replace(
        trend, information=information, weighted_rate=weighted, variance=variance, against=against
    )


def _log_ratio(residual: float, other: float, noise: float) -> float:
    """The logarithm of how much more likely the other residual is. ``noise`` is its variance."""
    either = [math.log(FREEDOM + _squared(each) / noise) for each in (residual, other)]
    return (FREEDOM + 1) / 2 * (either[0] - either[1])


@lru_cache(maxsize=256)
def posterior(trend: BacklogTrend) -> RateEstimate | None:
    """The estimate of the rate per instance; None before any work was seen in the queue."""
    trend = _sound(trend)
    scale = max(trend.drained, trend.needed)
    if not trend.busy or scale < RATE_MIN:
        return None
    rate, low, high = _range(trend, scale)
    step = math.log(high / low) / (CELLS - 1)
    rates = [low * math.exp(step * cell) for cell in range(CELLS)]
    logs = [_log_density(trend, scale, rate, each) for each in rates]
    top = max(logs)
    weights = [math.exp(each - top) for each in logs]
    total = sum(weights)
    mean = sum([step * cell * each for cell, each in enumerate(weights)]) / total
    square = sum([_squared(step * cell - mean) * each for cell, each in enumerate(weights)]) / total
    likely, deviation = low * math.exp(mean), math.sqrt(square + step * step / 12)
    return RateEstimate(RateSource.BACKLOG, likely, low_end(likely, deviation), deviation)


def _range(trend: BacklogTrend, scale: float) -> tuple[float, float, float]:
    """The value of the regression, and the lowest and highest rate that are plausible."""
    low = max(0.8 * trend.drained if trend.drained > 0 else 0.6 * trend.needed, RATE_MIN)
    high = CELL_SPAN * scale
    if trend.information <= 0:
        return 0.0, low, high
    rate = trend.weighted_rate / trend.information
    reach = INFORMATION_SPAN / math.sqrt(trend.information)
    high = max(rate + reach, 1.5 * low) if rate + reach < high else high
    low = min(rate - reach, high / 1.5) if rate - reach > low else low
    return rate, low, high


def _log_density(trend: BacklogTrend, scale: float, regressed: float, rate: float) -> float:
    log = math.log(scale / (rate + scale)) - 0.5 * trend.information * _squared(rate - regressed)
    if rate < trend.drained:
        log -= _squared((trend.drained / rate - 1) / DRAIN_TOLERANCE)
    if rate < trend.needed:
        log -= 2 * _squared(math.log(trend.needed / rate))
    return log


def _squared(value: float) -> float:
    """The square. Unlike ``value ** 2``, it raises no error if the result is too large."""
    return value * value
