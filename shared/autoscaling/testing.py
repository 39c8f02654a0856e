"""Decisions for the unit tests of your rules: no Azure, no storage, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from shared.autoscaling.deciding.decide import Decision, decide
from shared.autoscaling.policy import Resource, declared
from shared.autoscaling.state import ScalingState
from shared.values.measurements import CAPACITY_METRIC, MetricValue, Window
from shared.values.samples import measure
from shared.values.text import quoted

A_MONDAY = datetime(2026, 1, 5, 12, tzinfo=UTC)


def decision_for(
    resource: Resource,
    metrics: Mapping[str, Sequence[float]],
    *,
    capacity: int,
    every_seconds: float = 15.0,
    now: datetime = A_MONDAY,
) -> Decision:
    """Return the decision that the app would make for a resource that has ``capacity`` instances.

    ``metrics`` maps the name of a metric to its values, oldest first: one sample every
    ``every_seconds`` seconds, the last one at ``now``, which must have a time zone. A metric that
    is left out has no samples. The resource has no override, no earlier change (so no cooldown is
    in force), and no learned throughput. Raises UnknownMetric for a metric that the resource does
    not declare, and ValueError for a value that no source may return.
    """
    for name in metrics:
        declared(resource.metrics, name)
    step = timedelta(seconds=every_seconds)
    histories = {name: _history(name, values, now, step) for name, values in metrics.items()}
    histories[CAPACITY_METRIC] = _history("capacity", [capacity], now, step)
    return decide(resource, ScalingState(histories), now)


def _history(name: str, values: Sequence[float], now: datetime, step: timedelta) -> Window:
    for value in values:
        if measure(value) is None:
            must = "must be a number of at least 0. Leave out a sample that is missing"
            raise ValueError(f"{name} = {quoted(value)}: {must}")
    last = len(values) - 1
    return Window(tuple(MetricValue(now - (last - i) * step, v) for i, v in enumerate(values)))
