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
from shared.autoscaling.policies import Threshold

__all__ = [
    "AppServicePlan",
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
    "Threshold",
]
