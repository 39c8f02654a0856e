"""Defines when a metric is silent, and how its silence affects decisions. All functions are pure.

A metric that decisions use is silent after ``Missing.after_seconds`` and the usual lag of its
source. A count of finished or incoming items may arrive minutes late, because only the throughput
per instance is learned from it. Such a metric is silent once its newest sample is too old to learn
from. The count that the app adds by itself is never silent. Decisions do not use it, and Azure
Monitor publishes no values while no messages arrive.
"""

from __future__ import annotations

import math
from datetime import datetime

from shared.autoscaling.counts import COMPLETED, counting_source
from shared.autoscaling.lag import usual_lag_seconds
from shared.autoscaling.measurements import CAPACITY_METRIC, MetricValue
from shared.autoscaling.policy import Resource


def is_silent(resource: Resource, name: str, newest: MetricValue | None, now: datetime) -> bool:
    """True if the newest sample is too old, or there is none."""
    limit = silent_after_seconds(resource, name)
    if newest is None:
        return limit < math.inf
    return (now - newest.time).total_seconds() > limit


def silent_after_seconds(resource: Resource, name: str) -> float:
    """The age of the newest sample, in seconds, at which the metric counts as silent."""
    guards = resource.guards
    if name == COMPLETED and counting_source(resource):
        return math.inf
    if name == resource.throughput.counted_metric and name not in guards.missing_by_metric:
        return resource.kept_history_seconds
    usual_lag = usual_lag_seconds(resource.metrics.get(name))
    return guards.missing_for(name).after_seconds + usual_lag


def meanwhile(resource: Resource, name: str) -> str:
    """The effect on decisions while the metric is silent, in one or two sentences."""
    if name == CAPACITY_METRIC:
        return "The plan cannot be read, so decisions use its last known capacity."
    if name == resource.throughput.counted_metric:
        return (
            "Decisions do not use this metric. Meanwhile the throughput per instance stays as it "
            "was counted before, or is estimated from the backlog."
        )
    then = resource.guards.missing_for(name).then
    text = {
        "hold_in": "The resource is not scaled in meanwhile.",
        "hold": "The capacity does not change meanwhile.",
    }.get(
        str(then),
        "The resource is not scaled in meanwhile. With fewer instances, the capacity falls back to "
        f"{then}, within the limits.",
    )
    if name == resource.guards.breaker_metric:
        text += " Whether the circuit breaker is open is unknown, so it does not prevent scale-out."
    return text
