"""A rule on trial, before it decides anything: does it ask for what is there?"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from shared.autoscaling.deciding.observing import observe
from shared.autoscaling.measurements import CAPACITY_METRIC, MetricValue
from shared.autoscaling.policies.call import ask
from shared.autoscaling.policy import Observation, Resource, UnknownMetric
from shared.autoscaling.state import History, ScalingState

A_DAY = datetime(2026, 1, 1, 12, tzinfo=UTC)
VALUES = (0.0, 1.0, 1e6)


def asks_for_unknown(resource: Resource) -> str | None:
    """What the rule said when it asked for a metric that is not declared; None: it did not.

    It is asked with no samples, and with few and many items in each metric. What else it raises
    is left to the day: it may rightly refuse values that nobody ever sent.
    """
    for capacity in {resource.limits.minimum, resource.limits.maximum}:
        for value in (None, *VALUES):
            seen = observe(resource, _state(resource, value, capacity), capacity, A_DAY)
            if (asked := _asked(resource, seen)) is not None:
                return asked
    return None


def _asked(resource: Resource, seen: Observation) -> str | None:
    wish = ask(resource.policy, seen)
    for each in (wish, *wish.candidates):
        said = str(each.evidence.get("error", ""))
        if UnknownMetric.__name__ in said:
            return said
    return None


def _state(resource: Resource, value: float | None, capacity: int) -> ScalingState:
    times = [A_DAY - timedelta(seconds=15 * back) for back in reversed(range(20))]
    samples = History(tuple(MetricValue(time, value) for time in times if value is not None))
    histories = dict.fromkeys(resource.metrics, samples)
    known = History((MetricValue(A_DAY, capacity),))
    return ScalingState({**histories, CAPACITY_METRIC: known}, None)
