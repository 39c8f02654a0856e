"""The declarations in scaling_rules.py: metric sources, plans, limits, guards and the goal.

Capacities are whole instances. The names of all other quantities end in their unit.
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
    """The number of messages in a subscription of a Service Bus topic.

    Scheduled messages wait in the topic, not in its subscriptions: ``count="scheduled"`` reads
    the topic's count.
    """

    topic: str
    subscription: str
    count: Count = "active"
    connection: str = "ServiceBusConnection"


@dataclass(frozen=True, slots=True)
class ServiceBusQueue:
    """The number of messages in a Service Bus queue."""

    queue: str
    count: Count = "active"
    connection: str = "ServiceBusConnection"


@dataclass(frozen=True, slots=True)
class StorageQueue:
    """The approximate number of messages in a Storage queue, including invisible ones."""

    queue: str
    connection: str = "AzureWebJobsStorage"


@dataclass(frozen=True, slots=True)
class AppServicePlan:
    """The App Service plan to scale. ``name`` must be the plan's full name."""

    subscription_id: str
    resource_group: str
    name: str


@dataclass(frozen=True, slots=True)
class PlanCapacity:
    """The capacity that a plan is set to. The collector reads it for every resource."""

    plan: AppServicePlan


@dataclass(frozen=True, slots=True)
class HubMetric:
    """A metric that your own sender sends to the event hub, in the JSON format of the queue
    ``metrics``.
    """


@dataclass(frozen=True, slots=True)
class QueueMetric:
    """A metric that your own sender sends to the queue ``samples``, or to the app by HTTP, in the
    JSON format of the queue ``metrics``.
    """


@dataclass(frozen=True, slots=True)
class IngestionBreaker:
    """The state of the circuit breaker of the Event Hub ingestion: 0 while closed, otherwise 1."""


Aggregation = Literal["average", "total", "minimum", "maximum", "count"]


@dataclass(frozen=True, slots=True)
class AzureMonitorMetric:
    """A platform metric of ``resource_id``, read from Azure Monitor once a minute.

    ``time_grain`` is an ISO 8601 duration. ``filter`` selects values of dimensions, such as
    ``EntityName eq 'orders'``; without it, Azure Monitor aggregates over all dimensions.
    ``streamed=True`` takes the metric from the event hub instead, where a diagnostic setting sends
    it. Streamed records that are divided by a dimension are not read: see docs/events.md.
    ``namespace`` is that of a custom metric, such as ``azure.applicationinsights``.
    """

    resource_id: str
    metric: str
    aggregation: Aggregation = "average"
    time_grain: str = "PT1M"
    filter: str = ""
    streamed: bool = False
    namespace: str = ""


PushedMetric = HubMetric | QueueMetric | AzureMonitorMetric
"""Sources that return no current value: those that send samples, and Azure Monitor, which returns
the values of past minutes."""


def is_pushed(source: object) -> bool:
    """True if the samples are sent to the app."""
    return isinstance(source, HubMetric | QueueMetric) or (
        isinstance(source, AzureMonitorMetric) and source.streamed
    )


@dataclass(frozen=True, slots=True)
class TopicSubscriptions:
    """The number of subscriptions of a Service Bus topic. The collector reads it."""

    topic: str
    connection: str = "ServiceBusConnection"


ReadMetric = (
    ServiceBusSubscription
    | ServiceBusQueue
    | StorageQueue
    | PlanCapacity
    | IngestionBreaker
    | TopicSubscriptions
)


MetricSource = ReadMetric | PushedMetric


CapacityTarget = AppServicePlan


class Mode(StrEnum):
    """What the app does for a resource."""

    ACTIVE = "active"  # decide and change the capacity
    DRY_RUN = "dry_run"  # decide and log, but change nothing
    PAUSED = "paused"  # keep the samples, but decide nothing


class ManualChange(StrEnum):
    """How the app responds when something else has changed the capacity."""

    ADOPT = "adopt"  # accept it as the new desired capacity
    ENFORCE = "enforce"  # set the capacity back


@dataclass(frozen=True, slots=True)
class Limits:
    """The range of the capacity, in instances. Both ends are included."""

    minimum: int = 1
    maximum: int = 10


@dataclass(frozen=True, slots=True)
class Cooldown:
    """The wait from a confirmed change to the next one, for each direction of the next change."""

    scale_out_seconds: float = 600
    scale_in_seconds: float = 600
    scale_out_pierces: bool = True
    """True if a scale-out does not wait for a cooldown after a scale-in. The default is True
    because too few instances cost more than too many.
    """


Then = Literal["hold", "hold_in"] | int


@dataclass(frozen=True, slots=True)
class Missing:
    """What to do once a metric has had no sample for ``after_seconds``.

    ``hold`` keeps the capacity, and ``hold_in`` prevents scale-in. A number prevents scale-in, too,
    and is the capacity to fall back to if there are fewer instances.
    """

    after_seconds: float = 180
    then: Then = "hold_in"


@dataclass(frozen=True, slots=True)
class RateLimit:
    """The most by which the capacity may change within any period of ``period_seconds``.

    Set either ``instances`` or ``percent``. The percentage refers to the capacity at the start of
    the period. A percentage above 0 allows at least one instance.
    """

    direction: Literal["out", "in"]
    period_seconds: float
    instances: int | None = None
    percent: float | None = None


@dataclass(frozen=True, slots=True)
class Guards:
    """Rules that may change the recommended capacity, in addition to limits and cooldown.

    They apply in the order of ``GUARDS`` in ``deciding/guards.py``, not in the order below.
    """

    missing: Missing = Missing()
    missing_by_metric: Mapping[str, Missing] = field(default_factory=lambda: NOTHING)
    breaker_metric: str | None = None
    """A metric that is above 0 while the consumer's circuit breaker is open. The resource is not
    scaled out meanwhile."""
    stabilisation_out_seconds: float = 0
    stabilisation_in_seconds: float = 0
    rate_limits: tuple[RateLimit, ...] = ()
    flap_projection: bool = True
    nothing_finished_seconds: float = 1800
    """If counts say that nothing is finished although work waits, the resource is not scaled out
    for this many seconds, because more instances would not work either. 0 permits scale-out."""

    def missing_for(self, metric_name: str) -> Missing:
        """The rule for missing samples of this metric."""
        return self.missing_by_metric.get(metric_name, self.missing)


@dataclass(frozen=True, slots=True)
class Goal:
    """The costs that a policy minimizes.

    The cost of an interval is Σ instances + ``switch_cost``·Σ|change| + ``late_penalty``·late work,
    in instance-minutes. Work is late once it has waited for longer than ``age_limit_minutes``.
    """

    age_limit_minutes: float = 5
    switch_cost: float = 2
    late_penalty: float = 10


@dataclass(frozen=True, slots=True)
class Throughput:
    """The throughput per instance, and the dead time of a scale-out. The app learns a value that is
    None.
    """

    rate_per_instance_minute: float | None = None
    """The items that one busy instance finishes per minute."""
    dead_time_minutes: float | None = None
    """The dead time: from the request for more instances until they work."""
    relative_error: float = 0
    """The standard error of a learned rate, as a share of the rate; 0 for a rate set by hand."""
    completed_metric: str | None = None
    """The metric that counts the items finished since its previous sample. The throughput is
    learned from this metric. Decisions do not use it, so its samples may arrive minutes late.
    """
    incoming_metric: str | None = None
    """Instead of ``completed_metric``: the metric that counts the items that arrived since its
    previous sample."""

    @property
    def counted_metric(self) -> str | None:
        """The metric that the throughput is learned from."""
        return self.completed_metric or self.incoming_metric
