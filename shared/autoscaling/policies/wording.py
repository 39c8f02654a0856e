"""How policies answer: missing values, whole instances, the nearest turning point."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from shared.autoscaling.measurements import EvidenceValue, MetricValue, Window
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


def time_of(sample: MetricValue) -> datetime:
    return sample.time


def capacity_at(seen: Observation, time: datetime) -> int:
    """How many instances there were; before the first word on that, as many as it says."""
    samples = seen.capacities.samples
    if not samples:
        return seen.capacity
    at = bisect_right(samples, time, key=time_of)
    return int(samples[max(at - 1, 0)].value)


def shown(value: float) -> str:
    """Four digits, and whole numbers up to 15 digits without an exponent."""
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


def stay(
    seen: Observation, rule: str, reason: str, counterfactual: str, **evidence: EvidenceValue
) -> Recommendation:
    return Recommendation(seen.capacity, reason, rule, evidence, counterfactual)


def no_samples(seen: Observation, rule: str, metric: str) -> Recommendation:
    """Nobody knows is not zero."""
    return stay(
        seen,
        rule,
        f"no samples of {metric}",
        f"would have decided with samples of {metric}",
        metric=metric,
        samples=0,
        missing=metric,
    )


def unknown(seen: Observation, rule: str, what: str, remedy: str, name: str) -> Recommendation:
    """Staying for want of something else than samples; evidence ``missing`` names it."""
    return stay(
        seen,
        rule,
        f"{what} is not known: {remedy}",
        f"would have decided with {name}",
        missing=name,
    )


RATE_REMEDY = "set service.rate_per_instance_minute, or wait until enough changes have taught it"
DEAD_TIME_REMEDY = "set service.dead_time_minutes, or wait until a scale-out has taught it"


def no_rate(seen: Observation, rule: str) -> Recommendation:
    what = "the rate of an instance"
    return unknown(seen, rule, what, RATE_REMEDY, "service.rate_per_instance_minute")


def no_dead_time(seen: Observation, rule: str) -> Recommendation:
    what = "the dead time of new instances"
    return unknown(seen, rule, what, DEAD_TIME_REMEDY, "service.dead_time_minutes")


@dataclass(frozen=True, slots=True)
class Turn:
    """A level of a value at which the wish turns."""

    verb: Literal["scaled out", "stayed", "scaled in"]
    label: str
    sign: Literal["<", "≤", "≥", ">"]
    level: float
    value: float

    def __str__(self) -> str:
        return f"would have {self.verb} at {self.label} {self.sign} {shown(self.level)}"


VERB = re.compile(r"would have (scaled out|stayed|scaled in) at ")
STEPS = {"scaled out": 1, "stayed": 0, "scaled in": -1}


def told_step(counterfactual: str) -> int | None:
    """The direction that a turning point leads to; None where it tells of none."""
    told = VERB.match(counterfactual)
    return STEPS[told[1]] if told else None


def sign(difference: int) -> int:
    return (difference > 0) - (difference < 0)


def nearest(turns: Sequence[Turn]) -> str:
    """The turning point closest to what was measured, in words; empty without any."""
    reachable = [t for t in turns if t.level > 0 or (t.level == 0 and t.sign in "≤>")]
    return str(min(reachable, key=lambda t: abs(t.level - t.value))) if reachable else ""


def turns_per_instance(
    seen: Observation, wanted: int, label: str, value: float, per_instance: float
) -> str:
    """The nearest turn of n = ⌈value / per_instance⌉: up to n·per_instance is n's."""
    out_above = seen.capacity * per_instance
    in_at_most = (seen.capacity - 1) * per_instance
    if wanted > seen.capacity:
        return nearest([Turn("stayed", label, "≤", out_above, value)])
    if wanted < seen.capacity:
        return nearest([Turn("stayed", label, ">", in_at_most, value)])
    return nearest(
        [
            Turn("scaled out", label, ">", out_above, value),
            Turn("scaled in", label, "≤", in_at_most, value),
        ]
    )
