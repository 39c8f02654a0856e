"""Policies: each recommends a capacity for an observation.

All of them are pure, and they use only the standard library.
"""

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
from shared.autoscaling.policies.schedule import WEEKEND, WORKDAYS, Profile, Rule, Schedule
from shared.autoscaling.policies.seasonal_floor import SeasonalFloor
from shared.autoscaling.policies.target_tracking import TargetTracking
from shared.autoscaling.policies.threshold import Threshold
from shared.autoscaling.policies.value_per_instance import ValuePerInstance

__all__ = [
    "WEEKEND",
    "WORKDAYS",
    "BacklogTarget",
    "CapacityThresholds",
    "Condition",
    "MetricRule",
    "MetricRules",
    "Profile",
    "QueueAge",
    "Rule",
    "Schedule",
    "SeasonalFloor",
    "TargetTracking",
    "Threshold",
    "ValuePerInstance",
    "all_of",
    "any_of",
    "every",
    "fallback",
    "highest",
    "scale_in_only_if",
    "scale_out_only_if",
]
