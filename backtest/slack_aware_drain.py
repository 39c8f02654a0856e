"""SlackAwareDrain: keeps the oldest item young, and plans for the start-up of new instances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Annotated

from shared.autoscaling.policies.recommendations import (
    capacity_at,
    instances,
    instances_text,
    needed,
    no_rate,
    no_samples,
    shown,
    stay,
)
from shared.autoscaling.policy import Observation, OfMetric, Recommendation
from shared.values.bounds import Bounds, Positive, Share, problems_of
from shared.values.measurements import HISTORY_SECONDS_MAX, Evidence, MetricValue

RULE = "slack_aware_drain"

NO_START_UP_TIME = (
    "the start-up time of new instances is not known; set throughput.start_up_minutes, or wait "
    "until a scale-out was measured"
)

SLACK_SHARE_MIN = 0.2
"""The policy plans to finish the backlog in no less than this share of the age limit, even if the
start-up time is so long that work will be late.
"""

SLOPE_MINUTES_MAX = HISTORY_SECONDS_MAX / 60
"""The longest time from which the slope is computed."""

AGE_LIMIT_MINUTES_MIN = 1e-3
"""With a shorter age limit, all work is late at any capacity."""

LOAD_MAX = 0.9
"""After a scale-in, the remaining instances may be busy for at most this share of their time.
Otherwise random variation of the arrivals might soon lead to a scale-out.
"""


@dataclass(frozen=True, slots=True)
class SlackAwareDrain(OfMetric):
    """Keeps the oldest item of a queue younger than the age limit, despite the start-up time.

    The policy projects the backlog to the end of the start-up time, and changes the capacity
    depending on the age that the projected backlog would have. The formulas use these symbols:

    - n: the ordered capacity, in instances: the target of the pending action, or the current
      capacity if no action is pending.
    - q: the current backlog, in items.
    - μ: the rate per busy instance, in items per minute.
    - D: the start-up time from the request for an instance until this instance works, in minutes.
    - L: the age limit of the goal, in minutes.
    - λ: the arrivals, in items per minute, estimated from the samples of the last
      ``slope_minutes``.

    *Arrivals.* While the queue is not empty, all instances are busy. λ is then the slope of the
    backlog plus the work that the instances finish. An empty queue gives only a lower and an upper
    bound of λ: nothing arrived, or as much as all instances can finish. Except where stated
    otherwise, λ means the lower bound.

    *Projection.* At the end of the start-up time, the backlog is q_D = max(0, q + (λ - μ·n)·D), and
    its age is q_D / (μ·n). If an action that adds instances is pending, the projection uses the
    current capacity until these instances work, and n from then on.

    *Scale-out.* If this age is above ``calm_share``·L, the policy recommends

        ⌈max(λ/μ, q_D / (μ·S))⌉ instances, with S = max(``share``·L - D, 0.2·L)

    These instances serve the arrivals, and finish q_D within the slack S.

    *Scale-in.* If the age is not above this limit and no action is pending, the policy recommends
    the fewest instances m, at most n, that meet two conditions:

    - With the upper bound of λ, the age of the backlog that m instances leave after D minutes is at
      most ``calm_share``·L. So the policy has the time to reverse the scale-in.
    - With the lower bound of λ, m instances are busy for at most 90 % of their time.

    The policy never recommends less than the target of a pending action.

    Sources: the projection over the start-up time is that of a Smith predictor (Smith, "Closer
    control of loops with dead time", 1957). The age of a first-in-first-out backlog follows from
    Little's law.
    """

    share: Share = 0.8
    calm_share: Share = 0.5
    slope_minutes: Annotated[float, Bounds(0, SLOPE_MINUTES_MAX, above=True)] = 3
    rate_per_instance_minute: Positive | None = None
    dead_time_minutes: Annotated[float, Bounds(0)] | None = None

    @property
    def tunable(self) -> Mapping[str, tuple[float, float]]:
        return {"share": (0.3, 1.0), "calm_share": (0.1, 1.0)}

    @property
    def followed_metric(self) -> str:
        return self.metric

    @property
    def backlog_metric(self) -> str:
        return self.metric

    @property
    def history_seconds(self) -> float:
        return self.slope_minutes * 60

    def problems(self) -> list[str]:
        """The invalid parameters, each with its value and bound."""
        problems = problems_of(self)
        if not problems and self.calm_share > self.share:
            bound = f"must be at most share = {self.share}"
            problems.append(f"calm_share = {self.calm_share}: {bound}")
        return problems

    def __call__(self, seen: Observation) -> Recommendation:
        start = seen.now - timedelta(minutes=self.slope_minutes)
        samples = [s for s in seen.history(self.metric).samples if s.time >= start]
        rate = self.rate_per_instance_minute or seen.throughput.rate_per_instance_minute
        start_up = self.dead_time_minutes
        if start_up is None:
            start_up = seen.throughput.start_up_minutes
        if not samples:
            return no_samples(seen, RULE, self.metric)
        if not rate:
            return no_rate(seen, RULE)
        if start_up is None:
            return stay(seen, RULE, NO_START_UP_TIME, "throughput.start_up_minutes")
        if len(samples) < 2 or seen.goal.age_limit_minutes < AGE_LIMIT_MINUTES_MIN:
            return self._stay(seen, len(samples))
        low, high = arrivals_per_minute(seen, samples, rate)
        return self._decide(seen, Drain(seen, samples[-1].value, low, high, rate, start_up))

    def _stay(self, seen: Observation, count: int) -> Recommendation:
        if seen.goal.age_limit_minutes < AGE_LIMIT_MINUTES_MIN:
            limit = f"goal.age_limit_minutes = {seen.goal.age_limit_minutes:g}"
            return stay(seen, RULE, f"with {limit}, every item is late at any capacity")
        found = f"{count} sample of {self.metric} in the last {self.slope_minutes:g} min"
        reason = f"there is only {found}, but a slope requires 2"
        return stay(seen, RULE, reason, self.metric, samples=count)

    def _decide(self, seen: Observation, drain: Drain) -> Recommendation:
        limit = seen.goal.age_limit_minutes
        calm = self.calm_share * limit
        slack = max(self.share * limit - drain.start_up, SLACK_SHARE_MIN * limit)
        wanted = drain.ordered
        if drain.age_minutes > calm:
            wanted = max(drain.required(slack), drain.ordered)
        elif seen.pending is None:
            wanted = min(drain.enough(calm), seen.capacity)
        result = needed(wanted)
        if seen.pending is not None and wanted == drain.ordered:
            result = f"keeping the pending change to {instances_text(wanted)}"
        age = drain.age_minutes
        reason = (
            f"the latest {self.metric} is {shown(drain.backlog)}, with {drain.arrivals_shown} "
            f"arrivals/min; in {shown(drain.start_up)} min, {instances_text(drain.ordered)} at "
            f"{shown(drain.rate)} items/min each would have a backlog of {shown(drain.projected)} "
            f"and an age of {shown(age)} min (scale-out above {shown(calm)} min): {result}"
        )
        evidence: Evidence = {
            "metric": self.metric,
            "backlog": drain.backlog,
            "arrivals_per_minute": drain.low,
            "arrivals_per_minute_at_most": drain.high,
            "rate_per_instance_minute": drain.rate,
            "dead_time_minutes": drain.start_up,
            "coming": drain.ordered,
            "projected_backlog": drain.projected,
            "projected_age_minutes": age,
        }
        return Recommendation(wanted, reason, RULE, evidence, paced=True)


def arrivals_per_minute(
    seen: Observation, samples: Sequence[MetricValue], rate: float
) -> tuple[float, float]:
    """The lower and the upper bound of the arrivals per minute.

    Both are equal if the backlog was never empty. The arrivals are then the growth of the backlog
    plus the finished work. ``rate`` is the throughput μ, in items per instance-minute.
    """
    low = high = 0.0
    for before, after in pairwise(samples):
        minutes = (after.time - before.time).total_seconds() / 60
        done = rate * capacity_at(seen, before.time) * minutes
        change = after.value - before.value
        busy = before.value > 0 and after.value > 0
        low += change + done if busy else max(change, 0)
        high += change + done
    minutes = (samples[-1].time - samples[0].time).total_seconds() / 60
    if minutes <= 0:
        return 0.0, 0.0
    return max(low / minutes, 0.0), max(high / minutes, 0.0)


@dataclass(frozen=True, slots=True)
class Drain:
    """A backlog in items, and what determines its course.

    ``low`` and ``high`` are the bounds of the arrivals per minute. ``rate`` is the throughput of a
    busy instance in items per minute, and ``start_up`` is in minutes.
    """

    seen: Observation
    backlog: float
    low: float
    high: float
    rate: float
    start_up: float

    @property
    def ordered(self) -> int:
        """The target of the pending action, or the current capacity; at least 1."""
        pending = self.seen.pending
        return max(pending.target if pending else self.seen.capacity, 1)

    @property
    def arrivals_shown(self) -> str:
        return (
            shown(self.low) if self.low == self.high else f"{shown(self.low)} to {shown(self.high)}"
        )

    @property
    def change(self) -> float:
        """The growth of the backlog until a new action would take effect.

        Instances that a pending action adds work sooner. Instances that it removes are assumed to
        stop at once.
        """
        pending, wait = self.seen.pending, 0.0
        if pending is not None and pending.target > self.seen.capacity:
            waited = (self.seen.now - pending.requested_at).total_seconds() / 60
            wait = min(max(self.start_up - waited, 0), self.start_up)
        before = (self.low - self.rate * self.seen.capacity) * wait
        return before + (self.low - self.rate * self.ordered) * (self.start_up - wait)

    @property
    def projected(self) -> float:
        """The backlog at the end of the start-up time, in items."""
        return max(self.backlog + self.change, 0)

    @property
    def age_minutes(self) -> float:
        """The age of the projected backlog."""
        return self.projected / (self.rate * self.ordered)

    def required(self, slack: float) -> int:
        """The instances that serve the arrivals and finish the projected backlog in time."""
        return instances(max(self.low, self.projected / slack) / self.rate)

    def enough(self, calm: float) -> int:
        """The fewest instances to scale in to; at least 1.

        Even with the highest possible arrivals, the age of their backlog after the start-up time is
        at most ``calm`` minutes.
        """
        finished = (self.backlog + self.high * self.start_up) / (self.start_up + calm)
        return max(instances(max(finished, self.low / LOAD_MAX) / self.rate), 1)
