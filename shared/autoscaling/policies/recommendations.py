"""How policies answer: values of windows, whole instances, and what they lack to decide."""

from __future__ import annotations

import math
from bisect import bisect_right
from datetime import datetime
from typing import Literal

from shared.autoscaling.measurements import EvidenceValue, Window, time_of
from shared.autoscaling.policy import Observation, Recommendation

Statistic = Literal["latest", "mean", "maximum"]
STATISTICS = ("latest", "mean", "maximum")

INSTANCES_MAX = 1_000_000
"""Far above every limit: keeps absurd quotients finite, the guards bring them down."""

ROUNDING = 1e-9
"""3 · 0.1 / 0.1 shall be 3 instances and not 4."""


def read(window: Window, statistic: Statistic) -> float | None:
    """The value of a window; None without samples."""
    if statistic == "latest":
        return window.latest.value if window.latest else None
    return window.mean if statistic == "mean" else window.maximum


def instances(quotient: float) -> int:
    """Rounded up to whole instances, within 0 .. INSTANCES_MAX."""
    if not quotient < INSTANCES_MAX:  # infinity and NaN too
        return INSTANCES_MAX
    return max(math.ceil(quotient - abs(quotient) * ROUNDING), 0)


def capacity_at(seen: Observation, time: datetime) -> int:
    """How many instances there were; before the first sample of that, as many as in it."""
    samples = seen.capacities.samples
    if not samples:
        return seen.capacity
    at = bisect_right(samples, time, key=time_of)
    return int(samples[max(at - 1, 0)].value)


def shown(value: float) -> str:
    """Four digits, and whole numbers up to 15 digits without an exponent."""
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


def stay(
    seen: Observation, rule: str, reason: str, missing: str = "", **evidence: EvidenceValue
) -> Recommendation:
    """The present capacity; with ``missing``, for want of that."""
    if missing:
        evidence["missing"] = missing
    return Recommendation(seen.capacity, reason, rule, evidence, missing=missing)


def no_samples(seen: Observation, rule: str, metric: str) -> Recommendation:
    """A missing value is not zero."""
    return stay(seen, rule, f"no samples of {metric}", metric, metric=metric, samples=0)


RATE_REMEDY = "set throughput.rate_per_instance_minute, or wait until enough changes have taught it"
DEAD_TIME_REMEDY = "set throughput.dead_time_minutes, or wait until a scale-out has taught it"


def no_rate(seen: Observation, rule: str) -> Recommendation:
    reason = f"the rate of an instance is not known: {RATE_REMEDY}"
    return stay(seen, rule, reason, "throughput.rate_per_instance_minute")


def no_dead_time(seen: Observation, rule: str) -> Recommendation:
    reason = f"the dead time of new instances is not known: {DEAD_TIME_REMEDY}"
    return stay(seen, rule, reason, "throughput.dead_time_minutes")
