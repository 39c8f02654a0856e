"""So many instances that each has its share of a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shared.autoscaling.policies.checks import number, one_of, tenfold, text
from shared.autoscaling.policies.recommendations import (
    STATISTICS,
    Statistic,
    instances,
    no_samples,
    read,
    shown,
)
from shared.autoscaling.policy import Observation, Policy, Recommendation


@dataclass(frozen=True, slots=True)
class ValuePerInstance(Policy):
    """n = ⌈value / target_per_instance⌉: KEDA's ``metricType: AverageValue``.

    ``value`` is the mean of the window, or what ``statistic`` names. It belongs to the whole
    resource, such as a backlog; for a share per instance use TargetTracking.
    """

    metric: str
    target_per_instance: float
    statistic: Statistic = "mean"

    @property
    def metric_names(self) -> tuple[str, ...]:
        return (self.metric,)

    @property
    def tunable(self) -> Mapping[str, tuple[float, float]]:
        return {"target_per_instance": tenfold(self.target_per_instance)}

    def problems(self) -> list[str]:
        """What is wrong with the parameters, each with its value and bound."""
        return [
            *text("metric", self.metric),
            *number("target_per_instance", self.target_per_instance, above=0),
            *one_of("statistic", self.statistic, STATISTICS),
        ]

    def __call__(self, seen: Observation) -> Recommendation:
        window = seen.window(self.metric)
        value = read(window, self.statistic)
        if value is None:
            return no_samples(seen, "value_per_instance", self.metric)
        wanted = instances(value / self.target_per_instance)
        label = f"{self.statistic} {self.metric}"
        return Recommendation(
            wanted,
            f"{label} {shown(value)} / {shown(self.target_per_instance)} each → {wanted}",
            "value_per_instance",
            {
                "metric": self.metric,
                "samples": window.count,
                self.statistic: value,
                "target_per_instance": self.target_per_instance,
            },
        )
