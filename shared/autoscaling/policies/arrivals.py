"""Arrivals per step, inferred from a backlog and the instances that worked on it.

A step is the time in which a policy plans, commonly a minute. All work is in instance-steps: items
divided by what one busy instance finishes in a step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from shared.autoscaling.model import MetricValue

HISTORY_STEPS = 15.0
SAMPLES_MIN = 4
"""However long ago, where the steps are shorter than the time between samples."""
SMOOTHING = 0.3
"""Weight of the newest step in the rate: a memory of some six steps."""
IDLE_DECAY = 0.9
"""An empty queue hides what arrives: a tenth less is assumed with every empty step."""


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
) -> Arrivals | None:
    """None before the second sample. ``steps`` is how many single steps are asked for.

    While work waits, arrivals are growth plus service: x = n + Δq/Δt. Of an empty queue only a
    bound is known. Samples may be missing or unevenly spaced: one that stands for Δt steps
    weighs 1 - (1 - SMOOTHING)^Δt.
    """
    if len(backlog) < 2:
        return None
    first = bisect_left(backlog, now - timedelta(seconds=HISTORY_STEPS * step_seconds), key=_time)
    first = min(first, max(len(backlog) - SAMPLES_MIN, 0))
    serving = _serving(capacities, capacity)
    recent = [0.0] * steps
    rate = -1.0
    started = (now - backlog[first].time).total_seconds() / step_seconds
    before = backlog[first].value / rate_per_instance_step
    for sample in backlog[first + 1 :]:
        ago = max((now - sample.time).total_seconds() / step_seconds, 0.0)  # clocks differ
        span = started - ago
        if span <= 0.0:
            continue
        after = sample.value / rate_per_instance_step
        arrived = max(serving(sample.time) + (after - before) / span, 0.0)
        rate, arrived = _learned(rate, arrived, span, empty=after <= 0.0)
        if ago < steps:
            _spread(recent, arrived, ago, started)
        started, before = ago, after
    return Arrivals(max(rate, 0.0), tuple(recent))


def _learned(rate: float, arrived: float, span: float, *, empty: bool) -> tuple[float, float]:
    """The rate after ``span`` steps of ``arrived``, and what of that is believed."""
    whole = span == 1.0
    if empty:
        most = rate if rate >= 0.0 else arrived
        arrived = min(arrived, most * (IDLE_DECAY if whole else IDLE_DECAY**span))
    if rate < 0.0:
        return arrived, arrived
    weight = SMOOTHING if whole else 1.0 - (1.0 - SMOOTHING) ** span
    return rate + (arrived - rate) * weight, arrived


def _serving(capacities: Sequence[MetricValue], capacity: int) -> Callable[[datetime], float]:
    """How many instances there were at a time; times must be asked for in their order."""
    if not capacities:
        return lambda _time: float(capacity)
    changes = iter(capacities)
    here = next(changes)
    coming = next(changes, None)

    def at(time: datetime) -> float:
        nonlocal here, coming
        while coming is not None and coming.time <= time:
            here, coming = coming, next(changes, None)
        return here.value

    return at


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
