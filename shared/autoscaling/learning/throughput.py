"""How fast instances work, from what they finish while there is always work.

Where somebody counts the finished items, or those that come, no change of capacity is needed to
tell the rate μ of a busy instance. In a while in which the backlog never was empty and the number
of instances n did not change, all of them were busy, and

    finished = μ·n·minutes          (finished = incoming - growth of the backlog)

The ratio estimator over such whiles is μ = Σ finished / Σ n·minutes, its standard error that of
the residuals (Cochran, Sampling Techniques, 1977, chapter 6). Whiles shortly after a change are
left out: nobody knows exactly from when on a new instance works. So are whiles whose count is far
off (see outliers.py).
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

from shared.autoscaling.learning.outliers import Pair, believable, contradicted, with_recent
from shared.autoscaling.measurements import MetricValue
from shared.autoscaling.state import BusyIntervals

SETTLING = timedelta(minutes=2)
"""After a change of capacity."""
SPAN_MAX = 1.5
"""An interval longer than this many usual ones lacks a sample, and with it what it counted."""
INTERVALS_MIN = 2.9
"""Three, less what they have lost in weight."""
MEMORY = 0.99
"""Weight of what was known before at each new interval: some hundred are remembered."""

Samples = Sequence[MetricValue]


@dataclass(frozen=True, slots=True)
class Counted:
    """A metric whose samples say how many items were finished, or came, since the one before."""

    samples: Samples
    incoming: bool = False


def with_finished(
    work: BusyIntervals, counted: Counted, backlog: Samples, capacities: Samples
) -> BusyIntervals:
    """The sums with every interval that is over and was not looked at before."""
    samples = counted.samples
    if len(samples) < 2 or not backlog or not capacities:
        return work
    seen_until = min(backlog[-1].time, capacities[-1].time)
    first = 1 if work.until is None else max(bisect_right(samples, work.until, key=_time), 1)
    if first == len(samples) or samples[first].time > seen_until:
        return work
    usual = median_low([after.time - before.time for before, after in pairwise(samples)])
    for before, after in pairwise(samples[first - 1 :]):
        if after.time > seen_until:
            break
        span = after.time - before.time
        if span <= SPAN_MAX * usual:
            instances = _busy_instances(before.time, after.time, backlog, capacities)
            busy_minutes = instances * span / timedelta(minutes=1)
            grown = _at(backlog, after.time) - _at(backlog, before.time) if counted.incoming else 0
            if busy_minutes > 0:
                work = _with(work, after.value - grown, busy_minutes)
        work = replace(work, until=after.time)
    return work


@lru_cache(maxsize=256)
def rate_of(work: BusyIntervals) -> tuple[float, float] | None:
    """Items per busy instance and minute, and the standard error; None before enough intervals."""
    work = _with_sums(_sound(work), believable(work.recent))
    if work.intervals < INTERVALS_MIN or work.busy <= 0:
        return None
    rate = work.done / work.busy
    residual = work.done_done - 2 * rate * work.done_busy + rate * rate * work.busy_busy
    spread = max(residual, 0.0) * work.intervals / (work.intervals - 1)
    return rate, math.sqrt(spread) / work.busy


def _with(work: BusyIntervals, done: float, busy: float) -> BusyIntervals:
    recent, older = with_recent(work.recent, (done, busy))
    return _with_sums(_sound(replace(work, recent=recent)), older)


def _sound(work: BusyIntervals) -> BusyIntervals:
    """Without sums that cannot be right."""
    if contradicted(work.done, work.busy, work.recent):
        return BusyIntervals(until=work.until, recent=work.recent)
    return work


def _with_sums(work: BusyIntervals, pairs: Sequence[Pair]) -> BusyIntervals:
    for done, busy in pairs:
        work = BusyIntervals(
            until=work.until,
            intervals=MEMORY * work.intervals + 1,
            done=MEMORY * work.done + done,
            busy=MEMORY * work.busy + busy,
            done_done=MEMORY * work.done_done + done * done,
            done_busy=MEMORY * work.done_busy + done * busy,
            busy_busy=MEMORY * work.busy_busy + busy * busy,
            recent=work.recent,
        )
    return work


def _busy_instances(start: datetime, end: datetime, backlog: Samples, capacities: Samples) -> float:
    """How many instances were busy all the time; 0 where that is not certain."""
    first = bisect_right(backlog, start, key=_time) - 1
    last = bisect_left(backlog, end, key=_time)
    if first < 0 or any(sample.value <= 0 for sample in backlog[first : last + 1]):
        return 0.0
    at = bisect_right(capacities, start - SETTLING, key=_time) - 1
    then = capacities[max(at, 0)]
    until = bisect_right(capacities, end, key=_time)
    changed = any(sample.value != then.value for sample in capacities[max(at, 0) : until])
    return 0.0 if changed or then.time > start else then.value


def _at(backlog: Samples, time: datetime) -> float:
    """Between two samples on the straight line."""
    after = bisect_left(backlog, time, key=_time)
    before = max(after - 1, 0)
    left, right = backlog[before], backlog[min(after, len(backlog) - 1)]
    if right.time <= left.time:
        return right.value
    return left.value + (right.value - left.value) * ((time - left.time) / (right.time - left.time))


def _time(sample: MetricValue) -> datetime:
    return sample.time
