"""Estimating the throughput per instance from the course of the backlog alone. Pure.

While every instance is busy, the backlog grows by ``λ - μ·n`` items a minute: λ arrive, and each of
the n instances finishes μ. Only a change of n tells the two apart. The model is a linear regression
against a moving level:

    y = growth - mean growth        x = n - mean n        y = -μ·x + noise

Both means are exponential moving averages, so arrivals that wander slowly cancel out. The noise has
heavy tails (Student's t), and its variance is learned from the residuals. Every minute counts, so a
change of capacity teaches for as long as the moving averages remember the capacity before it.

The posterior over log μ multiplies that likelihood by three pieces of prior knowledge:

- Arrivals are not negative, so an instance finishes at least its share of what the backlog falls.
- A plan is large enough for its load: twice the maximum of instances could keep up with it.
- Beyond that, a slow instance is more likely than a fast one. This errs on the safe side.

Decisions use the low end of the posterior. An overrated throughput makes work late without any sign
in the backlog, while an underrated one costs a few idle instances.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache

from shared.autoscaling.measurements import MetricValue, time_of
from shared.autoscaling.policy import RateEstimate, RateSource
from shared.autoscaling.state import BacklogTrend

INTERVAL = timedelta(seconds=55)
"""Samples that are closer together are skipped: the model works in minutes."""
INTERVAL_MAX = timedelta(minutes=3)
"""A longer interval lacks samples. It teaches nothing."""
LEVEL_WEIGHT = 0.1
"""Weight of the newest minute in the moving averages."""
VARIANCE_WEIGHT = 0.05
"""The same for the variance of the noise."""
FORGETTING = 0.002
"""Share of what is known that each busy minute forgets: about eight hours are remembered."""
TEMPER = 0.2
"""Weight of a minute's likelihood. Less than 1, because the noise of adjacent minutes is related.
"""
FREEDOM = 4.0
"""Degrees of freedom of the noise."""
NOISE_MIN = 0.1
"""The noise is at least this share of the arrivals, however smooth they have been so far."""
OUTLIER = 16.0
"""A squared residual counts for at most this many variances when the variance is learned."""
IDLE_SHARE = 0.05
"""A backlog below this many minutes of work may leave instances idle."""
GAP_MAX = 30.0
"""Minutes without a busy queue, after which the uncertainty about the arrivals grows no more."""
DRAIN_GROWTH_MAX = 1.5
"""A single interval raises the lower bound by at most this factor: messages may also be purged."""
DRAIN_TOLERANCE = 0.05
"""How far the throughput may lie below that lower bound, relative to itself."""
LOAD_INSTANCES_MAX = 2.0
"""The load needs at most this many times the maximum of instances."""
CAUTION = 1.25
"""Decisions use the value that lies this many standard deviations below the likely one."""
CELLS = 40
CELL_SPAN = 1000.0
INFORMATION_SPAN = 5.0
"""The posterior is computed on this many cells, up to a multiple of its scale, and no further from
the regression's value than this many standard deviations."""

RATE_MIN = 1e-9
VALUE_MAX = 1e18

Samples = Sequence[MetricValue]


def low_end(likely: float, deviation: float) -> float:
    """The throughput that decisions use. ``deviation`` is that of its logarithm."""
    return likely * math.exp(-CAUTION * deviation)


def with_backlog(
    trend: BacklogTrend, backlog: Samples, capacities: Samples, maximum: int
) -> BacklogTrend:
    """The trend with every interval that has ended since it was last updated.

    ``backlog`` and ``capacities`` are sorted by time; ``maximum`` is the most instances allowed.
    """
    if not backlog or not capacities:
        return trend
    trend = _sound(trend)
    until = trend.until or backlog[0].time
    trend = _resumed(trend, min(max(until, backlog[0].time), backlog[-1].time))
    for before, after in _intervals(trend.until, backlog):
        seen = replace(trend, until=after.time)
        span = after.time - before.time
        if span > INTERVAL_MAX:
            trend = _idle(seen, span / timedelta(minutes=1))
            continue
        growth = (after.value - before.value) / (span / timedelta(minutes=1))
        instances, most = _capacities(capacities, before.time, after.time)
        seen = _drained(seen, -growth / most)
        trend = _with_minute(seen, growth, instances, after.value, maximum)
    return trend


def _sound(trend: BacklogTrend) -> BacklogTrend:
    """A fresh trend in place of one that no measurements lead to, such as a damaged row."""
    counts, bounds = (trend.busy, trend.gap), (trend.drained, trend.needed)
    positive = (*counts, *bounds, trend.variance, trend.information)
    within = all(0 <= value <= VALUE_MAX for value in positive)
    averages = max(abs(trend.growth), abs(trend.instances)) <= VALUE_MAX
    if within and averages and abs(trend.weighted_rate) <= VALUE_MAX * trend.information:
        return trend
    return BacklogTrend(until=trend.until)


