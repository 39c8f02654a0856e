"""The resources that the host and a fleet of plans are measured with, and messages with samples."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from shared.autoscaling import (
    AppServicePlan,
    Limits,
    Resource,
    ServiceBusQueue,
    ServiceBusSubscription,
    Threshold,
)
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue
from shared.values.samples import encode_samples

RESOURCE_COUNT = 50
PLANS = "BENCH_PLANS"
"""The variable with the number of plans that read a queue each. Without it, there are 50 plans."""
SAMPLES_PER_RESOURCE = 20
MESSAGE_COUNT = RESOURCE_COUNT * SAMPLES_PER_RESOURCE
METRIC_NAME = "backlog"
STEP = timedelta(seconds=15)
BETWEEN_THRESHOLDS = 50


def declared() -> Sequence[Resource]:
    """The resources of the measured app."""
    return with_queues(int(os.environ[PLANS])) if PLANS in os.environ else resources()


def with_queues(count: int) -> Sequence[Resource]:
    """Plans that read a queue of the same name. A queue that fills leads to one scale-out."""
    policy, limits = Threshold(METRIC_NAME, 100, 10, minimum_samples=1), Limits(1, 3)
    return [
        replace(
            resource(name),
            metrics={METRIC_NAME: ServiceBusQueue(name)},
            policy=policy,
            limits=limits,
        )
        for name in (f"plan-{number:04}" for number in range(count))
    ]


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
