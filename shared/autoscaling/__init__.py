"""What scaling_rules.py is written with."""

from shared.autoscaling.model import (
    AppServicePlan,
    Cooldown,
    Limits,
    ManualChange,
    Mode,
    Observation,
    PlanCapacity,
    Policy,
    Recommendation,
    Resource,
    ServiceBusQueue,
    ServiceBusSubscription,
    StorageQueue,
)
from shared.autoscaling.policies import Threshold

__all__ = [
    "AppServicePlan",
    "Cooldown",
    "Limits",
    "ManualChange",
    "Mode",
    "Observation",
    "PlanCapacity",
    "Policy",
    "Recommendation",
    "Resource",
    "ServiceBusQueue",
    "ServiceBusSubscription",
    "StorageQueue",
    "Threshold",
]
