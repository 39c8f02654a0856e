"""What scaling_rules.py is written with."""

from shared.autoscaling.model import (
    AppServicePlan,
    Cooldown,
    Goal,
    Limits,
    ManualChange,
    Mode,
    Observation,
    PlanCapacity,
    Policy,
    Recommendation,
    Resource,
    Service,
    ServiceBusQueue,
    ServiceBusSubscription,
    StorageQueue,
)
from shared.autoscaling.policies import (
    BacklogTarget,
    CapacityThresholds,
    TargetTracking,
    Threshold,
    ValuePerInstance,
)

__all__ = [
    "AppServicePlan",
    "BacklogTarget",
    "CapacityThresholds",
    "Cooldown",
    "Goal",
    "Limits",
    "ManualChange",
    "Mode",
    "Observation",
    "PlanCapacity",
    "Policy",
    "Recommendation",
    "Resource",
    "Service",
    "ServiceBusQueue",
    "ServiceBusSubscription",
    "StorageQueue",
    "TargetTracking",
    "Threshold",
    "ValuePerInstance",
]
