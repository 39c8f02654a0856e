"""What came to a queue of late, and what is to come of it under one or the other capacity.

Arrivals are inferred from the backlog and the instances that worked on it. A step is the time in
which a policy plans, commonly a minute. All work is in instance-steps: items divided by what one
busy instance finishes in a step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from math import inf
from operator import sub

from shared.autoscaling.measurements import MetricValue, Window, span, time_of

SAMPLES_MIN = 4
"""However long ago, where the steps are shorter than the time between samples."""
IDLE_DECAY = 0.95
"""An empty queue hides what arrives: a twentieth less is assumed with every empty step."""
IN_HAND_STEPS_MIN = 0.05
IN_HAND_STEPS_MAX = 0.5
"""What an instance may have in hand: one item, but no less and no more work than this."""


@dataclass(frozen=True, slots=True)
class Memory:
    """How much of the past counts; ``smoothing`` is the weight of the newest step in the rate."""

    steps: float = 15.0
    smoothing: float = 0.3


RECENT = Memory()


@dataclass(frozen=True, slots=True)
class Arrivals:
    """``rate`` per step, smoothed, and what came in each of the last steps, newest first."""

    rate: float
    recent: tuple[float, ...]


def infer(
    backlog: Window,
    capacities: Sequence[MetricValue],
    capacity: int,
    rate_per_instance_step: float,
    steps: int,
    step_seconds: float,
    now: datetime,
    memory: Memory = RECENT,
) -> Arrivals | None:
    """None before the second sample. ``steps`` is how many single steps are asked for.

    While work waits, arrivals are growth plus what is served: x = n + Δq/Δt. Of a queue that is
    empty, but for what instances have in hand, only a bound is known. Samples may be missing or
    unevenly spaced: one that stands for Δt steps weighs 1 - (1 - smoothing)^Δt. Single samples may
    be negative, for items are finished in chunks and not evenly; to leave those out would overrate
    the rest, so only the sum is at least 0.
    """
    samples = backlog.samples
    if len(samples) < 2:
        return None
    first = bisect_left(samples, now - span(memory.steps * step_seconds), key=time_of)
    if first and first > len(samples) - SAMPLES_MIN:
        first = max(len(samples) - SAMPLES_MIN, 0)
    before, rate, arrivals = samples[first].value / rate_per_instance_step, None, []
    step, times = span(step_seconds), [sample.time for sample in samples[first:]]
    samples, gaps = samples[first + 1 :], [*map(sub, times[1:], times)]
    serving = _serving(capacities, capacity, samples)
    smoothing, in_hand = memory.smoothing, in_hand_steps(rate_per_instance_step)
    for sample, gap, instances in zip(samples, gaps, serving, strict=True):
        after = sample.value / rate_per_instance_step
        took = 1.0 if gap == step else gap / step
        if took == 1.0:
            arrived, weight = instances + (after - before), smoothing
        else:
            arrived, weight = instances + (after - before) / took, _weight(smoothing, took)
        if after <= in_hand * instances:
            arrived = _believed(arrived, rate, IDLE_DECAY**took)
        rate = arrived if rate is None else rate + (arrived - rate) * weight
        arrivals.append(arrived)
        before = after
    newest = samples[-1].time
    ago = (now - newest).total_seconds() / step_seconds if now > newest else 0.0  # clocks differ
    recent = _recent(arrivals, gaps, step, ago, steps)
    return Arrivals(0.0 if rate is None or rate < 0.0 else rate, _without_negatives(recent))


@lru_cache
def in_hand_steps(rate_per_instance_step: float) -> float:
    """So much work an instance may have in hand while nothing waits, for brokers count it, too."""
    return max(IN_HAND_STEPS_MIN, min(1 / rate_per_instance_step, IN_HAND_STEPS_MAX))


def waiting_share(backlog: Sequence[MetricValue], start: datetime, in_hand: float) -> float:
    """In what part of the samples since ``start`` more waited than that; 0 without samples."""
    samples = backlog[bisect_left(backlog, start, key=time_of) :]
    if not samples:
        return 0.0
    return sum([sample.value > in_hand for sample in samples]) / len(samples)


def _weight(smoothing: float, took: float) -> float:
    kept: float = (1.0 - smoothing) ** took
    return 1.0 - kept


def _believed(most: float, rate: float | None, decay: float) -> float:
    """Of the most that can have come while the queue was, or became, empty."""
    return min(most, (most if rate is None else max(rate, 0.0)) * decay)


def _without_negatives(recent: list[float]) -> tuple[float, ...]:
    """The same sum; a step that seems to have taken items back gives that to the one before.

    Instances may finish items in chunks, and each sample then shows too much of it or too little.
    """
    if min(recent) >= 0.0:
        return tuple(recent)
    owed = 0.0
    for step, arrived in enumerate(recent):
        recent[step] = max(arrived + owed, 0.0)
        owed = min(arrived + owed, 0.0)
    for step, arrived in reversed(list(enumerate(recent))):
        recent[step] = max(arrived + owed, 0.0)
        owed = min(arrived + owed, 0.0)
    return tuple(recent)


def _serving(
    capacities: Sequence[MetricValue], capacity: int, samples: Sequence[MetricValue]
) -> list[float]:
    """How many instances there were at the time of each sample."""
    if not capacities:
        return [float(capacity)] * len(samples)
    serving: list[float] = []
    here, start = capacities[0].value, samples[0].time
    for change in capacities:
        if change.value != here:
            until = bisect_left(samples, change.time, key=time_of) if change.time > start else 0
            serving += [here] * (until - len(serving))
            here = change.value
    return serving + [here] * (len(samples) - len(serving))


def _recent(
    arrivals: list[float], gaps: Sequence[timedelta], step: timedelta, ago: float, steps: int
) -> list[float]:
    """What came in each of the last steps, newest first; the newest sample is ``ago`` old."""
    if ago == 0.0 and gaps[-steps:] == [step] * steps:  # a sample a step
        return arrivals[: -steps - 1 : -1]
    recent = [0.0] * steps
    for rate, gap in zip(reversed(arrivals), reversed(gaps), strict=True):
        if ago >= steps:
            break
        end, ago = ago, ago + gap / step
        _spread(recent, rate, end, ago)
    return recent


def _spread(recent: list[float], arrived: float, end: float, start: float) -> None:
    """Add a rate that held from ``start`` to ``end`` steps ago to the steps it covers."""
    if start - end == 1.0 and end == int(end):
        recent[int(end)] += arrived
        return
    slot = int(end)
    while slot < start and slot < len(recent):
        recent[slot] += arrived * (min(start, slot + 1.0) - max(end, slot))
        slot += 1


ORDER_AHEAD_STEPS = 2
"""Order more where work would be late within the dead time and this ..."""
PLAN_AHEAD_STEPS = 4
"""... and so many that none is late within the dead time and this."""
RETURN_TRIP = 2.0
"""An instance that is ordered must be let go again: two changes."""


@dataclass(frozen=True, slots=True)
class Projection:
    """Late work and idle instances in instance-steps, and the worst age in steps."""

    late: float
    idle: float
    worst_age: float


@dataclass(frozen=True, slots=True)
class Outlook:
    """A queue as it is now, the instances there are, and those ordered.

    ``dead`` is the dead time of a new order and ``arrival`` the steps until the one under way has
    come, both at least 1. ``share`` is the part of the age limit to make use of.
    """

    backlog: float
    arrivals: Arrivals
    capacity: int
    ordered: int
    dead: int
    arrival: int
    share: float
    overdue: bool = False
    """The order under way should have come already: nobody knows when it will."""

    def standing(self, steps: int) -> list[int]:
        """The instances of the coming steps if nothing else is ordered."""
        if self.ordered == self.capacity:
            return [self.capacity] * steps
        waiting = self.arrival - 1
        return ([self.capacity] * waiting + [self.ordered] * steps)[:steps]

    def project(self, planned: Sequence[int]) -> Projection:
        """With the arrivals as they are now: late_h = max(0, q_h - share·(last L arrivals))."""
        rate, recent, backlog = self.arrivals.rate, self.arrivals.recent, self.backlog
        share, leaving, window = self.share, len(recent), sum(recent)
        late = idle = worst = 0.0
        for serving in planned:
            backlog += rate - serving
            leaving -= 1
            window += rate - (recent[leaving] if leaving >= 0 else rate)
            if backlog <= 0.0:
                idle -= backlog
                backlog = 0.0
            elif backlog > share * window:
                late += backlog - share * window
                age = len(recent) * backlog / window if window > 0.0 else len(recent) + 1.0
                worst = age if age > worst else worst
        return Projection(late, idle, worst)

    def late_ahead(self) -> Projection:
        """What becomes late before a new order could help, and a little after."""
        return self.project(self.standing(self.dead + ORDER_AHEAD_STEPS))

    def cheapest(self, maximum: int, switch_cost: float, late_penalty: float) -> int:
        """The capacity at which one more instance costs more than the lateness it avoids."""
        wanted, best = self.ordered, inf
        kept = self.standing(self.dead - 1)
        for target in range(self.ordered, maximum + 1):
            ahead = self.project(kept + [target] * (PLAN_AHEAD_STEPS + 1))
            change = RETURN_TRIP * switch_cost * (target - self.ordered)
            cost = change + ahead.idle + late_penalty * ahead.late
            if cost >= best:
                break
            best, wanted = cost, target
        return wanted

    def worth_replacing(self, wanted: int) -> bool:
        """Is a new order now better than one when the one under way has come?"""
        if self.arrival <= 1:
            return False
        steps = self.dead + PLAN_AHEAD_STEPS + self.arrival
        replaced = [self.capacity] * (self.dead - 1) + [wanted] * (steps - self.dead + 1)
        waited = self.standing(self.dead + self.arrival - 1)
        waited += [wanted] * (steps - len(waited))
        return self.project(replaced).late < self.project(waited).late
