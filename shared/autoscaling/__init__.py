"""Everything that scaling_rules.py needs to declare resources, metrics, guards and policies."""

import re
from difflib import get_close_matches

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
from shared.autoscaling.policies.combine import (
    Condition,
    all_of,
    any_of,
    every,
    fallback,
    highest,
    scale_in_only_if,
    scale_out_only_if,
)
from shared.autoscaling.policies.per_instance import BacklogTarget, TargetTracking, ValuePerInstance
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
from shared.autoscaling.policies.thresholds import (
    CapacityThresholds,
    MetricRule,
    MetricRules,
    Threshold,
)
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

CALLED_POLICY = re.compile(r"(\w+)\(\) missing 1 required positional argument: 'seen'")
NOT_UTF_8 = re.compile("null bytes|codec can't decode")
MODULES = ("shared.autoscaling", "shared.settings")
NEAR = 0.8
"""How similar a misspelled name must be to the one that is meant, by ``difflib``."""
REMOVED = {
    "StablePanic": "QueueAge(metric, until_known=ValuePerInstance(metric, target_per_instance)); "
    "if the metric is not a backlog, use ValuePerInstance(metric, target_per_instance)",
    "SlackAwareDrain": "QueueAge(metric, until_known=BacklogTarget(metric)), and set "
    "throughput=Throughput(rate_per_instance_minute, start_up_minutes) of the Resource instead of "
    "these two parameters",
}
"""The policies of earlier versions, and what to use instead."""


def instead(name: str) -> str:
    """What to use instead of a name that does not exist; empty if nothing is known."""
    if use := REMOVED.get(name):
        return f"{name} was removed. Use {use}. See docs/migrating.md"
    near = get_close_matches(name, __all__, 1, NEAR) if name[:1].isupper() else ()
    return f"There is no {name}. Did you mean {near[0]}?" if near else ""


def advice(error: BaseException) -> str:
    """What to do about an error in a rules file, if its text does not say that."""
    called = CALLED_POLICY.match(str(error)) if isinstance(error, TypeError) else None
    if called is not None:
        return f"Pass a policy without parentheses: policy={called[1]}"
    if isinstance(error, ModuleNotFoundError):
        near = get_close_matches(error.name or "", MODULES, 1, NEAR)
        return f"Did you mean {near[0]}?" if near else ""
    if isinstance(error, SyntaxError) and NOT_UTF_8.search(str(error)):
        return "Save the file as UTF-8"
    return instead(error.name or "") if isinstance(error, NameError) else ""  # after import *


def __getattr__(name: str) -> object:
    if told := instead(name):  # an AttributeError would hide the text from an import
        raise ImportError(told)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
