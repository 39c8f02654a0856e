"""Arrivals per step, inferred from a backlog and the instances that worked on it.

A step is the time in which a policy plans, commonly a minute. All work is in instance-steps: items
divided by what one busy instance finishes in a step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from shared.autoscaling.model import MetricValue
from shared.quick import quick

SAMPLES_MIN = 4
"""However long ago, where the steps are shorter than the time between samples."""
IDLE_DECAY = 0.95
"""An empty queue hides what arrives: a twentieth less is assumed with every empty step."""
IN_HAND_STEPS_MIN = 0.05
IN_HAND_STEPS_MAX = 0.5
"""What an instance may have in hand: one item, but no less and no more work than this."""


@quick
@dataclass(frozen=True, slots=True)
class Memory:
    """How much of the past counts; ``smoothing`` is the weight of the newest step in the rate."""

    steps: float = 15.0
    smoothing: float = 0.3


RECENT = Memory()


@quick
@dataclass(frozen=True, slots=True)
class Arrivals:
    """``rate`` per step, smoothed, and what came in each of the last steps, newest first."""

    rate: float
    recent: tuple[float, ...]


def infer(
    backlog: Sequence[MetricValue],
    capacities: Sequence[MetricValue],
    capacity: int,
    rate_per_instance_step: float,
    steps: int,
    step_seconds: float,
    now: datetime,
    memory: Memory = RECENT,
) -> Arrivals | None:
    """None before the second sample. ``steps`` is how many single steps are asked for.

    While work waits, arrivals are growth plus service: x = n + Δq/Δt. Of a queue that is empty,
    but for what instances have in hand, only a bound is known. Samples may be missing or unevenly
    spaced: one that stands for Δt steps weighs 1 - (1 - smoothing)^Δt. Single samples may be
    negative, for items are finished in chunks and not evenly; to leave those out would overrate
    the rest, so only the sum is at least 0.
    """
    if len(backlog) < 2:
        return None
    first = bisect_left(backlog, now - timedelta(seconds=memory.steps * step_seconds), key=_time)
    first = min(first, max(len(backlog) - SAMPLES_MIN, 0))
    samples = backlog[first:]
    recent = [0.0] * steps
    smoothing, in_hand = memory.smoothing, in_hand_steps(rate_per_instance_step)
    rate = None
    started = (now - samples[0].time).total_seconds() / step_seconds
    before = samples[0].value / rate_per_instance_step
    for sample, serving in zip(samples, _serving(capacities, capacity, samples), strict=True):
        ago = (now - sample.time).total_seconds() / step_seconds
        if ago < 0.0:  # clocks differ  # noqa: PLR1730  max() takes thrice as long, and this is hot
            ago = 0.0
        span = started - ago
        if span <= 0.0:
            continue
        after = sample.value / rate_per_instance_step
        arrived = serving + (after - before) / span
        if after <= in_hand * serving:
            arrived = _believed(arrived, rate, IDLE_DECAY**span)
        if rate is None:
            rate = arrived
        else:
            rate += (arrived - rate) * (smoothing if span == 1.0 else _weight(smoothing, span))
        if ago < steps:
            _spread(recent, arrived, ago, started)
        started, before = ago, after
    return Arrivals(max(rate or 0.0, 0.0), tuple(_without_negatives(recent)))


def in_hand_steps(rate_per_instance_step: float) -> float:
    """So much work an instance may have in hand while nothing waits, for brokers count it, too."""
    return max(IN_HAND_STEPS_MIN, min(1 / rate_per_instance_step, IN_HAND_STEPS_MAX))


def waiting_share(backlog: Sequence[MetricValue], start: datetime, in_hand: float) -> float:
    """In what part of the samples since ``start`` more waited than that; 0 without samples."""
    samples = backlog[bisect_left(backlog, start, key=_time) :]
    if not samples:
        return 0.0
    return sum([sample.value > in_hand for sample in samples]) / len(samples)


def _weight(smoothing: float, span: float) -> float:
    kept: float = (1.0 - smoothing) ** span
    return 1.0 - kept


def _believed(most: float, rate: float | None, decay: float) -> float:
    """Of the most that can have come while the queue was, or became, empty."""
    return min(most, (most if rate is None else max(rate, 0.0)) * decay)


def _without_negatives(recent: list[float]) -> list[float]:
    """The same sum; a step that seems to have taken items back gives that to the one before.

    Instances may finish items in chunks, and each sample then shows too much of it or too little.
    """
    if min(recent) >= 0.0:
        return recent
    owed = 0.0
    for step, arrived in enumerate(recent):
        recent[step] = max(arrived + owed, 0.0)
        owed = min(arrived + owed, 0.0)
    for step, arrived in reversed(list(enumerate(recent))):
        recent[step] = max(arrived + owed, 0.0)
        owed = min(arrived + owed, 0.0)
    return recent


def _serving(
    capacities: Sequence[MetricValue], capacity: int, samples: Sequence[MetricValue]
) -> list[float]:
    """How many instances there were at the time of each sample."""
    if not capacities:
        return [float(capacity)] * len(samples)
    serving: list[float] = []
    here = capacities[0].value
    for change in capacities:
        if change.value != here:
            until = bisect_left(samples, change.time, key=_time)
            serving += [here] * (until - len(serving))
            here = change.value
    return serving + [here] * (len(samples) - len(serving))


def _time(sample: MetricValue) -> datetime:
    return sample.time


def _spread(recent: list[float], arrived: float, end: float, start: float) -> None:
    """Add a rate that held from ``start`` to ``end`` steps ago to the steps it covers."""
    if start - end == 1.0 and end == int(end):
        recent[int(end)] += arrived
        return
    slot = int(end)
    while slot < start and slot < len(recent):
        recent[slot] += arrived * (min(start, slot + 1.0) - max(end, slot))
        slot += 1
