"""Infers the recent arrivals of a queue from its backlog and the instances that worked on it, and
projects the backlog for a planned capacity. All work is in instance-steps: one instance-step is
what one busy instance finishes in a step, usually of a minute."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf, sqrt
from operator import sub

from shared.values.measurements import MetricValue, Window, span, time_of

SAMPLES_MIN = 4
"""At least this many samples are used, however old, because steps may be shorter than the time
between samples."""
SMOOTHING = 0.3
"""The weight of the newest step in the average arrivals."""
IDLE_FADE = 0.2
"""An empty queue hides the arrivals. They are assumed to be lower than the previous average by at
least this share, divided by the root of the return cost."""
IN_HAND_STEPS_MIN = 0.05
IN_HAND_STEPS_MAX = 0.5
"""Brokers also count the items in process, so one item for each instance does not count as waiting.
These are the lowest and highest work that is assumed for such an item."""


@dataclass(frozen=True, slots=True)
class Memory:
    """How many past steps count, and the weight of the newest one. ``return_cost`` is what it costs
    if an instance leaves although the load returns, in instance-steps, at least 1."""

    return_cost: float
    steps: float = 15.0
    smoothing: float = SMOOTHING

    @property
    def idle_share(self) -> float:
        """The arrivals in an empty queue are at most this share of the average."""
        return 1.0 - IDLE_FADE / sqrt(self.return_cost)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The average arrivals per step, and those of each of the last steps, newest first. ``peak`` is
    the highest average of the last step, so that a scale-in is not due to its lowest sample."""

    rate: float
    recent: tuple[float, ...]
    peak: float


def infer(
    backlog: Window,
    capacities: Sequence[MetricValue],
    capacity: int,
    rate_per_instance_step: float,
    steps: int,
    step_seconds: float,
    now: datetime,
    memory: Memory,
) -> Arrivals | None:
    """The arrivals, with those of the last ``steps`` one by one; None before the second sample.

    While work waits, all n instances are busy, so x = n + Δq/Δt arrived per step. If none waits,
    this is only an upper bound. In the average, the weight of Δt steps is 1-(1-smoothing)^Δt.
    Negative arrivals, since items are finished in chunks, are offset against other steps.
    """
    samples = backlog.samples
    if len(samples) < 2:
        return None
    first = bisect_left(samples, now - span(memory.steps * step_seconds), key=time_of)
    if first and first > len(samples) - SAMPLES_MIN:
        first = max(len(samples) - SAMPLES_MIN, 0)
    before, rate = samples[first].value / rate_per_instance_step, None
    arrivals, rates = list[float](), list[float]()
    step, times = span(step_seconds), [sample.time for sample in samples[first:]]
    samples, gaps = samples[first + 1 :], [*map(sub, times[1:], times)]
    serving = _serving(capacities, capacity, samples)
    smoothing, in_hand = memory.smoothing, in_hand_steps(rate_per_instance_step)
    idle_share = memory.idle_share
    usual, took, weight = step, 1.0, smoothing
    for sample, gap, instances in zip(samples, gaps, serving, strict=True):
        if gap != usual:  # rarely: most samples are as far apart as those before
            usual, took = gap, gap / step
            weight = smoothing if gap == step else 1.0 - (1.0 - smoothing) ** took
        after = sample.value / rate_per_instance_step
        arrived = instances + (after - before) / took
        if after <= in_hand * instances:
            arrived = min(arrived, (arrived if rate is None else max(rate, 0.0)) * idle_share)
        rate = arrived if rate is None else rate + (arrived - rate) * weight
        rates.append(rate)
        arrivals.append(arrived)
        before = after
    newest = samples[-1].time
    ago = (now - newest).total_seconds() / step_seconds if now > newest else 0.0  # clocks differ
    recent = _recent(arrivals, gaps, step, ago, steps)
    peak = max(rates[-max(round(step / gaps[-1]), 1) :])
    return Arrivals(max(rates[-1], 0.0), _without_negatives(recent), max(peak, 0.0))


def in_hand_steps(rate_per_instance_step: float) -> float:
    """The work that one instance may be processing while no work waits. Brokers count it, too."""
    return max(IN_HAND_STEPS_MIN, min(1 / rate_per_instance_step, IN_HAND_STEPS_MAX))


def _without_negatives(recent: list[float]) -> tuple[float, ...]:
    """The same arrivals, with each negative value offset against the steps before it, and then
    against those after it. The sum stays the same, but is at least 0."""
    if min(recent) >= 0.0:
        return tuple(recent)
    owed = 0.0
    for step, arrived in enumerate(recent):
        recent[step] = max(arrived + owed, 0.0)
        owed = min(arrived + owed, 0.0)
    for step, arrived in reversed(list(enumerate(recent))):
        recent[step] = max(arrived + owed, 0.0)
        owed = min(arrived + owed, 0.0)
    return tuple(recent)


def _serving(
    capacities: Sequence[MetricValue], capacity: int, samples: Sequence[MetricValue]
) -> list[float]:
    """The number of instances at the time of each sample."""
    if not capacities:
        return [float(capacity)] * len(samples)
    serving: list[float] = []
    here, start = capacities[0].value, samples[0].time
    for change in capacities:
        if change.value != here:
            until = bisect_left(samples, change.time, key=time_of) if change.time > start else 0
            serving += [here] * (until - len(serving))
            here = change.value
    return serving + [here] * (len(samples) - len(serving))


