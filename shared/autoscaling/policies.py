"""Policies: from an observation to the capacity that it calls for. Pure, standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from shared.autoscaling.model import Evidence, Observation, Recommendation


@dataclass(frozen=True, slots=True)
class Threshold:
    """The rule of the original: scale out on a high average, in on a low maximum.

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

    def problems(self) -> list[str]:
        """What is wrong with the parameters, each with its value and bound."""
        found = []
        if not self.lower < self.upper:
            found.append(f"lower = {self.lower}: must be below upper = {self.upper}")
        for name in ("minimum_samples", "step_out", "step_in"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                found.append(f"{name} = {value!r}: must be a whole number of at least 1")
        return found

    def __call__(self, seen: Observation) -> Recommendation:
        window = seen.window(self.metric)
        mean, maximum = window.mean, window.maximum
        if mean is None or maximum is None or window.count < self.minimum_samples:
            return self._say(
                seen,
                0,
                f"{window.count} of {self.minimum_samples} samples of {self.metric} so far",
            )
        if mean > self.upper:
            return self._say(
                seen, self.step_out, f"mean {self.metric} {mean:.4g} > {self.upper:.4g}"
            )
        if maximum < self.lower:
            return self._say(
                seen, -self.step_in, f"maximum {self.metric} {maximum:.4g} < {self.lower:.4g}"
            )
        return self._say(
            seen,
            0,
            f"{self.metric} between thresholds: mean {mean:.4g} ≤ {self.upper:.4g}, "
            f"maximum {maximum:.4g} ≥ {self.lower:.4g}",
        )

    def _say(self, seen: Observation, change: int, reason: str) -> Recommendation:
        window = seen.window(self.metric)
        latest = window.latest
        evidence: Evidence = {
            "metric": self.metric,
            "samples": window.count,
            "mean": window.mean,
            "maximum": window.maximum,
            "latest": latest.value if latest else None,
            "upper": self.upper,
            "lower": self.lower,
        }
        return Recommendation(seen.capacity + change, reason, "threshold", evidence)
