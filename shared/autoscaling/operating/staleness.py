"""When a metric counts as silent, and what its silence does to decisions. Pure.

Metrics that decisions are made on are silent after ``Missing.after_seconds``. A count of finished
or incoming items only teaches the rate of an instance and may come minutes late: it is silent once
nothing can be learned from it any more.
"""

from __future__ import annotations

from datetime import datetime

from shared.autoscaling.measurements import CAPACITY_METRIC, MetricValue, span
from shared.autoscaling.policy import Resource


def is_silent(resource: Resource, name: str, newest: MetricValue | None, now: datetime) -> bool:
    """True for a metric that never came."""
    return newest is None or now - newest.time > span(silent_after_seconds(resource, name))


def silent_after_seconds(resource: Resource, name: str) -> float:
    """A rule for this very metric counts; samples older than the history teach nothing."""
    guards = resource.guards
    if name == resource.throughput.counted_metric and name not in guards.missing_by_metric:
        return resource.history_seconds
    return guards.missing_for(name).after_seconds


def meanwhile(resource: Resource, name: str) -> str:
    """What happens to decisions while the metric is silent: one or two sentences."""
    if name == CAPACITY_METRIC:
        return "The plan cannot be read; decisions use its last known capacity."
    if name == resource.throughput.counted_metric:
        return "Decisions do not use it; the rate of an instance is not learned from it meanwhile."
    then = resource.guards.missing_for(name).then
    text = {
        "hold_in": "Nothing is scaled in meanwhile.",
        "hold": "The capacity stays as it is meanwhile.",
    }.get(str(then), f"The capacity goes to {then} meanwhile, within the limits.")
    if name == resource.guards.breaker_metric:
        text += " Whether the circuit breaker is open is unknown, so it prevents no scale-out."
    return text
