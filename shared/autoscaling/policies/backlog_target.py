"""BacklogTarget: enough instances to finish the backlog in a given time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shared.autoscaling.policies.recommendations import (
    Statistic,
    instances,
    needed,
    no_rate,
    no_samples,
    read,
    shown,
    stay,
)
from shared.autoscaling.policy import Observation, Policy, Recommendation
from shared.values.bounds import Name, Positive, Share


@dataclass(frozen=True, slots=True)
class BacklogTarget(Policy):
    """Recommends the instances that are needed to finish the backlog within a given time.

    These are n = ⌈q / (μ·W)⌉ instances, with the backlog q, in items (the ``statistic`` of the
    window); the rate μ per busy instance, in items per minute (``rate_per_instance_minute``, or
    else that of the resource); and the time W, in minutes (``drain_minutes``, or else ``share``
    times the age limit of the goal).

    Source: Amazon EC2 Auto Scaling, "Scaling policy based on Amazon SQS", where μ·W is the
    acceptable backlog per instance.
    """

    metric: Name
    drain_minutes: Positive | None = None
    share: Share = 0.8
    rate_per_instance_minute: Positive | None = None
    statistic: Statistic = "latest"

    @property
    def tunable(self) -> Mapping[str, tuple[float, float]]:
        return {"share": (0.1, 1.0)}

    @property
    def metric_names(self) -> tuple[str, ...]:
        return (self.metric,)

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
