"""So many instances that the oldest item stays young, counting in how long new ones take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import ClassVar

from shared.autoscaling.measurements import Evidence, MetricValue
from shared.autoscaling.policies.checks import fraction, number, number_or_none, text
from shared.autoscaling.policies.recommendations import (
    capacity_at,
    instances,
    no_dead_time,
    no_rate,
    no_samples,
    shown,
    stay,
)
from shared.autoscaling.policy import Observation, Policy, Recommendation

RULE = "slack_aware_drain"

SLACK_SHARE_MIN = 0.2
"""Of the age limit: the least time to drain in, where new instances come too late anyway."""

SLOPE_MINUTES_MAX = 240
AGE_LIMIT_MINUTES_MIN = 1e-3

LOAD_MAX = 0.9
"""Of what is left after a scale-in, lest chance brings the next scale-out."""


@dataclass(frozen=True, slots=True)
class SlackAwareDrain(Policy):
    """n = ⌈max(λ/μ, q_D / (μ·S))⌉ where the oldest item would else grow too old.

    q is the backlog now, μ the rate of a busy instance, D the dead time of new ones, L the goal's
    age limit. Arrivals λ: the slope of the backlog + μ·n while it is not empty; an empty queue
    only bounds them, by none and by μ·n. With what is there and what is ordered the backlog at
    the end of the dead time is q_D = max(0, q + (λ - μ·n)·D), its age q_D / (μ·n).

    Out, where that age passes ``calm_share``·L: enough to serve λ and to drain q_D within the
    slack S = ``share``·L - D. In to m, where with the most arrivals possible the age of what m
    would have left at the end of a dead time stays within ``calm_share``·L, so that there would
    be time to take it back. An order under way counts as coming and is never taken back.

    Sources: a Smith predictor's projection over the dead time (Smith, "Closer control of loops
    with dead time", 1957); age of a first-in-first-out backlog by Little's law.
    """

    metric: str
    tunable: ClassVar[Mapping[str, tuple[float, float]]] = {
        "share": (0.3, 1.0),
        "calm_share": (0.1, 1.0),
    }
    share: float = 0.8
    calm_share: float = 0.5
    slope_minutes: float = 3
    rate_per_instance_minute: float | None = None
    dead_time_minutes: float | None = None

    @property
    def metric_names(self) -> tuple[str, ...]:
        return (self.metric,)

    @property
    def followed_metric(self) -> str:
        return self.metric

    def problems(self) -> list[str]:
        """What is wrong with the parameters, each with its value and bound."""
        problems = [
            *text("metric", self.metric),
            *fraction("share", self.share),
            *fraction("calm_share", self.calm_share),
            *number("slope_minutes", self.slope_minutes, above=0, at_most=SLOPE_MINUTES_MAX),
            *number_or_none("rate_per_instance_minute", self.rate_per_instance_minute, above=0),
            *number_or_none("dead_time_minutes", self.dead_time_minutes, at_least=0),
        ]
        if not problems and self.calm_share > self.share:
            bound = f"must be at most share = {self.share}"
            problems.append(f"calm_share = {self.calm_share}: {bound}")
        return problems

    def __call__(self, seen: Observation) -> Recommendation:
        start = seen.now - timedelta(minutes=self.slope_minutes)
        samples = [s for s in seen.history(self.metric).samples if s.time >= start]
        rate = self.rate_per_instance_minute or seen.throughput.rate_per_instance_minute
        dead_time = self.dead_time_minutes
        if dead_time is None:
            dead_time = seen.throughput.dead_time_minutes
        if not samples:
            return no_samples(seen, RULE, self.metric)
        if not rate:
            return no_rate(seen, RULE)
        if dead_time is None:
            return no_dead_time(seen, RULE)
        if len(samples) < 2 or seen.goal.age_limit_minutes < AGE_LIMIT_MINUTES_MIN:
            return self._stay(seen, len(samples))
        low, high = arrivals_per_minute(seen, samples, rate)
        return self._decide(seen, Drain(seen, samples[-1].value, low, high, rate, dead_time))

    def _stay(self, seen: Observation, count: int) -> Recommendation:
        if seen.goal.age_limit_minutes < AGE_LIMIT_MINUTES_MIN:
            reason = "goal.age_limit_minutes = 0: every item is late whatever is done"
            return stay(seen, RULE, reason)
        reason = f"{count} sample of {self.metric} in {self.slope_minutes:g} min has no slope"
        return stay(seen, RULE, reason, self.metric, samples=count)

    def _decide(self, seen: Observation, drain: Drain) -> Recommendation:
        limit = seen.goal.age_limit_minutes
        calm = self.calm_share * limit
        slack = max(self.share * limit - drain.dead_time, SLACK_SHARE_MIN * limit)
        wanted = drain.coming
        if drain.age_minutes > calm:
            wanted = max(drain.needed(slack), drain.coming)
        elif seen.pending is None:
            wanted = min(drain.enough(calm), seen.capacity)
        age = drain.age_minutes
        reason = (
            f"{self.metric} {shown(drain.backlog)}, in {shown(drain.dead_time)} min "
            f"{shown(drain.projected)} of age {shown(age)} of {shown(limit)} min; "
            f"{drain.arrivals_shown} arrive a minute, {shown(drain.rate)} done by each: → {wanted}"
        )
        evidence: Evidence = {
            "metric": self.metric,
            "backlog": drain.backlog,
            "arrivals_per_minute": drain.low,
            "arrivals_per_minute_at_most": drain.high,
            "rate_per_instance_minute": drain.rate,
            "dead_time_minutes": drain.dead_time,
            "coming": drain.coming,
            "projected_backlog": drain.projected,
            "projected_age_minutes": age,
        }
        return Recommendation(wanted, reason, RULE, evidence, paced=True)


def arrivals_per_minute(
    seen: Observation, samples: Sequence[MetricValue], rate: float
) -> tuple[float, float]:
    """Least and most arrivals: change of the backlog + work done, known while it is not empty."""
    low = high = 0.0
    for one, other in pairwise(samples):
        minutes = (other.time - one.time).total_seconds() / 60
        done = rate * capacity_at(seen, one.time) * minutes
        change = other.value - one.value
        busy = one.value > 0 and other.value > 0
        low += change + done if busy else max(change, 0)
        high += change + done
    minutes = (samples[-1].time - samples[0].time).total_seconds() / 60
    if minutes <= 0:
        return 0.0, 0.0
    return max(low / minutes, 0.0), max(high / minutes, 0.0)


@dataclass(frozen=True, slots=True)
class Drain:
    """A backlog under arrivals of ``low`` to ``high`` a minute, worked off by busy instances."""

    seen: Observation
    backlog: float
    low: float
    high: float
    rate: float
    dead_time: float

    @property
    def coming(self) -> int:
        pending = self.seen.pending
        return max(pending.target if pending else self.seen.capacity, 1)

    @property
    def arrivals_shown(self) -> str:
        return (
            shown(self.low) if self.low == self.high else f"{shown(self.low)} to {shown(self.high)}"
        )

    @property
    def change(self) -> float:
        """Of the backlog until new instances come; those ordered come sooner, and go at once."""
        pending, wait = self.seen.pending, 0.0
        if pending is not None and pending.target > self.seen.capacity:
            waited = (self.seen.now - pending.requested_at).total_seconds() / 60
            wait = min(max(self.dead_time - waited, 0), self.dead_time)
        before = (self.low - self.rate * self.seen.capacity) * wait
        return before + (self.low - self.rate * self.coming) * (self.dead_time - wait)

    @property
    def projected(self) -> float:
        return max(self.backlog + self.change, 0)

    @property
    def age_minutes(self) -> float:
        return self.projected / (self.rate * self.coming)

    def needed(self, slack: float) -> int:
        """To serve what arrives, and to drain within the slack what will have gathered."""
        return instances(max(self.low, self.projected / slack) / self.rate)

    def enough(self, calm: float) -> int:
        """The fewest with which the age at the end of a dead time stays calm, come what may."""
        calmly = (self.backlog + self.high * self.dead_time) / (self.dead_time + calm)
        return max(instances(max(calmly, self.low / LOAD_MAX) / self.rate), 1)
