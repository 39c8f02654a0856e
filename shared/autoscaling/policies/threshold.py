"""The policy of the original."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shared.autoscaling.measurements import Evidence
from shared.autoscaling.policies.checks import is_number, number, text, whole
from shared.autoscaling.policy import Observation, Policy, Recommendation


@dataclass(frozen=True, slots=True)
class Threshold(Policy):
    """The policy of the original: scale out on a high average, in on a low maximum.

    With at least ``minimum_samples`` samples in the window: mean > ``upper`` → out by
    ``step_out``; maximum < ``lower`` → in by ``step_in``; otherwise stay. The average reacts to
    lasting load and not to one spike; the maximum makes sure that the whole window was quiet.
    """

    metric: str
    upper: float
    lower: float
    minimum_samples: int = 5
    step_out: int = 1
    step_in: int = 1

    @property
    def metric_names(self) -> tuple[str, ...]:
        return (self.metric,)

    @property
    def tunable(self) -> Mapping[str, tuple[float, float]]:
        """Thresholds may go from nothing to ten times the upper one."""
        highest = max(abs(self.upper), abs(self.lower)) * 10
        return {"upper": (0.0, highest), "lower": (0.0, highest)}

    def problems(self) -> list[str]:
        """What is wrong with the parameters, each with its value and bound."""
        problems = text("metric", self.metric)
        problems += number("upper", self.upper) + number("lower", self.lower)
        if is_number(self.upper) and is_number(self.lower) and not self.lower < self.upper:
            problems.append(f"lower = {self.lower}: must be below upper = {self.upper}")
        for name in ("minimum_samples", "step_out", "step_in"):
            problems += whole(name, getattr(self, name), 1)
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
            return 0, f"{count} of {self.minimum_samples} samples of {self.metric} so far"
        high, low = f"mean {self.metric}", f"maximum {self.metric}"
        if mean > self.upper:
            return self.step_out, f"{high} {mean:.4g} > {self.upper:.4g}"
        if maximum < self.lower:
            return -self.step_in, f"{low} {maximum:.4g} < {self.lower:.4g}"
        return 0, (
            f"{self.metric} between thresholds: mean {mean:.4g} ≤ {self.upper:.4g}, "
            f"maximum {maximum:.4g} ≥ {self.lower:.4g}"
        )
