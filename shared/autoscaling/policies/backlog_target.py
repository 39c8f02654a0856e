"""So many instances that the backlog is worked off in time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from shared.autoscaling.policies.checks import fraction, number_or_none, one_of, text
from shared.autoscaling.policies.recommendations import (
    STATISTICS,
    Statistic,
    instances,
    no_rate,
    no_samples,
    read,
    shown,
    stay,
)
from shared.autoscaling.policy import Observation, Policy, Recommendation


@dataclass(frozen=True, slots=True)
class BacklogTarget(Policy):
    """n = ⌈q / (μ·W)⌉: "backlog per instance", q items drained within W minutes.

    μ is the rate of a busy instance in items per minute, fixed here or as the resource's
    ``throughput`` knows it; W is ``drain_minutes``, or else ``share`` of the goal's age limit.
    Source: Amazon EC2 Auto Scaling, "Scaling policy based on Amazon SQS": acceptable backlog per
    instance = acceptable latency / average processing time.
    """

    metric: str
    drain_minutes: float | None = None
    share: float = 0.8
    rate_per_instance_minute: float | None = None
    statistic: Statistic = "latest"
    tunable: ClassVar[Mapping[str, tuple[float, float]]] = {"share": (0.1, 1.0)}

    @property
    def metric_names(self) -> tuple[str, ...]:
        return (self.metric,)

    def problems(self) -> list[str]:
        """What is wrong with the parameters, each with its value and bound."""
        return [
            *text("metric", self.metric),
            *number_or_none("drain_minutes", self.drain_minutes, above=0),
            *fraction("share", self.share),
            *number_or_none("rate_per_instance_minute", self.rate_per_instance_minute, above=0),
            *one_of("statistic", self.statistic, STATISTICS),
        ]

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
            reason = "goal.age_limit_minutes = 0 leaves no time to drain a backlog in"
            return stay(seen, rule, reason)
        wanted = instances(backlog / acceptable)
        label = f"{self.statistic} {self.metric}"
        return Recommendation(
            wanted,
            f"{label} {shown(backlog)} / ({shown(rate)} each and minute · {shown(minutes)} min) "
            f"→ {wanted}",
            rule,
            {
                "metric": self.metric,
                "samples": window.count,
                self.statistic: backlog,
                "rate_per_instance_minute": rate,
                "drain_minutes": minutes,
            },
        )
