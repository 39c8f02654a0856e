"""The resources that the host is measured with, and the messages with their samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from shared.autoscaling import AppServicePlan, Resource, ServiceBusSubscription, Threshold
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue
from shared.values.samples import encode_samples

RESOURCE_COUNT = 50
SAMPLES_PER_RESOURCE = 20
MESSAGE_COUNT = RESOURCE_COUNT * SAMPLES_PER_RESOURCE
METRIC_NAME = "backlog"
STEP = timedelta(seconds=15)
BETWEEN_THRESHOLDS = 50


def resources() -> Sequence[Resource]:
    """Plans, each with one metric and a threshold rule."""
    return [resource(f"plan-{number}") for number in range(RESOURCE_COUNT)]


def capacities(now: datetime) -> Sequence[Metric]:
    """One capacity for each resource: without it, there is nothing to decide."""
    return [capacity(each.name, now) for each in resources()]


def messages(now: datetime) -> Iterator[str]:
    """Every sample of every resource, in the order in which the collector would send them."""
    for number in range(SAMPLES_PER_RESOURCE):
        time = now - STEP * (SAMPLES_PER_RESOURCE - number)
        for each in resources():
            yield encode_samples([sample(each.name, time)])


def capacity(resource_name: str, now: datetime) -> Metric:
    """A sample of a plan's capacity."""
    return Metric(resource_name, CAPACITY_METRIC, MetricValue(now - STEP, 2))


def sample(resource_name: str, time: datetime) -> Metric:
    """A sample that leads to the decision to hold, as nearly all samples do."""
    return Metric(resource_name, METRIC_NAME, MetricValue(time, BETWEEN_THRESHOLDS))


def resource(name: str) -> Resource:
    return Resource(
        name=name,
        target=AppServicePlan("00000000-0000-0000-0000-000000000001", "bench", name),
        metrics={METRIC_NAME: ServiceBusSubscription("orders", name)},
        policy=Threshold(METRIC_NAME, upper=100, lower=10),
    )
