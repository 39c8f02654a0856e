"""Helpers for policies: read metrics, round to whole instances, and build recommendations."""

from __future__ import annotations

import math
from bisect import bisect_right
from datetime import datetime
from typing import Literal

from shared.autoscaling.policy import Observation, Recommendation
from shared.values.measurements import EvidenceValue, Samples, Window, time_of

Statistic = Literal["latest", "mean", "maximum"]

INSTANCES_MAX = 1_000_000
"""The highest capacity that a policy recommends. It keeps extreme quotients finite."""

ROUNDING = 1e-9
"""A quotient that differs from a whole number by less than this share of itself counts as that
number: without it, 3 · 0.1 / 0.1 would lead to 4 instances."""


def read(window: Window, statistic: Statistic) -> float | None:
    """The statistic of the samples in a window; None without samples."""
    if statistic == "latest":
        return window.latest.value if window.latest else None
    return window.mean if statistic == "mean" else window.maximum


def instances(quotient: float) -> int:
    """The quotient, rounded up to whole instances, from 0 to ``INSTANCES_MAX``."""
    if not quotient < INSTANCES_MAX:  # true for infinity and NaN, too
        return INSTANCES_MAX
    return max(math.ceil(quotient - abs(quotient) * ROUNDING), 0)


def full_instances(quotient: float) -> int:
    """The quotient, which must be finite and not negative, rounded down to whole instances."""
    return math.floor(quotient + quotient * ROUNDING)


def capacity_at(seen: Observation, time: datetime) -> int:
    """The capacity at ``time``; before the first capacity sample, the value of that sample."""
    samples = seen.capacities.samples
    if not samples:
        return seen.capacity
    later = bisect_right(samples, time, key=time_of)
    return int(samples[max(later - 1, 0)].value)


def covered_seconds(samples: Samples, now: datetime, seconds: float) -> float:
    """How many of the last ``seconds`` the kept samples cover: fewer, if the first one is younger
    by more than two of the intervals between samples. One sample does not tell the interval."""
    if len(samples) < 2:
        return seconds
    covered = (now - samples[0].time).total_seconds()
    interval = covered / (len(samples) - 1)
    return seconds if covered + 2 * interval >= seconds else covered


def shown(value: float) -> str:
    """The value with four significant digits. From 10,000 to 1e15, it is a whole number instead."""
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


HOLDING = "holding: "
"""A reason begins with this if the policy found nothing that calls for a change."""


def instances_text(count: int) -> str:
    """The number with its noun, such as "1 instance"."""
    return f"{count} instance" if count == 1 else f"{count} instances"


def needed(count: int) -> str:
    """The result of a policy that computes a need, such as "3 instances are needed"."""
    return f"{instances_text(count)} {'is' if count == 1 else 'are'} needed"


def stay(
    seen: Observation, rule: str, reason: str, missing: str = "", **evidence: EvidenceValue
) -> Recommendation:
    """Recommend the current capacity. ``missing`` names the input that the policy lacks, if any."""
    if missing:
        evidence["missing"] = missing
    return Recommendation(seen.capacity, HOLDING + reason, rule, evidence, missing=missing)


def no_samples(seen: Observation, rule: str, metric: str) -> Recommendation:
    """Recommend the current capacity, because a missing value is not zero."""
    return stay(seen, rule, f"there are no samples of {metric}", metric, metric=metric, samples=0)


RATE_UNKNOWN = "the rate per instance is not known"


def no_rate(seen: Observation, rule: str) -> Recommendation:
    """Recommend the current capacity, because the rate per instance is not known."""
    remedy = "set throughput.rate_per_instance_minute, or wait until the app has learned it"
    return stay(seen, rule, f"{RATE_UNKNOWN}; {remedy}", "throughput.rate_per_instance_minute")
