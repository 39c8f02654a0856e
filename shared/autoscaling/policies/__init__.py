"""Policies: from an observation to the capacity that it calls for. Pure, standard library only."""

from shared.autoscaling.policies.backlog_target import BacklogTarget
from shared.autoscaling.policies.capacity_thresholds import CapacityThresholds
from shared.autoscaling.policies.target_tracking import TargetTracking
from shared.autoscaling.policies.threshold import Threshold
from shared.autoscaling.policies.value_per_instance import ValuePerInstance

__all__ = [
    "BacklogTarget",
    "CapacityThresholds",
    "TargetTracking",
    "Threshold",
    "ValuePerInstance",
]
