"""As the Horizontal Pod Autoscaler does it."""

from __future__ import annotations

from dataclasses import dataclass

from shared.autoscaling.measurements import Evidence
from shared.autoscaling.policies.checks import number, one_of, text
from shared.autoscaling.policies.recommendations import (
    ROUNDING,
    STATISTICS,
    Statistic,
    instances,
    no_samples,
    read,
    shown,
    stay,
)
from shared.autoscaling.policy import Observation, Policy, Recommendation

RULE = "target_tracking"


@dataclass(frozen=True, slots=True)
class TargetTracking(Policy):
    """n = ⌈n·value / target⌉ for a share per instance, such as a utilisation in percent.

    Within ``tolerance`` of the target it stays. Missing readings count against the change: where
    ``reporting_metric`` says that only k of n instances report, the others count as at the target
    for a scale-in and as 0 for a scale-out; where that turns the direction, it stays. Source:
    Kubernetes, Horizontal Pod Autoscaling, "Algorithm details"
    (pkg/controller/podautoscaler/replica_calculator.go).
    """

    metric: str
    target: float
    tolerance: float = 0.1
    reporting_metric: str | None = None
    statistic: Statistic = "mean"

    @property
    def metric_names(self) -> tuple[str, ...]:
        return (
            (self.metric,)
            if self.reporting_metric is None
            else (
                self.metric,
                self.reporting_metric,
            )
        )

    @property
    def utilisation_names(self) -> tuple[str, ...]:
        """Shares per instance: with fewer instances each has more, value·n/m."""
        return (self.metric,)

    def problems(self) -> list[str]:
        """What is wrong with the parameters, each with its value and bound."""
        problems = [
            *text("metric", self.metric),
            *number("target", self.target, above=0),
            *number("tolerance", self.tolerance, at_least=0),
            *one_of("statistic", self.statistic, STATISTICS),
        ]
        if not problems and self.tolerance >= 1:
            problems.append(f"tolerance = {self.tolerance}: must be below 1")
        if self.reporting_metric is not None:
            problems += text("reporting_metric", self.reporting_metric)
        return problems

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
        ratio = self._cautious_ratio(value / self.target, seen.capacity, reporting)
        wanted = self._wanted(value / self.target, ratio, seen.capacity)
        evidence: Evidence = {
            "metric": self.metric,
            "samples": window.count,
            self.statistic: value,
            "target": self.target,
            "tolerance": self.tolerance,
            "reporting": reporting,
        }
        reason = self._reason(value, wanted, seen.capacity, reporting)
        return Recommendation(wanted, reason, RULE, evidence)

    def _reporting(self, seen: Observation) -> int | None:
        """How many instances report; None where a metric should say so and does not."""
        if self.reporting_metric is None:
            return seen.capacity
        latest = seen.window(self.reporting_metric).latest
        return None if latest is None else int(max(min(latest.value, seen.capacity), 0))

    def _cautious_ratio(self, ratio: float, capacity: int, reporting: int) -> float:
        missing = (capacity - reporting) if ratio <= 1 else 0
        return (ratio * reporting + missing) / capacity

    def _wanted(self, known: float, cautious: float, capacity: int) -> int:
        small = abs(1 - cautious) <= self.tolerance + ROUNDING
        turned = (known - 1) * (cautious - 1) < 0
        return capacity if small or turned else instances(cautious * capacity)

    def _reason(self, value: float, wanted: int, capacity: int, reporting: int) -> str:
        said = f"{self.statistic} {self.metric} {shown(value)} of target {shown(self.target)}"
        if reporting < capacity:
            said += f", {reporting} of {capacity} instances report"
        if wanted == capacity:
            return f"{said}: within {self.tolerance:.0%} or less than an instance"
        return f"{said}: {capacity} → {wanted}"
