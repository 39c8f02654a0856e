"""Defines when a metric is silent, and how its silence affects decisions. All functions are pure.

A metric that decisions use is silent after ``Missing.after_seconds`` and the usual lag of its
source. A count of finished or incoming items, from which only the rate per instance is learned, is
silent once it is too old to learn from, and never if it comes from Azure Monitor, which publishes
no values while no messages arrive. In both cases, a declaration for the missing metric takes
precedence.
"""

from __future__ import annotations

import math
from datetime import datetime

from shared.autoscaling.deciding.decide import effective_mode, effective_override
from shared.autoscaling.deciding.guards import waited_seconds
from shared.autoscaling.deciding.samples import known_capacity, samples_of
from shared.autoscaling.declaring import Mode
from shared.autoscaling.policy import Resource
from shared.autoscaling.sources import PLAN_READ_SECONDS
from shared.autoscaling.state import ScalingState
from shared.values.measurements import CAPACITY_METRIC, Samples

CAPACITY_SECONDS_MAX = 2 * PLAN_READ_SECONDS
"""A capacity that is older was not read when it was due."""


def silences(resource: Resource, state: ScalingState, now: datetime) -> dict[str, str]:
    """The capacity and the metrics that are silent, each with the effect on decisions."""
    return {
        name: _meanwhile(resource, state, name, now)
        for name in (CAPACITY_METRIC, *resource.metrics)
        if _is_silent(samples_of(state, name), silent_after_seconds(resource, name), now)
    }


def _is_silent(samples: Samples, limit_seconds: float, now: datetime) -> bool:
    if not samples:
        return limit_seconds < math.inf
    return (now - samples[-1].time).total_seconds() > limit_seconds


def silent_after_seconds(resource: Resource, name: str) -> float:
    """The age of the newest sample, in seconds, at which the metric counts as silent."""
    guards, source = resource.guards, resource.source(name)
    if name == CAPACITY_METRIC:
        return max(guards.missing_for(name).after_seconds, CAPACITY_SECONDS_MAX)
    if name == resource.throughput.counted_metric and name not in guards.missing_by_metric:
        return math.inf if source.series else resource.kept_history_seconds
    return guards.missing_for(name).after_seconds + float(source.usual_lag_seconds)


def _meanwhile(resource: Resource, state: ScalingState, name: str, now: datetime) -> str:
    mode, _ = effective_mode(resource, state, now)
    if mode is Mode.PAUSED:
        return "The resource is paused, so no decision is made."
    if known_capacity(state) is None:
        cause = "was never read" if name == CAPACITY_METRIC else "is not known"
        return f"The capacity of the plan {cause}, so no decision is made."
    if name == CAPACITY_METRIC:
        return "The plan cannot be read, so decisions use its last known capacity."
    if name == resource.throughput.counted_metric:
        return (
            "Decisions do not use this metric. Meanwhile the rate per instance stays as it "
            "was counted before, or is estimated from the backlog."
        )
    override = effective_override(state, now)
    if override is not None and override.exact is not None:
        return "An override sets the capacity, so decisions do not use this metric."
    text = _effect(resource, state, name, now)
    if name == resource.guards.breaker_metric:
        text += " Whether the circuit breaker is open is unknown, so it does not prevent scale-out."
    if mode is Mode.DRY_RUN:
        text += " This is a dry run, so only what is logged changes."
    return text


def _effect(resource: Resource, state: ScalingState, name: str, now: datetime) -> str:
    rule = resource.guards.missing_for(name)
    waited = waited_seconds(samples_of(state, CAPACITY_METRIC), now)
    if isinstance(rule.then, int) and not samples_of(state, name) and waited <= rule.after_seconds:
        after = f"{rule.after_seconds:g} s after the first one of the capacity"
        return f"The resource is not scaled in until a sample arrives, or until {after}."
    return {
        "hold_in": "The resource is not scaled in meanwhile.",
        "hold": "The capacity does not change meanwhile.",
    }.get(
        str(rule.then),
        "The resource is not scaled in meanwhile. With fewer instances, the capacity falls back to "
        f"{rule.then}, within the limits.",
    )
