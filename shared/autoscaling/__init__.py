"""Everything that scaling_rules.py needs to declare resources, metrics, guards and policies."""

from shared.autoscaling.azure_monitor.source import AzureMonitorMetric
from shared.autoscaling.declaring import (
    AppServicePlan,
    Cooldown,
    Goal,
    Guards,
    Limits,
    ManualChange,
    Missing,
    Mode,
    RateLimit,
    Throughput,
)
from shared.autoscaling.policies.backlog_target import BacklogTarget
from shared.autoscaling.policies.capacity_thresholds import CapacityThresholds
from shared.autoscaling.policies.combine import all_of, any_of, fallback, highest
from shared.autoscaling.policies.conditional import (
    Condition,
    every,
    scale_in_only_if,
    scale_out_only_if,
)
from shared.autoscaling.policies.metric_rules import MetricRule, MetricRules
from shared.autoscaling.policies.queue_age import QueueAge
from shared.autoscaling.policies.schedule import (
    WEEKEND,
    WORKDAYS,
    Profile,
    Rule,
    Schedule,
    ScheduleEntry,
)
from shared.autoscaling.policies.seasonal_floor import SeasonalFloor
from shared.autoscaling.policies.target_tracking import TargetTracking
from shared.autoscaling.policies.threshold import Threshold
from shared.autoscaling.policies.value_per_instance import ValuePerInstance
from shared.autoscaling.policy import Observation, Policy, PolicyFunction, Recommendation, Resource
from shared.autoscaling.sources import (
    HttpJson,
    HubMetric,
    IngestionBreaker,
    PlanCapacity,
    QueueMetric,
    Reading,
    ServiceBusQueue,
    ServiceBusSubscription,
    Source,
    StorageQueue,
)
from shared.values.measurements import MetricValue

__all__ = [
    "WEEKEND",
    "WORKDAYS",
    "AppServicePlan",
    "AzureMonitorMetric",
    "BacklogTarget",
    "CapacityThresholds",
    "Condition",
    "Cooldown",
    "Goal",
    "Guards",
    "HttpJson",
    "HubMetric",
    "IngestionBreaker",
    "Limits",
    "ManualChange",
    "MetricRule",
    "MetricRules",
    "MetricValue",
    "Missing",
    "Mode",
    "Observation",
    "PlanCapacity",
    "Policy",
    "PolicyFunction",
    "Profile",
    "QueueAge",
    "QueueMetric",
    "RateLimit",
    "Reading",
    "Recommendation",
    "Resource",
    "Rule",
    "Schedule",
    "ScheduleEntry",
    "SeasonalFloor",
    "ServiceBusQueue",
    "ServiceBusSubscription",
    "Source",
    "StorageQueue",
    "TargetTracking",
    "Threshold",
    "Throughput",
    "ValuePerInstance",
    "all_of",
    "any_of",
    "every",
    "fallback",
    "highest",
    "scale_in_only_if",
    "scale_out_only_if",
]

REMOVED = {
    "StablePanic": "QueueAge(metric, until_known=ValuePerInstance(metric, target_per_instance)); "
    "if the metric is not a backlog, use ValuePerInstance(metric, target_per_instance)",
    "SlackAwareDrain": "QueueAge(metric, until_known=BacklogTarget(metric)), and set "
    "throughput=Throughput(rate_per_instance_minute, start_up_minutes) of the Resource instead of "
    "these two parameters",
}
"""The policies of earlier versions, and what to use instead."""


def removed(name: str | None) -> str:
    """What to use instead of a name that was removed; empty for any other name."""
    use = REMOVED.get(name or "")
    return f"{name} was removed. Use {use}. See docs/migrating.md" if use else ""


def __getattr__(name: str) -> object:
    if told := removed(name):  # an AttributeError would hide the text from an import
        raise ImportError(told)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
