"""QueueAge, the default policy. It changes the capacity only if holding it would cost more."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Annotated

from shared.autoscaling.policies.checks import no_policy
from shared.autoscaling.policies.outlook import (
    ORDER_AHEAD_STEPS,
    RETURN_TRIP,
    SMOOTHING,
    Arrivals,
    Memory,
    Outlook,
    in_hand_steps,
    infer,
)
from shared.autoscaling.policies.recommendations import HOLDING, instances_text
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
from shared.values.bounds import Bounds, Name, Share, problems_of
from shared.values.measurements import (
    HISTORY_SECONDS_MAX,
    EvidenceValue,
    Samples,
    since,
    span,
    time_of,
)

PATIENCE_STEPS_MIN = 5.0
PATIENCE_STEPS = 4.0
"""After a scale-in, the remaining instances are to finish the backlog within T steps: this times κ,
but at least ``PATIENCE_STEPS_MIN``."""
LONG_STEPS = 30.0
"""Before a scale-in, the policy looks back over this many steps."""
SMOOTHING_MIN = 3 / LONG_STEPS
"""With a lower weight of the newest step, the oldest one would have most of the average."""
STEP_SECONDS_MAX = HISTORY_SECONDS_MAX / LONG_STEPS
HELD_ON_MEMORY_MAX = 1
"""A scale-in keeps at most this many instances that only earlier arrivals need."""
MEMORABLE_SHARE = 1 / 3
"""It does so only if work was waiting in at least this share of the samples of the last
``IDLE_STEPS``, because an empty queue does not show how much work arrived."""
IDLE_STEPS = LONG_STEPS - 1.0
"""After this many steps with an empty queue at one capacity, the policy tries one instance fewer.
It is one less than ``LONG_STEPS``, because 30 samples span 29 steps."""
ROUNDING = 1e-9
"""Numbers of steps or instances this close to a whole number count as that number."""
UNSURE_GROWTH_MAX = 4
"""While the rate is uncertain, an action multiplies the instances that worked a step ago by at most
this, so that their work is seen first."""
STARTING = "instances are still starting"
NOT_KNOWN = "the rate per instance is not known yet"
START_UP_MINUTES = 3.0
"""The start-up time that the policy assumes if it is not set."""
ABOUT = 0.99
"""A rate that differs less from another one, as a factor, counts as the same in reasons."""
SECONDS_BELOW = 30
"""If a step is shorter than this, reasons state times in seconds instead of minutes."""


@dataclass(frozen=True, slots=True)
class QueueAge(Composite):
    """Keeps the oldest item of a queue younger than the goal's age limit, at the least cost.

    While work waits, every capacity finishes the same work at the same cost, and only a change
    costs extra. So the policy scales out only if work would become older than the age limit, and
    scales in only if instances would be idle for at least half of the time.

    Time is counted in steps of ``step_seconds``, and work in instance-steps: what one busy instance
    finishes in a step. The formulas use these symbols:

    - n: the capacity. The *ordered* capacity is the target of the pending action, or else n.
    - μ: the rate, in items per instance-step.
    - q, λ: the backlog, and the arrivals per step (see outlook.py), both divided by μ.
    - D, L: the start-up time, rounded up, and the age limit, rounded down, in steps.
    - κ, P: the ``switch_cost`` and the ``late_penalty`` of the goal.

    *Scale-out.* In each step, a backlog that exceeds ``age_share`` times the arrivals of the last L
    steps is late by the difference. If work would be late within D + 2 steps at the ordered
    capacity, the policy recommends the m ≥ ordered with the least cost over the next D + 4 steps:

        2κ·(m - ordered) + idle instance-steps + P·(late work of all steps)

    While instances start, only those that can work (``seen.working``) count, and the policy looks
    only D + 1 steps ahead. It replaces a pending action only if that action is overdue, or if
    waiting for it would make more work late.

    *Scale-in.* If no action is pending, no instance starts and the queue will be empty within a
    step (q + λ ≤ n), the policy recommends ⌈λ + q/T - f⌉ instances, with λ as the highest average
    of the last step, and

        T = max(5, 4κ)        f = min(busy_share, L·λ / (L·λ + 2κ·caution))

    It keeps one more if the average arrivals of about the last R steps need it, and if work was
    waiting in at least a third of the samples of the last ``IDLE_STEPS``. R is the return cost, and
    in an empty queue the arrivals of a step are taken to be 0.2/√R below the average, or lower.
    R = κ + P·max(D + 2 - L, 0), from 1 to 30, with D and L not rounded. If the queue was empty
    and the capacity unchanged for all of them, it removes one instance.

    *Estimated rate.* A scale-out uses the low end of the estimate, and a scale-in the high end.
    While the estimate is uncertain, one action at most quadruples the instances that can work.
    Before any work was seen, ``until_known`` decides.

    Source: docs/adr/0005-default-policy.md derives the formulas and compares the policy with
    others.
    """

    metric: Name
    until_known: PolicyFunction
    step_seconds: Annotated[float, Bounds(0.1, STEP_SECONDS_MAX)] = 60
    """The length of a step, which must not exceed the age limit. κ and P refer to such steps."""
    age_share: Share = 0.95
    """The share of the age limit that the policy plans with."""
    caution: Annotated[float, Bounds(0, 1000)] = 4.0
    """An instance is removed only if that is expected to save the cost of so many return trips."""
    busy_share: Annotated[float, Bounds(0, 1)] = 0.5
    """An instance that would be busy for a larger share is always kept."""

    @property
    def tunable(self) -> Mapping[str, tuple[float, float]]:
        return {"age_share": (0.8, 1.0), "caution": (1.0, 8.0), "busy_share": (0.2, 0.8)}

    @property
    def metric_names(self) -> tuple[str, ...] | None:
        return distinct(((self.metric,), described(self.until_known).metric_names))

    @property
    def followed_metric(self) -> str:
        return self.metric

    @property
    def backlog_metric(self) -> str:
        return self.metric

    @property
    def history_seconds(self) -> float:
        needed: float = described(self.until_known).history_seconds
        return max(LONG_STEPS * self.step_seconds, needed)

    def problems(self) -> list[str]:
        """The invalid parameters, each with its value and bound."""
        problems = problems_of(self) + (wrong := no_policy("until_known", self.until_known))
        if wrong:
            return problems
        return problems + [f"until_known.{p}" for p in described(self.until_known).problems()]

    def __call__(self, seen: Observation) -> Recommendation:
        rate, estimate = seen.throughput.rate_per_instance_minute, seen.estimate
        if rate is None and estimate is not None:
            rate = estimate.low
        if rate is None:
            first = self.until_known(seen)
            if not isinstance(first, Recommendation):
                return first  # the app reports that the result is not a Recommendation
            return replace(first, reason=f"{first.reason}; {NOT_KNOWN}")
        careful = self._choice(seen, rate)
        if careful is None:
            ordered = seen.pending.target if seen.pending else seen.capacity
            return Recommendation(ordered, f"no second sample of {self.metric} yet", "queue_age")
        if out := careful.scale_out():
            return out
        high = max(rate, estimate.high) if estimate else rate
        choice = careful if high == rate else self._choice(seen, high) or careful
        return choice.scale_in() or careful.holding()

    def _choice(self, seen: Observation, rate_per_minute: float) -> _Choice | None:
        steps_per_minute = 60 / self.step_seconds
        rate = rate_per_minute / steps_per_minute
        outlook = self._outlook(seen, rate, steps_per_minute)
        return _Choice(self, seen, outlook, rate, steps_per_minute) if outlook else None

    def _outlook(self, seen: Observation, rate: float, steps_per_minute: float) -> Outlook | None:
        """The outlook in steps and instance-steps; None before the backlog has a second sample.
        ``rate`` is μ, in items per instance-step."""
        backlog = seen.history(self.metric)
        limit = max(1, int(seen.goal.age_limit_minutes * steps_per_minute + ROUNDING))
        arrivals = self.arrivals(seen, rate, limit, Memory(self.return_cost(seen)))
        if arrivals is None:
            return None
        dead = _start_up_minutes(seen) * steps_per_minute
        arrival, pending, overdue = 1, seen.pending, False
        if pending is not None and pending.target != seen.capacity:
            waited = (seen.now - pending.waiting_since).total_seconds() / self.step_seconds
            arrival = max(1, ceil(dead - waited - ROUNDING))
            overdue = waited > max(dead, 1.0)
        return Outlook(
            backlog.samples[-1].value / rate,
            arrivals,
            self.standing(seen),
            pending.target if pending else seen.capacity,
            max(1, ceil(dead - ROUNDING)),
            arrival,
            self.age_share,
            overdue,
        )

    def arrivals(
        self, seen: Observation, rate: float, steps: int, memory: Memory
    ) -> Arrivals | None:
        """The arrivals in instance-steps, with those of the last ``steps`` one by one."""
        backlog, step = seen.history(self.metric), self.step_seconds
        return infer(backlog, _working(seen), seen.capacity, rate, steps, step, seen.now, memory)

    def return_cost(self, seen: Observation) -> float:
        """What it costs if an instance leaves although the load returns, from 1 to ``LONG_STEPS``:
        κ, and the work that becomes late until another one works."""
        late_minutes = _start_up_minutes(seen) - seen.goal.age_limit_minutes
        late = max(late_minutes * 60 / self.step_seconds + ORDER_AHEAD_STEPS, 0.0)
        cost = seen.goal.switch_cost + seen.goal.late_penalty * late
        return min(max(cost, 1.0), LONG_STEPS)

    def standing(self, seen: Observation, start: float = 0) -> Sequence[int]:
        """The instances that can work in each of the next steps without a further action. The first
        step begins ``start`` steps from now."""
        changes, step = seen.working.samples, span(self.step_seconds)
        middle, working = seen.now + step * (start + 0.5), list[int]()
        first = bisect_right(changes, middle, key=time_of) - 1
        for before, after in pairwise(changes[max(first, 0) :]):
            steps = ceil((after.time - middle) / step - ROUNDING)
            working += [int(before.value)] * (steps - len(working))
        return [*working, seen.capacity]


def _start_up_minutes(seen: Observation) -> float:
    known = seen.throughput.start_up_minutes
    return START_UP_MINUTES if known is None else known


def _working(seen: Observation) -> Samples:
    return seen.working.samples or seen.capacities.samples


@dataclass(frozen=True, slots=True)
class _Choice:
    """Chooses between scale-out, scale-in and holding, and explains the choice. ``items`` is the
    rate μ in items per instance-step."""

    policy: QueueAge
    seen: Observation
    outlook: Outlook
    items: float
    steps_per_minute: float

    @property
    def per_minute(self) -> float:
        """The rate μ in items per instance-minute."""
        return self.items * self.steps_per_minute

    def scale_out(self) -> Recommendation | None:
        """The recommendation if work would be late without a further action."""
        outlook = self.outlook
        ahead = outlook.late_ahead()
        if ahead.late <= 0.0:
            return None
        if outlook.ordered < self.seen.limits.maximum:
            return self._out(ahead.worst_age)
        age = self._time(ahead.worst_age)
        return self._hold(f"work will be {age} old, but {outlook.ordered} is the maximum")

    def scale_in(self) -> Recommendation | None:
        """The recommendation if the queue runs empty."""
        seen, outlook = self.seen, self.outlook
        if outlook.backlog + outlook.arrivals.rate > seen.capacity:
            return None
        if outlook.ordered != seen.capacity:
            change = f"the change to {instances_text(outlook.ordered)}"
            return self._hold(f"the queue runs empty, but {change} is still pending")
        if not outlook.settled:
            return self._hold(f"the queue runs empty, but {STARTING}")
        if seen.capacity <= seen.limits.minimum:
            return self._hold(f"the queue runs empty, but {seen.capacity} is the minimum")
        return self._in()

    def holding(self) -> Recommendation:
        """The recommendation if no work would be late, and the queue does not run empty."""
        seen, outlook = self.seen, self.outlook
        busy = f"{instances_text(outlook.working[0])} at work"
        if outlook.arrivals.rate <= 0.0:
            return self._hold(f"{HOLDING}the backlog does not grow, {busy}")
        age = self._time(outlook.backlog / outlook.arrivals.rate)
        limit = self._time(seen.goal.age_limit_minutes * self.steps_per_minute)
        return self._hold(f"{HOLDING}oldest about {age} of {limit}, {busy}")

    def _out(self, age: float) -> Recommendation:
        seen, outlook, goal = self.seen, self.outlook, self.seen.goal
        ahead = self._time(outlook.ahead)
        wanted = outlook.cheapest(self._maximum, goal.switch_cost, goal.late_penalty)
        replace = outlook.overdue or outlook.worth_replacing(wanted)
        if outlook.ordered > seen.capacity and not replace:
            coming = self._time(outlook.arrival)
            come = f"{instances_text(outlook.ordered)} will be running within {coming}"
            return self._hold(f"{come}, and a new request would not reduce late work")
        if wanted == self._maximum < seen.limits.maximum and wanted == outlook.ordered:
            wait = f"no more instances are requested until {wanted} are at work"
            return self._hold(f"the rate per instance is still uncertain: {wait}")
        if wanted == outlook.ordered:
            late = f"the work that will be late within the next {ahead}"
            return self._hold(f"{late} costs less than another instance would")
        limit = self._time(outlook.share * len(outlook.arrivals.recent))
        return self._say(
            wanted,
            f"with a backlog of {outlook.backlog * self.items:.4g} and "
            f"{self._flow(outlook.arrivals.rate)}, {instances_text(outlook.ordered)} would let "
            f"work become {self._time(age)} old within the next {ahead}; the policy plans for at "
            f"most {limit}; new instances take {self._time(outlook.dead)} to start, so more are "
            "needed now",
        )

    @property
    def _maximum(self) -> int:
        """The highest capacity to request now. It is limited while the rate is uncertain."""
        seen = self.seen
        if seen.estimate is None or seen.estimate.sure:
            return seen.limits.maximum
        before = self.policy.standing(seen, -1)[0]
        step = max(UNSURE_GROWTH_MAX * before, self.outlook.ordered)
        return min(step, seen.limits.maximum)

    def _in(self) -> Recommendation:
        seen, rate = self.seen, self.outlook.arrivals.peak
        wanted = self._needed(rate)
        if wanted < seen.capacity and self._waiting_share() >= MEMORABLE_SHARE:
            remembered = self._needed(max(rate, self._remembered_rate()))
            wanted = min(max(wanted, remembered), wanted + HELD_ON_MEMORY_MAX)
        wanted = max(wanted, seen.limits.minimum)
        if wanted < seen.capacity:
            idle_share = 1 - self._busy_share(rate)
            return self._say(
                wanted,
                f"the queue runs empty at {self._flow(rate)}; {instances_text(wanted)} will be "
                f"enough for the next {self._time(self._patience)}, and another one would be idle "
                f"for at least {idle_share:.0%} of the time",
            )
        if self._idle_for_long():
            idle = f"the queue was empty for {self._time(min(IDLE_STEPS, self._history_steps))}"
            fewer = seen.capacity - 1
            return self._say(fewer, f"{idle} at {instances_text(seen.capacity)}: trying {fewer}")
        return self._hold(f"{HOLDING}the last instance has enough to do")

    def _needed(self, rate: float) -> int:
        """The instances that are enough for arrivals at this rate."""
        backlog = self.outlook.backlog / self._patience
        return ceil(rate + backlog - self._busy_share(rate) - ROUNDING)

    @property
    def _patience(self) -> float:
        return max(PATIENCE_STEPS_MIN, PATIENCE_STEPS * self.seen.goal.switch_cost)

    def _busy_share(self, rate: float) -> float:
        """The share f. The last instance is kept if it would be busy for more than the share f of
        its time.
        """
        buffer = len(self.outlook.arrivals.recent) * rate
        trips = self.policy.caution * RETURN_TRIP * self.seen.goal.switch_cost
        return min(self.policy.busy_share, buffer / (buffer + trips)) if buffer > 0.0 else 0.0

    def _remembered_rate(self) -> float:
        """The arrivals per step, averaged over about as many steps as the return cost."""
        cost = self.policy.return_cost(self.seen)
        memory = Memory(cost, LONG_STEPS, min(SMOOTHING, max(1 / cost, SMOOTHING_MIN)))
        arrivals = self.policy.arrivals(self.seen, self.items, 1, memory)
        return arrivals.rate if arrivals else 0.0

    def _idle_for_long(self) -> bool:
        """True if neither was work waiting nor did the capacity change for ``IDLE_STEPS``.

        If samples are rarer than steps, the oldest of ``LONG_STEPS`` may be younger than that.
        """
        seen, samples = self.seen, self.seen.history(self.policy.metric).samples
        start = seen.now - span(IDLE_STEPS * self.policy.step_seconds)
        settled = seen.changed_at is None or seen.changed_at <= start
        interval = (samples[1].time - samples[0].time).total_seconds() / self.policy.step_seconds
        known = self._history_steps
        covered = known >= IDLE_STEPS or known + interval >= LONG_STEPS
        return settled and covered and self._waiting_share() == 0.0

    @property
    def _history_steps(self) -> float:
        """The age of the oldest sample, in steps."""
        oldest = self.seen.history(self.policy.metric).samples[0].time
        return (self.seen.now - oldest).total_seconds() / self.policy.step_seconds

    def _waiting_share(self) -> float:
        """The share of the samples of the last ``IDLE_STEPS`` in which more items waited than the
        instances may be processing; 0 without samples."""
        start = self.seen.now - span(IDLE_STEPS * self.policy.step_seconds)
        samples = since(self.seen.history(self.policy.metric).samples, start)
        in_hand = in_hand_steps(self.items) * self.items * self.seen.capacity
        waiting = [sample.value > in_hand for sample in samples]
        return sum(waiting) / len(waiting) if waiting else 0.0

    def _time(self, steps: float) -> str:
        """The duration of this many steps, in minutes, or in seconds if steps are short."""
        seconds = steps * self.policy.step_seconds
        return f"{seconds:.3g} s" if self._in_seconds else f"{seconds / 60:.3g} min"

    def _flow(self, rate: float) -> str:
        """The arrivals: the low end of an estimated rate gives the least, its high end the most."""
        arrivals, estimate = rate * self.per_minute, self.seen.estimate
        share = self.per_minute / estimate.likely if estimate else 1.0
        bound = "at least " if share < ABOUT else "up to " if share > 1 / ABOUT else ""
        if self._in_seconds:
            return f"{bound}{arrivals / 60:.4g} arrivals/s"
        return f"{bound}{arrivals:.4g} arrivals/min"

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
            "dead_time_minutes": outlook.dead * (1 / self.steps_per_minute),
            "ordered": outlook.ordered,
        }
        estimate = self.seen.estimate
        if estimate is not None:
            evidence["rate_source"] = RATE_SOURCES[estimate.source]
            evidence["rate_relative_error"] = round(estimate.relative_error, 3)
            if estimate.source is not RateSource.SETTINGS:
                reason = f"{reason}; {estimate}"
        return Recommendation(wanted, reason, "queue_age", evidence, paced=True)