def _resumed(trend: BacklogTrend, until: datetime) -> BacklogTrend:
    """The trend from a time on of which the samples are kept."""
    if trend.until is None:
        return replace(trend, until=until)
    if until == trend.until:
        return trend
    minutes = max((until - trend.until) / timedelta(minutes=1), 0.0)
    return _idle(replace(trend, until=until), minutes)


def _intervals(
    until: datetime | None, backlog: Samples
) -> Iterator[tuple[MetricValue, MetricValue]]:
    """Pairs of samples about a minute apart, from the sample at ``until`` on."""
    assert until is not None
    first = max(bisect_right(backlog, until, key=time_of) - 1, 0)
    before = backlog[first]
    for sample in backlog[first + 1 :]:
        if sample.time - before.time >= INTERVAL:
            yield before, sample
            before = sample


def _capacities(samples: Samples, start: datetime, end: datetime) -> tuple[float, float]:
    """The capacity at the end of an interval, and the highest one during it.

    A change is seen at the next sample of the capacity, so it happened earlier than its sample.
    """
    first = max(bisect_right(samples, start, key=time_of) - 1, 0)
    last = max(bisect_right(samples, end, key=time_of), first + 1)
    values = [sample.value for sample in samples[first:last]]
    return values[-1], max(values)


def _with_minute(
    trend: BacklogTrend, growth: float, instances: float, backlog: float, maximum: int
) -> BacklogTrend:
    """The trend after a minute in which the backlog grew by ``growth`` to ``backlog``."""
    known, drained = posterior(trend), trend.drained
    rate = known.low if known else 0.0
    if backlog <= IDLE_SHARE * rate * instances:
        trend = _idle(trend, 1.0)
        expected = trend.growth - max(rate, drained) * (instances - trend.instances)
        if not trend.busy or expected <= growth:
            return trend
        return _with_level(trend, growth, instances, LEVEL_WEIGHT, maximum)
    if not trend.busy:
        variance = trend.variance or _squared(max(abs(growth), drained))
        first = replace(trend, busy=1.0, variance=variance)
        return _with_level(first, growth, instances, 1.0, maximum)
    weight = max(LEVEL_WEIGHT, 1 / (trend.busy + 1))
    trend = _regressed(trend, growth, instances, max(rate, drained), weight)
    busy = min(trend.busy + 1, 1e6)
    trend = replace(trend, busy=busy, gap=0.0)
    return _with_level(trend, growth, instances, weight, maximum)


def _drained(trend: BacklogTrend, fallen: float) -> BacklogTrend:
    """The trend with the lower bound after the backlog fell by this much per instance."""
    kept = trend.drained * (1 - FORGETTING)
    return replace(trend, drained=max(kept, min(fallen, DRAIN_GROWTH_MAX * kept or math.inf)))


def _idle(trend: BacklogTrend, minutes: float) -> BacklogTrend:
    """An empty queue hides what arrives."""
    return replace(trend, gap=min(trend.gap + minutes, GAP_MAX)) if trend.busy else trend


def _with_level(
    trend: BacklogTrend, growth: float, instances: float, weight: float, maximum: int
) -> BacklogTrend:
    """The moving averages with one more minute, and the throughput that the load calls for."""
    mean_growth = trend.growth + weight * (growth - trend.growth)
    mean_instances = trend.instances + weight * (instances - trend.instances)
    spare = max(LOAD_INSTANCES_MAX * maximum - mean_instances, 1.0)
    needed = max(mean_growth, 0.0) / spare
    return replace(trend, growth=mean_growth, instances=mean_instances, needed=needed)


def _regressed(
    trend: BacklogTrend, growth: float, instances: float, rate: float, weight: float
) -> BacklogTrend:
    """The regression with one more busy minute."""
    x, y = instances - trend.instances, trend.growth - growth
    arrivals = max(growth + rate * instances, 0.0)
    noise = trend.variance * (1 + weight * (1 + trend.gap)) + _squared(NOISE_MIN * arrivals)
    noise = max(noise, 1e-12)
    information, weighted, variance = trend.information, trend.weighted_rate, trend.variance
    trust = 1.0
    if information > 0:
        residual = y - weighted / information * x
        spread = noise + x * x / information
        trust = (FREEDOM + 1) / (FREEDOM + residual * residual / spread)
    else:
        residual = y
    steady = abs(x) < IDLE_SHARE
    if steady or information * rate * rate > 10:
        surprise = min(residual * residual, OUTLIER * noise)
        variance += VARIANCE_WEIGHT * (surprise - variance)
    if abs(x) > 1e-3:
        gained = TEMPER * trust * x / noise
        information = information * (1 - FORGETTING) + gained * x
        weighted = weighted * (1 - FORGETTING) + gained * y
    return replace(trend, information=information, weighted_rate=weighted, variance=variance)


@lru_cache(maxsize=256)
def posterior(trend: BacklogTrend) -> RateEstimate | None:
    """What is known of the throughput; None before the queue was first seen with work in it."""
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
    """The regression's value, and the lowest and highest throughput that need to be looked at."""
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
    """Unlike ``value ** 2`` it raises no error if the square is too large."""
    return value * value
