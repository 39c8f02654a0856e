"""TargetTracking: keeps an average per instance, such as CPU utilization, near a target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from shared.autoscaling.policies.recommendations import (
    HOLDING,
    ROUNDING,
    Statistic,
    instances,
    instances_text,
    needed,
    no_samples,
    read,
    shown,
    stay,
)
from shared.autoscaling.policy import Observation, Policy, Recommendation
from shared.values.bounds import Bounds, Name, Positive
from shared.values.measurements import Evidence

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