def _recent(
    arrivals: list[float], gaps: Sequence[timedelta], step: timedelta, ago: float, steps: int
) -> list[float]:
    """The arrivals of each of the last steps, newest first. ``ago`` is the newest sample's age."""
    each = round(step / gaps[-1])
    count = steps * each
    if ago == 0.0 and each and gaps[-count:] == [step / each] * count:  # so many samples a step
        newest = arrivals[: -count - 1 : -1]
        return [sum(newest[at : at + each]) / each for at in range(0, count, each)]
    recent = [0.0] * steps
    for rate, gap in zip(reversed(arrivals), reversed(gaps), strict=True):
        if ago >= steps:
            break
        end, ago = ago, ago + gap / step
        _spread(recent, rate, end, ago)
    return recent


def _spread(recent: list[float], arrived: float, end: float, start: float) -> None:
    """Add ``arrived`` per step to the steps from ``start`` to ``end`` steps ago."""
    slot = int(end)
    while slot < start and slot < len(recent):
        recent[slot] += arrived * (min(start, slot + 1.0) - max(end, slot))
        slot += 1


ORDER_AHEAD_STEPS = 2
"""A policy scales out if work would be late within the start-up time plus this many steps."""
STARTING_AHEAD_STEPS = 1
"""The same while instances are starting, when the estimate of the arrivals often still rises."""
PLAN_AHEAD_STEPS = 4
"""The costs of a scale-out are compared over the start-up time plus this many steps."""
RETURN_TRIP = 2.0
"""An instance that is added must be removed again, so it costs two changes."""


@dataclass(frozen=True, slots=True)
class Projection:
    """Late work and idle instances in instance-steps, and the worst age in steps."""

    late: float
    idle: float
    worst_age: float


@dataclass(frozen=True, slots=True)
class Outlook:
    """The present state of a queue, and the instances that run and that are ordered.

    ``working`` are the instances that can work in each of the next steps without the pending
    action, whose target is ``ordered``; the last number stays. ``dead`` is the start-up time of a
    new action, and ``arrival`` the number of steps until the pending one takes effect, both at
    least 1. ``share`` is the share of the age limit that is used.
    """

    backlog: float
    arrivals: Arrivals
    working: Sequence[int]
    ordered: int
    dead: int
    arrival: int
    share: float
    overdue: bool = False
    """True if the pending action should have taken effect already. It is unknown when it will."""

    def standing(self, steps: int) -> list[int]:
        """The instances in each of the next steps if no further action is requested."""
        if self.ordered == self.working[-1]:
            return self._without_action(steps)
        waiting = min(self.arrival - 1, steps)
        return self._without_action(waiting) + [self.ordered] * (steps - waiting)

    def _without_action(self, steps: int) -> list[int]:
        return [*self.working, *[self.working[-1]] * steps][:steps]

    def project(self, planned: Sequence[int]) -> Projection:
        """Project the queue for the planned instances of each step, at the present arrivals. The
        late work of a step is max(0, backlog - share·(arrivals of the last L steps)), with the age
        limit L."""
        rate, recent, backlog = self.arrivals.rate, self.arrivals.recent, self.backlog
        share, leaving, window = self.share, len(recent), sum(recent)
        late = idle = worst = 0.0
        for serving in planned:
            backlog += rate - serving
            leaving -= 1
            window += rate - (recent[leaving] if leaving >= 0 else rate)
            if backlog <= 0.0:
                idle -= backlog
                backlog = 0.0
            elif backlog > share * window:
                late += backlog - share * window
                age = len(recent) * backlog / window if window > 0.0 else len(recent) + 1.0
                worst = age if age > worst else worst
        return Projection(late, idle, worst)

    def late_ahead(self) -> Projection:
        """The projection of the steps ``ahead``."""
        return self.project(self.standing(self.ahead))

    @property
    def ahead(self) -> int:
        """The number of steps until shortly after a new action would take effect."""
        return self.dead + (ORDER_AHEAD_STEPS if self.settled else STARTING_AHEAD_STEPS)

    @property
    def settled(self) -> bool:
        """True if all instances that have been read can work."""
        return self.working[0] == self.working[-1]

    def cheapest(self, maximum: int, switch_cost: float, late_penalty: float) -> int:
        """The capacity at which a further instance costs more than the late work that it avoids."""
        wanted, best = self.ordered, inf
        kept = self.standing(self.dead - 1)
        for target in range(self.ordered, maximum + 1):
            ahead = self.project(kept + [target] * (PLAN_AHEAD_STEPS + 1))
            change = RETURN_TRIP * switch_cost * (target - self.ordered)
            cost = change + ahead.idle + late_penalty * ahead.late
            if cost >= best:
                break
            best, wanted = cost, target
        return wanted

    def worth_replacing(self, wanted: int) -> bool:
        """True if a new action now means less late work than one after the pending action."""
        if self.arrival <= 1:
            return False
        steps = self.dead + PLAN_AHEAD_STEPS + self.arrival
        replaced = self._without_action(self.dead - 1) + [wanted] * (steps - self.dead + 1)
        waited = self.standing(self.dead + self.arrival - 1)
        waited += [wanted] * (steps - len(waited))
        return self.project(replaced).late < self.project(waited).late
