"""Learning how fast instances work, and how long they take to come, from confirmed changes.

While a queue is never empty, its backlog changes by ``arrivals - rate·instances`` per minute. A
confirmed change by ``dn`` instances therefore changes the slope by ``ds = -rate·dn``, whatever the
arrivals are, as long as they stay alike for some minutes: regression of ds on dn through the
origin over all changes, rate = -Σ ds·dn / Σ dn². That is the true rate of a busy instance, not the
throughput observed, which idle instances lower. The dead time is the mean wait from order to
confirmation of scale-outs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from shared.autoscaling.model import (
    ActionStatus,
    Desired,
    Learned,
    MetricValue,
    ScalingState,
    Service,
)

SLOPE_MINUTES = 4
SLOPE_SAMPLES_MIN = 3
CHANGES_MIN = 3
RELATIVE_ERROR_MAX = 0.25
MEMORY = 0.98
"""Weight of what was known before at each new change: some fifty changes are remembered."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its standard error, both in the unit of the value."""

    value: float
    standard_error: float

    @property
    def confident(self) -> bool:
        return self.value > 0 and self.standard_error <= RELATIVE_ERROR_MAX * self.value


def known_service(fixed: Service, learned: Learned) -> Service:
    """What is fixed by hand counts; else what was learned, once that is known well enough."""
    if fixed.rate_per_instance_minute is not None and fixed.dead_time_minutes is not None:
        return fixed
    rate, dead_time = fixed.rate_per_instance_minute, fixed.dead_time_minutes
    relative_error = fixed.relative_error
    estimate = learned_rate(learned) if rate is None else None
    if estimate is not None and estimate.confident:
        rate, relative_error = estimate.value, estimate.standard_error / estimate.value
    if dead_time is None and learned.dead_times:
        dead_time = learned.dead_time_minutes
    return Service(rate, dead_time, relative_error)


def learned_rate(learned: Learned) -> Estimate | None:
    """Items per busy instance and minute; None before enough changes."""
    if learned.changes < CHANGES_MIN or learned.sum_dn_dn <= 0:
        return None
    rate = -learned.sum_ds_dn / learned.sum_dn_dn
    unexplained = max(learned.sum_ds_ds - rate * rate * learned.sum_dn_dn, 0.0)
    variance = unexplained / (learned.changes - 1) / learned.sum_dn_dn
    return Estimate(rate, math.sqrt(variance))


def learn(state: ScalingState, backlog_name: str | None, now: datetime) -> ScalingState:
    """The state with the lesson of the last confirmed change, some minutes after it, once."""
    desired = state.desired
    if desired is None or desired.changed_at is None or desired.epoch <= state.learned.epoch:
        return state
    if desired.status is not ActionStatus.CONFIRMED:
        return state
    if now < desired.changed_at + timedelta(minutes=SLOPE_MINUTES):
        return state
    learned = replace(state.learned, epoch=desired.epoch)
    learned = _with_dead_time(learned, desired)
    history = state.histories.get(backlog_name or "")
    if history is not None:
        learned = _with_slopes(learned, desired, history.samples)
    return replace(state, learned=learned)


def _with_dead_time(learned: Learned, desired: Desired) -> Learned:
    assert desired.changed_at is not None
    waited_minutes = (desired.changed_at - desired.requested_at).total_seconds() / 60
    if desired.target <= desired.previous or waited_minutes <= 0:
        return learned
    count = learned.dead_times + 1
    weight = max(1 / count, 1 - MEMORY)
    mean = learned.dead_time_minutes + weight * (waited_minutes - learned.dead_time_minutes)
    return replace(learned, dead_times=count, dead_time_minutes=mean)


def _with_slopes(learned: Learned, desired: Desired, samples: Sequence[MetricValue]) -> Learned:
    assert desired.changed_at is not None
    span = timedelta(minutes=SLOPE_MINUTES)
    before = _busy_slope(samples, desired.changed_at - span, desired.changed_at)
    after = _busy_slope(samples, desired.changed_at, desired.changed_at + span)
    dn = desired.target - desired.previous
    if before is None or after is None or dn == 0:
        return learned
    ds = after - before
    return replace(
        learned,
        changes=learned.changes + 1,
        sum_dn_dn=MEMORY * learned.sum_dn_dn + dn * dn,
        sum_ds_dn=MEMORY * learned.sum_ds_dn + ds * dn,
        sum_ds_ds=MEMORY * learned.sum_ds_ds + ds * ds,
    )


def _busy_slope(samples: Sequence[MetricValue], start: datetime, end: datetime) -> float | None:
    """Least-squares slope in items per minute; None where the queue ran empty or was not seen."""
    points = [
        ((s.time - start).total_seconds() / 60, s.value) for s in samples if start <= s.time <= end
    ]
    if len(points) < SLOPE_SAMPLES_MIN or any(value <= 0 for _, value in points):
        return None
    mean_x = sum([x for x, _ in points]) / len(points)
    mean_y = sum([y for _, y in points]) / len(points)
    spread = sum([(x - mean_x) ** 2 for x, _ in points])
    if spread <= 0:
        return None
    return sum([(x - mean_x) * (y - mean_y) for x, y in points]) / spread
