"""ValuePerInstance: a total value, divided by a target value for each instance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shared.autoscaling.policies.checks import tenfold
from shared.autoscaling.policies.recommendations import (
    Statistic,
    instances,
    needed,
    no_samples,
    read,
    shown,
)
from shared.autoscaling.policy import Observation, Policy, Recommendation
from shared.values.bounds import Name, Positive


@dataclass(frozen=True, slots=True)
class ValuePerInstance(Policy):
    """Recommends enough instances that each has at most a target share of a total value.

    These are ⌈v / ``target_per_instance``⌉ instances, with v as the ``statistic`` of the metric's
    window. The metric must describe the whole resource, as a backlog does. For an average per
    instance, such as CPU utilization, use TargetTracking.

    Source: KEDA, ``metricType: AverageValue``.
    """

    metric: Name
    target_per_instance: Positive
    statistic: Statistic = "mean"

    @property
    def metric_names(self) -> tuple[str, ...]:
        return (self.metric,)

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
