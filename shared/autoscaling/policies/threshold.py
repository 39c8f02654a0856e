"""Threshold: a high mean scales out, and a low maximum scales in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shared.autoscaling.policies.recommendations import HOLDING, instances_text
from shared.autoscaling.policy import Observation, Policy, Recommendation
from shared.values.bounds import AtLeastOne, Name, Number, is_number, problems_of
from shared.values.measurements import Evidence


@dataclass(frozen=True, slots=True)
class Threshold(Policy):
    """Scales out if the mean of a metric is high, and scales in if its maximum is low.

    If the window has at least ``minimum_samples`` samples, the policy recommends ``step_out`` more
    instances if their mean is above ``upper``, and ``step_in`` fewer if their maximum is below
    ``lower``. The mean rises only little with a single short peak. In the backtest, this policy is
    called ``original``.
    """

    metric: Name
    upper: Number
    lower: Number
    minimum_samples: AtLeastOne = 5
    step_out: AtLeastOne = 1
    step_in: AtLeastOne = 1

    @property
    def metric_names(self) -> tuple[str, ...]:
        return (self.metric,)

    @property
    def tunable(self) -> Mapping[str, tuple[float, float]]:
        """The range of both thresholds: from 0 to ten times the larger of their absolute values."""
        highest = max(abs(self.upper), abs(self.lower)) * 10
        return {"upper": (0.0, highest), "lower": (0.0, highest)}

    def problems(self) -> list[str]:
        """The invalid parameters, each with its value and bound."""
        problems = problems_of(self)
        if is_number(self.upper) and is_number(self.lower) and not self.lower < self.upper:
            problems.append(f"lower = {self.lower}: must be below upper = {self.upper}")
        return problems

    def __call__(self, seen: Observation) -> Recommendation:
        window = seen.window(self.metric)
        mean, maximum = window.mean, window.maximum
        change, reason = self._change(window.count, mean, maximum)
        latest = window.latest
        evidence: Evidence = {
            "metric": self.metric,
            "samples": window.count,
            "mean": mean,
            "maximum": maximum,
            "latest": latest.value if latest else None,
            "upper": self.upper,
            "lower": self.lower,
        }
        return Recommendation(seen.capacity + change, reason, "threshold", evidence)

    def _change(self, count: int, mean: float | None, maximum: float | None) -> tuple[int, str]:
        if mean is None or maximum is None or count < self.minimum_samples:
            required = f"{self.minimum_samples} required samples of {self.metric}"
            return 0, f"{HOLDING}{count} of {required} in the window"
        high = f"the mean {self.metric} is {mean:.4g}"
        low = f"the maximum {self.metric} is {maximum:.4g}"
        if mean > self.upper:
            change = f"adding {instances_text(self.step_out)}"
            return self.step_out, f"{high}, above the upper threshold {self.upper:.4g}: {change}"
        if maximum < self.lower:
            change = f"removing {instances_text(self.step_in)}"
            return -self.step_in, f"{low}, below the lower threshold {self.lower:.4g}: {change}"
        return 0, (
            f"{HOLDING}{high}, not above the upper threshold {self.upper:.4g}, and {low}, not "
            f"below the lower threshold {self.lower:.4g}"
        )
