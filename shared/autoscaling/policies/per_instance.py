"""Policies that compute how many instances a metric calls for: ValuePerInstance, BacklogTarget and
TargetTracking."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from shared.autoscaling.policies.checks import tenfold
from shared.autoscaling.policies.recommendations import (
    HOLDING,
    ROUNDING,
    Statistic,
    instances,
    instances_text,
    needed,
    no_rate,
    no_samples,
    read,
    shown,
    stay,
)
from shared.autoscaling.policy import Observation, OfMetric, Policy, Recommendation
from shared.values.bounds import Bounds, Name, Positive, Share
from shared.values.measurements import Evidence


@dataclass(frozen=True, slots=True)
class ValuePerInstance(OfMetric):
    """Recommends enough instances that each has at most a target share of a total value.

    These are ⌈v / ``target_per_instance``⌉ instances, with v as the ``statistic`` of the metric's
    window. The metric must describe the whole resource, as a backlog does. For an average per
    instance, such as CPU utilization, use TargetTracking.

    Source: KEDA, ``metricType: AverageValue``.
    """

    target_per_instance: Positive
    statistic: Statistic = "mean"

    @property
    def tunable(self) -> Mapping[str, tuple[float, float]]:
        return {"target_per_instance": tenfold(self.target_per_instance)}

    def __call__(self, seen: Observation) -> Recommendation:
        window = seen.window(self.metric)
        value = read(window, self.statistic)
        if value is None:
            return no_samples(seen, "value_per_instance", self.metric)
        wanted = instances(value / self.target_per_instance)
        return Recommendation(
            wanted,
            f"the {self.statistic} {self.metric} is {shown(value)}; with a target of "
            f"{shown(self.target_per_instance)} per instance, {needed(wanted)}",
            "value_per_instance",
            {
                "metric": self.metric,
                "samples": window.count,
                self.statistic: value,
                "target_per_instance": self.target_per_instance,
            },
        )


@dataclass(frozen=True, slots=True)
class BacklogTarget(OfMetric):
    """Recommends the instances that are needed to finish the backlog within a given time.

    These are n = ⌈q / (μ·W)⌉ instances, with the backlog q, in items (the ``statistic`` of the
    window); the rate μ per busy instance, in items per minute (``rate_per_instance_minute``, or
    else that of the resource); and the time W, in minutes (``drain_minutes``, or else ``share``
    times the age limit of the goal).

    Source: Amazon EC2 Auto Scaling, "Scaling policy based on Amazon SQS", where μ·W is the
    acceptable backlog per instance.
    """

    drain_minutes: Positive | None = None
    share: Share = 0.8
    rate_per_instance_minute: Positive | None = None
    statistic: Statistic = "latest"

    @property
    def tunable(self) -> Mapping[str, tuple[float, float]]:
        return {"share": (0.1, 1.0)}

    @property
    def backlog_metric(self) -> str:
        return self.metric

    def __call__(self, seen: Observation) -> Recommendation:
        rule = "backlog_target"
        window = seen.window(self.metric)
        backlog = read(window, self.statistic)
        if backlog is None:
            return no_samples(seen, rule, self.metric)
        rate = self.rate_per_instance_minute or seen.throughput.rate_per_instance_minute
        if not rate:
            return no_rate(seen, rule)
        minutes = self.drain_minutes or self.share * seen.goal.age_limit_minutes
        acceptable = rate * minutes
        if acceptable <= 0:
            reason = "goal.age_limit_minutes = 0 leaves no time to finish a backlog"
            return stay(seen, rule, reason)
        wanted = instances(backlog / acceptable)
        return Recommendation(
            wanted,
            f"the {self.statistic} {self.metric} is {shown(backlog)}; at {shown(rate)} items/min "
            f"per instance, {needed(wanted)} to finish it within {shown(minutes)} min",
            rule,
            {
                "metric": self.metric,
                "samples": window.count,
                self.statistic: backlog,
                "rate_per_instance_minute": rate,
                "drain_minutes": minutes,
            },
        )


RULE = "target_tracking"


@dataclass(frozen=True, slots=True)
class TargetTracking(Policy):
    """Keeps an average per instance, such as CPU utilization in percent, near a target.

    The recommended capacity is ⌈n·v / t⌉ instances, with the current capacity n, the ``statistic``
    v of the metric's window, and the ``target`` t in the same unit. It is n if v / t differs from 1
    by at most ``tolerance``.

    *Missing instances.* ``reporting_metric`` may name a metric that counts the instances which
    report. If only k of the n instances report, values that make the change smaller are assumed for
    the others. The ratio v / t becomes

        (k·v/t + n - k) / n    if v ≤ t
        (k·v/t) / n            if v > t

    If this reverses the direction of the change, the policy recommends the current capacity.

    Source: Kubernetes, Horizontal Pod Autoscaling, "Algorithm details"
    (pkg/controller/podautoscaler/replica_calculator.go).
    """

    metric: Name
    target: Positive
    tolerance: Annotated[float, Bounds(0, 1, below=True)] = 0.1
    reporting_metric: Name | None = None
    statistic: Statistic = "mean"

    @property
    def metric_names(self) -> tuple[str, ...]:
        reporting = () if self.reporting_metric is None else (self.reporting_metric,)
        return (self.metric, *reporting)

    @property
    def utilisation_names(self) -> tuple[str, ...]:
        """The metric, which changes from value to value·n/m if n instances become m."""
        return (self.metric,)

    def __call__(self, seen: Observation) -> Recommendation:
        window = seen.window(self.metric)
        value = read(window, self.statistic)
        if value is None:
            return no_samples(seen, RULE, self.metric)
        reporting = self._reporting(seen)
        if reporting is None:
            return no_samples(seen, RULE, str(self.reporting_metric))
        if reporting == 0:
            reason = f"no instance reports {self.metric}"
            return stay(seen, RULE, reason, self.metric, reporting=0)
        known = value / self.target
        missing = seen.capacity - reporting if known <= 1 else 0
        cautious = (known * reporting + missing) / seen.capacity
        holds = self._is_small(cautious) or _is_reversed(known, cautious)
        wanted = seen.capacity if holds else instances(cautious * seen.capacity)
        evidence: Evidence = {
            "metric": self.metric,
            "samples": window.count,
            self.statistic: value,
            "target": self.target,
            "tolerance": self.tolerance,
            "reporting": reporting,
        }
        compared = f"the {self.statistic} {self.metric} is {shown(value)}"
        compared += f", and the target is {shown(self.target)}"
        if reporting < seen.capacity:
            compared += f"; only {reporting} of {instances_text(seen.capacity)} report"
        if wanted == seen.capacity:
            cause = self._cause_of_holding(known, cautious)
            return Recommendation(wanted, f"{HOLDING}{compared}; {cause}", RULE, evidence)
        return Recommendation(wanted, f"{compared}: {needed(wanted)}", RULE, evidence)

    def _reporting(self, seen: Observation) -> int | None:
        """The number of instances that report; None if ``reporting_metric`` has no samples."""
        if self.reporting_metric is None:
            return seen.capacity
        latest = seen.window(self.reporting_metric).latest
        return None if latest is None else int(max(min(latest.value, seen.capacity), 0))

    def _is_small(self, ratio: float) -> bool:
        return abs(1 - ratio) <= self.tolerance + ROUNDING

    def _cause_of_holding(self, known: float, cautious: float) -> str:
        if self._is_small(known):
            return f"the difference is within the tolerance of {self.tolerance:.0%}"
        if _is_reversed(known, cautious) or self._is_small(cautious):
            return "the others may make up for the difference"
        return "the difference is worth less than one instance"


def _is_reversed(known: float, cautious: float) -> bool:
    """True if the assumed values reverse the direction of the change."""
    return (known - 1) * (cautious - 1) < 0
