"""QueueAge: hold, and move only where holding costs more. The policy that comes with the app."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar

from shared.autoscaling.measurements import EvidenceValue, span
from shared.autoscaling.policies.checks import fraction, number, text
from shared.autoscaling.policies.outlook import (
    ORDER_AHEAD_STEPS,
    RECENT,
    RETURN_TRIP,
    Memory,
    Outlook,
    in_hand_steps,
    infer,
    waiting_share,
)
from shared.autoscaling.policy import (
    RATE_SOURCES,
    Composite,
    Observation,
    PolicyFunction,
    RateSource,
    Recommendation,
    described,
    distinct,
)

PATIENCE_STEPS_MIN = 5.0
PATIENCE_STEPS = 4.0
"""Per unit of switch cost: in so many what waits is to be done, after letting go."""
AGE_SHARE_MIN = 0.8
"""However little is known of the rate."""
LONG_STEPS = 30.0
"""What is remembered before instances are let go: as far back as samples are kept by default."""
HELD_ON_MEMORY_MAX = 1
"""Instances beyond those that the present arrivals need ..."""
MEMORABLE_SHARE = 1 / 3
"""... where work waited for so much of the time: of an empty queue nothing can be remembered."""
IDLE_STEPS = LONG_STEPS - 1.0
"""Of an empty queue at one capacity, after which one instance fewer is tried."""
ROUNDING = 1e-9
"""Of steps and instances: this little above or below a whole number is that number."""
UNSURE_GROWTH_MAX = 4
"""As long as the throughput is not sure, one action at most multiplies the capacity by this."""
NOT_KNOWN = "the throughput of an instance is not known yet"
DEAD_TIME_MINUTES = 3.0
"""Until it is known."""
SECONDS_BELOW = 30
"""Shorter steps are told in seconds."""


@dataclass(frozen=True, slots=True)
class QueueAge(Composite):
    """Keep the oldest item younger than the goal's age limit at the least cost.

    There are two reasons to change capacity. Work would become older than the age limit: order
    out, early enough for the dead time. Or instances stand idle: let those go that would be busy
    for less than half of the time. Between the two every capacity does the same work at the same
    cost, and a change costs extra: there the backlog is the buffer, and the wish is to hold.

    With q = backlog/μ and λ the arrivals per minute (see arrivals.py), in instance-minutes:

    - late work at n instances h minutes ahead: max(0, q_h - share·(arrivals of the last L minutes
      by then)), summed over the horizon;
    - out, where some is late within D + 2 minutes: to the n at which
      2κ·(n - ordered) + idle + P·late over D + 4 minutes is least. An order under way is replaced
      only if that leaves less late than waiting for it;
    - in, where nothing is under way and the queue runs empty, q + λ ≤ n: to
      ⌈λ + q/T - f⌉ with T = max(5, 4κ) minutes. The last instance stays where it would be busy
      for a share of more than f = min(½, L·λ / (L·λ + 8κ)) of its time: without it the backlog may
      grow to L·λ before it has to come back, in which it saves (1 - f)·L·λ/f, four return trips
      of 2κ. Four, not one, for arrivals vary and fill the backlog sooner. One more stays where it
      would be needed for what came on the average of some κ minutes (the more a change
      costs, the longer the memory), if work waited in a third of the last half hour at least;
    - in by one, whatever λ is believed to be, where the queue was empty and capacity the same for
      half an hour (30 steps; samples must be kept for as long): an empty queue tells nothing of
      what comes, only that fewer may do.

    D, μ, L, κ and P are ``seen.throughput`` and ``seen.goal``. If μ is not known, the rule plans
    with the low end of ``seen.estimate``. That errs towards too many instances, so an action may
    then at most multiply the capacity by four. ``until_known`` decides only as long as there is
    no estimate, because no work was seen. How the rule was found and what it was compared with is
    in docs/adr/0005-default-policy.md.
    """

    metric: str
    until_known: PolicyFunction
    step_seconds: float = 60
    """It plans in steps of this; κ and P are in instance-steps. Shorter where all is faster."""
    age_share: float = 0.95
    """How much of the age limit to make use of."""
    caution: float = 4.0
    """Letting an instance go must promise to save so many return trips."""
    busy_share: float = 0.5
    """The last instance stays where it would be busy for this share of its time, or less."""
    tunable: ClassVar[Mapping[str, tuple[float, float]]] = {
        "age_share": (0.8, 1.0),
        "caution": (1.0, 8.0),
        "busy_share": (0.2, 0.8),
    }

    @property
    def members(self) -> tuple[PolicyFunction, ...]:
        return (self.until_known,)

    @property
    def metric_names(self) -> tuple[str, ...]:
        return distinct(((self.metric,), described(self.until_known).metric_names))

    @property
    def followed_metric(self) -> str:
        return self.metric

    def problems(self) -> list[str]:
        """What is wrong with the parameters, each with its value and bound."""
        problems = [
            *text("metric", self.metric),
            *number("step_seconds", self.step_seconds, at_least=0.1, at_most=600),
            *fraction("age_share", self.age_share),
            *number("caution", self.caution, at_least=0, at_most=1000),
            *number("busy_share", self.busy_share, at_least=0, at_most=1),
        ]
        if not callable(self.until_known):
            said = "must be callable with an Observation"
            return [*problems, f"until_known = {self.until_known!r}: {said}"]
        return problems + [f"until_known.{p}" for p in described(self.until_known).problems()]

    def __call__(self, seen: Observation) -> Recommendation:
        rate, estimate = seen.throughput.rate_per_instance_minute, seen.estimate
        if rate is None and estimate is not None:
            rate = estimate.low
        if rate is None:
            first = self.until_known(seen)
            if not isinstance(first, Recommendation):
                return first  # the app refuses it, and says so
            return replace(first, reason=f"{first.reason}; {NOT_KNOWN}")
        steps_per_minute = 60 / self.step_seconds
        outlook = self._outlook(seen, rate / steps_per_minute, steps_per_minute)
        if outlook is None:
            ordered = seen.pending.target if seen.pending else seen.capacity
            return Recommendation(ordered, f"no second sample of {self.metric} yet", "queue_age")
        return _Choice(self, seen, outlook, rate / steps_per_minute, steps_per_minute).made()

    def _outlook(self, seen: Observation, rate: float, steps_per_minute: float) -> Outlook | None:
        """The queue in steps; None before its second sample. ``rate`` is per instance and step."""
        backlog = seen.history(self.metric)
        limit = max(1, int(seen.goal.age_limit_minutes * steps_per_minute + ROUNDING))
        capacities = seen.capacities.samples
        arrivals = infer(
            backlog, capacities, seen.capacity, rate, limit, self.step_seconds, seen.now
        )
        if arrivals is None:
            return None
        known = seen.throughput.dead_time_minutes
        dead = (DEAD_TIME_MINUTES if known is None else known) * steps_per_minute
        arrival, pending, overdue = 1, seen.pending, False
        if pending is not None and pending.target != seen.capacity:
            waited = (seen.now - pending.requested_at).total_seconds() / self.step_seconds
            arrival, overdue = max(1, ceil(dead - waited)), waited > max(dead, 1.0)
        return Outlook(
            backlog.samples[-1].value / rate,
            arrivals,
            seen.capacity,
            pending.target if pending else seen.capacity,
            max(1, ceil(dead)),
            arrival,
            max(
                self.age_share - seen.throughput.relative_error, min(AGE_SHARE_MIN, self.age_share)
            ),
            overdue,
        )


class _Choice:
    """Out, in or hold, and how to say why."""

    __slots__ = ("items", "minutes", "outlook", "per_minute", "policy", "seen")

    def __init__(
        self,
        policy: QueueAge,
        seen: Observation,
        outlook: Outlook,
        rate: float,
        steps_per_minute: float,
    ) -> None:
        self.policy = policy
        self.seen = seen
        self.outlook = outlook
        self.items = rate
        self.per_minute = rate * steps_per_minute
        self.minutes = 1 / steps_per_minute

    def made(self) -> Recommendation:
        seen, outlook = self.seen, self.outlook
        ahead = outlook.late_ahead()
        if ahead.late > 0.0:
            if outlook.ordered < seen.limits.maximum:
                return self._out(ahead.worst_age)
            age = self._time(ahead.worst_age)
            return self._hold(f"work will be {age} old, but {outlook.ordered} is the maximum")
        if outlook.backlog + outlook.arrivals.rate <= seen.capacity:
            if outlook.ordered != seen.capacity:
                return self._hold(f"the queue runs empty while {outlook.ordered} are on order")
            if seen.capacity <= seen.limits.minimum:
                return self._hold(f"the queue runs empty, but {seen.capacity} is the minimum")
            return self._in()
        return self._hold("holding: the backlog is neither late nor empty")

    def _out(self, age: float) -> Recommendation:
        seen, outlook, goal = self.seen, self.outlook, self.seen.goal
        ahead = self._time(outlook.dead + ORDER_AHEAD_STEPS)
        wanted = outlook.cheapest(self._maximum, goal.switch_cost, goal.late_penalty)
        replace = outlook.overdue or outlook.worth_replacing(wanted)
        if outlook.ordered > seen.capacity and not replace:
            coming = self._time(outlook.arrival)
            return self._hold(f"{outlook.ordered} come within {coming}, sooner than a new order")
        if wanted == self._maximum < seen.limits.maximum and wanted == outlook.ordered:
            return self._hold(f"the throughput is not sure yet: {wanted} must come before more")
        if wanted == outlook.ordered:
            return self._hold(f"late work within {ahead} costs less than another instance")
        limit = self._time(outlook.share * len(outlook.arrivals.recent))
        return self._say(
            wanted,
            f"backlog {outlook.backlog * self.items:.4g} at {self._flow(outlook.arrivals.rate)} "
            f"would be {self._time(age)} old within {ahead} at {_instances(outlook.ordered)}, and "
            f"new ones need {self._time(outlook.dead)}; {wanted} keep it under {limit}",
        )

    @property
    def _maximum(self) -> int:
        """The most instances to order now: step by step, if the throughput is not sure."""
        seen = self.seen
        if seen.estimate is None or seen.estimate.sure:
            return seen.limits.maximum
        step = max(UNSURE_GROWTH_MAX * seen.capacity, self.outlook.ordered)
        return min(step, seen.limits.maximum)

    def _in(self) -> Recommendation:
        seen, rate = self.seen, self.outlook.arrivals.rate
        wanted = self._needed(rate)
        if wanted < seen.capacity and self._waiting_share(IDLE_STEPS) >= MEMORABLE_SHARE:
            remembered = self._needed(max(rate, self._remembered_rate()))
            wanted = min(max(wanted, remembered), wanted + HELD_ON_MEMORY_MAX)
        wanted = max(wanted, seen.limits.minimum)
        if wanted < seen.capacity:
            idle_share = 1 - self._busy_share(rate)
            return self._say(
                wanted,
                f"the queue runs empty at {self._flow(rate)}; for the next "
                f"{self._time(self._patience)} {_instances(wanted)} will do, more would be idle "
                f"{idle_share:.0%} of the time",
            )
        if self._idle_for_long():
            idle = f"the queue was empty for {self._time(IDLE_STEPS)}"
            fewer = seen.capacity - 1
            return self._say(fewer, f"{idle} at {_instances(seen.capacity)}: trying {fewer}")
        return self._hold("holding: the last instance has enough to do")

    def _needed(self, rate: float) -> int:
        """The instances that will do for arrivals at that rate."""
        backlog = self.outlook.backlog / self._patience
        return ceil(rate + backlog - self._busy_share(rate) - ROUNDING)

    @property
    def _patience(self) -> float:
        return max(PATIENCE_STEPS_MIN, PATIENCE_STEPS * self.seen.goal.switch_cost)

    def _busy_share(self, rate: float) -> float:
        """The last instance stays where it would be busy for more of its time."""
        buffer = len(self.outlook.arrivals.recent) * rate
        trips = self.policy.caution * RETURN_TRIP * self.seen.goal.switch_cost
        return min(self.policy.busy_share, buffer / (buffer + trips)) if buffer > 0.0 else 0.0

    def _remembered_rate(self) -> float:
        """The arrivals per step on the average of the last κ steps."""
        seen = self.seen
        smoothing = min(RECENT.smoothing, 1 / max(seen.goal.switch_cost, 1))
        arrivals = infer(
            seen.history(self.policy.metric),
            seen.capacities.samples,
            seen.capacity,
            self.items,
            1,
            self.policy.step_seconds,
            seen.now,
            Memory(LONG_STEPS, smoothing),
        )
        return arrivals.rate if arrivals else 0.0

    def _idle_for_long(self) -> bool:
        """Neither work nor a change of capacity for so long that fewer are worth a try."""
        seen, samples = self.seen, self.seen.history(self.policy.metric).samples
        start = seen.now - span(IDLE_STEPS * self.policy.step_seconds)
        settled = seen.changed_at is None or seen.changed_at <= start
        return settled and samples[0].time <= start and self._waiting_share(IDLE_STEPS) == 0.0

    def _waiting_share(self, steps: float) -> float:
        """In what part of the last steps work waited, beyond what instances have in hand."""
        seen = self.seen
        start = seen.now - span(steps * self.policy.step_seconds)
        in_hand = in_hand_steps(self.items) * self.items * seen.capacity
        return waiting_share(seen.history(self.policy.metric).samples, start, in_hand)

    def _time(self, steps: float) -> str:
        """In minutes, or in seconds where it plans in seconds."""
        seconds = steps * self.policy.step_seconds
        return f"{seconds:.3g} s" if self._in_seconds else f"{seconds / 60:.3g} min"

    def _flow(self, rate: float) -> str:
        arrivals = rate * self.per_minute
        if self._in_seconds:
            return f"{arrivals / 60:.4g} arrivals/s"
        return f"{arrivals:.4g} arrivals/min"

    @property
    def _in_seconds(self) -> bool:
        return self.policy.step_seconds < SECONDS_BELOW

    def _hold(self, reason: str) -> Recommendation:
        return self._say(self.outlook.ordered, reason)

    def _say(self, wanted: int, reason: str) -> Recommendation:
        outlook = self.outlook
        evidence: dict[str, EvidenceValue] = {
            "backlog": outlook.backlog * self.items,
            "arrivals_per_minute": outlook.arrivals.rate * self.per_minute,
            "rate_per_instance_minute": self.per_minute,
            "dead_time_minutes": outlook.dead * self.minutes,
            "ordered": outlook.ordered,
        }
        estimate = self.seen.estimate
        if estimate is not None:
            evidence["rate_source"] = RATE_SOURCES[estimate.source]
            evidence["rate_relative_error"] = round(estimate.relative_error, 3)
            if estimate.source is not RateSource.SETTINGS:
                reason = f"{reason}; {estimate}"
        return Recommendation(wanted, reason, "queue_age", evidence, paced=True)


def _instances(count: int) -> str:
    return f"{count} instance" if count == 1 else f"{count} instances"
