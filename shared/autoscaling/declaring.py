"""What scaling_rules.py is written with: sources, plans, limits, guards, and the goal.

Capacities are whole instances; other units stand at the end of names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from shared.autoscaling.measurements import NOTHING

Count = Literal["active", "dead_letter", "scheduled"]


@dataclass(frozen=True, slots=True)
class ServiceBusSubscription:
    """Messages that wait in a topic's subscription.

    Scheduled messages wait in the topic, not in its subscriptions: ``count="scheduled"`` reads
    the topic's count.
    """

    topic: str
    subscription: str
    count: Count = "active"
    connection: str = "ServiceBusConnection"


@dataclass(frozen=True, slots=True)
class ServiceBusQueue:
    """Messages that wait in a Service Bus queue."""

    queue: str
    count: Count = "active"
    connection: str = "ServiceBusConnection"


@dataclass(frozen=True, slots=True)
class StorageQueue:
    """Approximate number of messages in a Storage queue, invisible ones included."""

    queue: str
    connection: str = "AzureWebJobsStorage"


@dataclass(frozen=True, slots=True)
class AppServicePlan:
    """The App Service Plan to scale, named exactly: never by a part of its name."""

    subscription_id: str
    resource_group: str
    name: str


@dataclass(frozen=True, slots=True)
class PlanCapacity:
    """The instances that a plan is set to; collected for every resource by itself."""

    plan: AppServicePlan


@dataclass(frozen=True, slots=True)
class HubMetric:
    """A metric that somebody sends to the event hub, as the JSON of the queue ``metrics``."""


@dataclass(frozen=True, slots=True)
class IngestionBreaker:
    """The circuit breaker around the event hub: 0 while it is closed, 1 while it is not."""


Aggregation = Literal["average", "total", "minimum", "maximum", "count"]


@dataclass(frozen=True, slots=True)
class AzureMonitorMetric:
    """A platform metric that a diagnostic setting of ``resource_id`` streams to the event hub.

    Records that differ by dimensions only are summed up. ``time_grain`` is an ISO 8601 duration.
    """

    resource_id: str
    metric: str
    aggregation: Aggregation = "average"
    time_grain: str = "PT1M"


PushedMetric = HubMetric | AzureMonitorMetric
"""Metrics that come by themselves."""


ReadMetric = (
    ServiceBusSubscription | ServiceBusQueue | StorageQueue | PlanCapacity | IngestionBreaker
)


MetricSource = ReadMetric | PushedMetric


CapacityTarget = AppServicePlan


class Mode(StrEnum):
    """What the autoscaler may do to a resource."""

    ACTIVE = "active"
    DRY_RUN = "dry_run"  # decide and log, change nothing
    PAUSED = "paused"  # keep the samples, decide nothing


class ManualChange(StrEnum):
    """What to do when somebody else changed the capacity."""

    ADOPT = "adopt"  # take it as the new desired capacity and go on from there
    ENFORCE = "enforce"  # set it back


@dataclass(frozen=True, slots=True)
class Limits:
    """Capacity never leaves minimum..maximum, both included."""

    minimum: int = 1
    maximum: int = 10


@dataclass(frozen=True, slots=True)
class Cooldown:
    """Seconds after a confirmed change before the next one, by the direction of the next one."""

    scale_out_seconds: float = 600
    scale_in_seconds: float = 600
    scale_out_pierces: bool = True
    """After a scale-in, a scale-out need not wait: too few instances cost more than too many."""


Then = Literal["hold", "hold_in"] | int


@dataclass(frozen=True, slots=True)
class Missing:
    """What to do once a metric has had no sample for ``after_seconds``.

    ``hold``: stay; ``hold_in``: do not scale in; a number: go to that many instances.
    """

    after_seconds: float = 180
    then: Then = "hold_in"


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most so many instances, or percent of those at its start, within any such period."""

    direction: Literal["out", "in"]
    period_seconds: float
    instances: int | None = None
    percent: float | None = None


@dataclass(frozen=True, slots=True)
class Guards:
    """What may change a policy's wish, besides limits and cooldown. The order is that of GUARDS."""

    missing: Missing = Missing()
    missing_by_metric: Mapping[str, Missing] = field(default_factory=lambda: NOTHING)
    breaker_metric: str | None = None
    """While its newest value is above 0 the consumer is broken, and its backlog no reason to
    scale out."""
    stabilisation_out_seconds: float = 0
    stabilisation_in_seconds: float = 0
    rate_limits: tuple[RateLimit, ...] = ()
    flap_projection: bool = True

    def missing_for(self, metric_name: str) -> Missing:
        return self.missing_by_metric.get(metric_name, self.missing)


@dataclass(frozen=True, slots=True)
class Goal:
    """What good scaling is worth; policies that optimise weigh their choices by it.

    The cost of an interval is Σ instances + ``switch_cost``·Σ|change| + ``late_penalty``·late work,
    in instance-minutes. Work is late while it waits for longer than ``age_limit_minutes``.
    """

    age_limit_minutes: float = 5
    switch_cost: float = 2
    late_penalty: float = 10


@dataclass(frozen=True, slots=True)
class Throughput:
    """How fast instances work and how fast they come; None where that is to be learned."""

    rate_per_instance_minute: float | None = None
    """Items that one busy instance finishes in a minute."""
    dead_time_minutes: float | None = None
    """From the order of more instances until they work."""
    relative_error: float = 0
    """Of a rate that was learned; one that is fixed by hand has none."""
    completed_metric: str | None = None
    """The metric that counts the items finished since its last sample: the rate is learned from
    it. Nothing is decided on it, and it may be minutes late."""
    incoming_metric: str | None = None
    """Instead: the metric that counts the items that came since its last sample."""

    @property
    def counted_metric(self) -> str | None:
        return self.completed_metric or self.incoming_metric
