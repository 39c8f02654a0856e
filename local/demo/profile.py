"""Settings of the demo: the app's defaults, with every minute shortened to a second.

The first hour runs in real time with the app's defaults, because Azure Monitor has one value for
each minute.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence

from backtest.fluid_queue import Pace
from local.azure_apis.plans import PlanId

PLAN = PlanId("00000000-0000-0000-0000-000000000001", "local", "workers")
TOPIC, SUBSCRIPTION = "orders", "billing"
PROCESSING_QUEUE, WORKING_QUEUE = "processing", "working"
HUB, CONSUMER_GROUPS = "metrics", ("$Default", "readback")

MINIMUM_CAPACITY, MAXIMUM_CAPACITY = 1, 20
START_UP_MINUTES = 3.0
AGE_LIMIT_MINUTES = 5.0
SECONDS_PER_TRACE_MINUTE = 1.0
TRACE_MINUTES_PER_MINUTE = 60 / SECONDS_PER_TRACE_MINUTE
FIRST_HOUR_MINUTES = 60
COUNTS_LATE_SECONDS = 120.0
CHANGE_SECONDS = 10.0
"""After this time, the plan shows an ordered number in the first hour. New instances work only
after the start-up time."""
PIECES = Pace(instances=2, minutes=0.5)
"""How a plan fills that scales asynchronously."""
NAMESPACE_ID = (
    f"/subscriptions/{PLAN.subscription}/resourceGroups/{PLAN.resource_group}/providers"
    "/Microsoft.ServiceBus/namespaces/bus"
)
BACKLOG_UP_MINUTES = 1.0
BACKLOG_DOWN_MINUTES = 0.1
"""Thresholds in minutes of one instance's work, so that they fit any trace."""


def settings(
    instance_rate_per_minute: float, storage: str, service_bus: str, arm_endpoint: str
) -> dict[str, str]:
    """App settings for a demo in which one minute of the trace lasts one second."""
    return {
        **required(storage, service_bus, arm_endpoint),
        "ThresholdUp": str(instance_rate_per_minute * BACKLOG_UP_MINUTES),
        "ThresholdDown": str(instance_rate_per_minute * BACKLOG_DOWN_MINUTES),
        "AgeLimitMinutes": str(AGE_LIMIT_MINUTES / TRACE_MINUTES_PER_MINUTE),
        "InstanceRatePerMinute": str(instance_rate_per_minute * TRACE_MINUTES_PER_MINUTE),
        "DeadTimeMinutes": str(START_UP_MINUTES / TRACE_MINUTES_PER_MINUTE),
        "PlanningStepSeconds": str(SECONDS_PER_TRACE_MINUTE),
        "MetricCollectorSchedule": "* * * * * *",
        "ReconcilerSchedule": "* * * * * *",
        "WindowSeconds": "10",
        "ScaleOutCooldownSeconds": "10",
        "ScaleInCooldownSeconds": "10",
        "ScaleChangesPerHour": str(int(20 * TRACE_MINUTES_PER_MINUTE)),
        "ActionResendSeconds": "3",
        "ActionRetrySeconds": "0.5",
        "ActionDeadlineSeconds": "30",
        "FailureHoldSeconds": "1",
        "ArmTimeoutSeconds": "5",
    }


def first_hour(storage: str, service_bus: str, arm_endpoint: str) -> dict[str, str]:
    """App settings of a fresh deployment, whose messages Azure Monitor counts."""
    return {
        **required(storage, service_bus, arm_endpoint),
        "ServiceBusNamespaceIds": NAMESPACE_ID,
    }


def required(storage: str, service_bus: str, arm_endpoint: str) -> dict[str, str]:
    """The settings that have no default, and the limits of the plan."""
    return {
        "AzureWebJobsStorage": storage,
        "ServiceBusConnection": service_bus,
        "ArmEndpoint": arm_endpoint,
        "SubscriptionId": PLAN.subscription,
        "ResourceGroup": PLAN.resource_group,
        "ResourceToScale": PLAN.name,
        "Topic": TOPIC,
        "Subscription": SUBSCRIPTION,
        "ProcessingQueue": PROCESSING_QUEUE,
        "WorkingQueue": WORKING_QUEUE,
        "MinimumCapacity": str(MINIMUM_CAPACITY),
        "MaximumCapacity": str(MAXIMUM_CAPACITY),
    }


def ingestion(event_hubs: str) -> dict[str, str]:
    """App settings for the event hub. The demo sends no events to it; the user may."""
    listening, reading_back = CONSUMER_GROUPS
    return {
        "EventHubConnection": event_hubs,
        "EventHubName": HUB,
        "EventHubConsumerGroup": listening,
        "EventHubReadBackConsumerGroup": reading_back,
        "BreakerApprovalKey": secrets.token_urlsafe(32),
    }


def starting_capacity(arrivals: Sequence[float], instance_rate_per_minute: float) -> int:
    """The capacity that an operator would set for the first ten minutes of arrivals."""
    first = arrivals[:10]
    needed = math.ceil(sum(first) / max(len(first), 1) / instance_rate_per_minute)
    return min(max(needed, MINIMUM_CAPACITY), MAXIMUM_CAPACITY)
