"""A fluid queue, served in order of arrival by a number of equal instances. Pure.

Items flow in at a rate, wait, and flow out at `instances x instance rate`. Between two changes of
a rate, everything is linear in time. Backlog and age are therefore exact for any step length.
Units: minutes, items, items per minute, instances.
"""

import math
from dataclasses import dataclass, replace
from typing import Self

# Less than the rounding error of a float that counts minutes: a cohort this late is finished.
EPSILON_MINUTES = 1e-9

# A default for a trace whose rate per instance is unknown. The busiest minutes then need
# this many instances, so a plan of 1 to 20 instances has room in both directions.
BUSY_MINUTE_INSTANCES = 14


@dataclass(frozen=True, slots=True)
class Cohort:
    """Waiting items that arrived at one constant rate between two minutes."""

    start_minute: float
    end_minute: float
    rate_per_minute: float

    @property
    def items(self) -> float:
        return (self.end_minute - self.start_minute) * self.rate_per_minute


@dataclass(frozen=True, slots=True)
class Arriving:
    """Capacity that was ordered and starts to work at `due_minute`."""

    due_minute: float
    capacity: int


@dataclass(frozen=True, slots=True)
class Pace:
    """A plan that fills in pieces: so many instances start each so many minutes."""

    instances: int
    minutes: float


@dataclass(frozen=True, slots=True)
class Capacity:
    """Instances that work (`effective`) and capacity that is still starting (`pending`).

    Both are absolute numbers. `pending` is sorted by time and grows in capacity. Scale-out takes
    the start-up time. Scale-in takes effect at once, on working and on starting instances: an
    instance that is given back stops serving immediately, which is the pessimistic assumption.
    """

    effective: int
    pending: tuple[Arriving, ...] = ()

    @property
    def ordered(self) -> int:
        return self.pending[-1].capacity if self.pending else self.effective

    def order(
        self, capacity: int, minute: float, start_up_minutes: float, pace: Pace | None = None
    ) -> Self:
        """Order a capacity. The last order wins, and repeating an order changes nothing."""
        effective = min(self.effective, capacity)
        reached = effective
        pending: list[Arriving] = []
        for arriving in self.pending:
            kept = min(arriving.capacity, capacity)
            if kept > reached:
                pending.append(replace(arriving, capacity=kept))
                reached = kept
        due = minute + start_up_minutes
        if pace is not None and pending:
            due = max(due, pending[-1].due_minute + pace.minutes)
        while pace is not None and capacity > reached + pace.instances:
            reached += pace.instances
            pending.append(Arriving(due, reached))
            due += pace.minutes
        if capacity > reached:
            pending.append(Arriving(due, capacity))
        return replace(self, effective=effective, pending=tuple(pending)).at(minute)

    def at(self, minute: float) -> Self:
        """The capacity at `minute`, with every pending instance that is due by then at work."""
        due = [arriving for arriving in self.pending if arriving.due_minute <= minute]
        if not due:
            return self
        return replace(self, effective=due[-1].capacity, pending=self.pending[len(due) :])


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since the start. Always `arrivals == drained + backlog`, up to rounding."""

    ordered_min: int
    ordered_max: int
    arrivals: float = 0.0
    drained: float = 0.0
    backlog_max: float = 0.0
    age_max_minutes: float = 0.0

    def seeing(self, capacity: Capacity) -> Self:
        return replace(
            self,
            ordered_min=min(self.ordered_min, capacity.ordered),
            ordered_max=max(self.ordered_max, capacity.ordered),
        )


@dataclass(frozen=True, slots=True)
class QueueState:
    """The queue at `minute`. `cohorts` holds the waiting items, oldest first."""

    minute: float
    cohorts: tuple[Cohort, ...]
    capacity: Capacity
    counters: Counters

    @property
    def backlog(self) -> float:
        return math.fsum(cohort.items for cohort in self.cohorts)

    @property
    def age_minutes(self) -> float:
        """How long the oldest item has waited; 0 for an empty queue."""
        return self.minute - self.cohorts[0].start_minute if self.cohorts else 0.0


@dataclass(frozen=True, slots=True)
class FluidQueue:
    """The parameters of one queue: the rate per instance, and the start-up time of a scale-out."""

    instance_rate_per_minute: float
    start_up_minutes: float = 3.0
    pace: Pace | None = None

    def __post_init__(self) -> None:
        for name in ("instance_rate_per_minute", "start_up_minutes"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value}; it must be a finite number of 0 or more")

    def start(self, capacity: int, minute: float = 0.0) -> QueueState:
        _check_capacity(capacity)
        counters = Counters(capacity, capacity)
        return QueueState(minute, (), Capacity(capacity), counters)

    def order(self, state: QueueState, capacity: int) -> QueueState:
        """Order an absolute number of instances now."""
        _check_capacity(capacity)
        after = state.capacity.order(capacity, state.minute, self.start_up_minutes, self.pace)
        return replace(state, capacity=after, counters=state.counters.seeing(after))

    def step(self, state: QueueState, arrivals: float, minutes: float = 1.0) -> QueueState:
        """Advance by `minutes`, during which `arrivals` items arrive evenly."""
        if not (math.isfinite(minutes) and minutes > 0):
            raise ValueError(f"minutes is {minutes}; it must be a finite number above 0")
        return self.flow(state, arrivals / minutes, state.minute + minutes)

    def flow(self, state: QueueState, rate_per_minute: float, until_minute: float) -> QueueState:
        """Advance to `until_minute` with a constant arrival rate."""
        if not (math.isfinite(rate_per_minute) and rate_per_minute >= 0):
            raise ValueError(
                f"the arrival rate is {rate_per_minute}; it must be a finite number of 0 or more"
            )
        for arriving in state.capacity.pending:
            if arriving.due_minute < until_minute:
                state = self._flow_linear(state, rate_per_minute, arriving.due_minute)
        return self._flow_linear(state, rate_per_minute, until_minute)

    def _flow_linear(self, state: QueueState, rate: float, until: float) -> QueueState:
        """Advance while capacity is constant. Capacity that is due at `until` starts working."""
        minutes = until - state.minute
        if minutes <= 0:
            return state
        service_rate = state.capacity.effective * self.instance_rate_per_minute
        waiting = _joined(state.cohorts, Cohort(state.minute, until, rate))
        left, worst_age_minutes = _served(waiting, service_rate, state.minute, until)
        capacity = state.capacity.at(until)
        after = QueueState(until, left, capacity, state.counters.seeing(capacity))
        return replace(after, counters=_counted(after, state, rate * minutes, worst_age_minutes))


def _check_capacity(capacity: int) -> None:
    if capacity < 0:
        raise ValueError(f"capacity is {capacity}; it must be 0 or more")


def _joined(cohorts: tuple[Cohort, ...], newest: Cohort) -> tuple[Cohort, ...]:
    """Append a cohort. Adjacent cohorts of one rate are merged, which bounds the memory."""
    if newest.rate_per_minute == 0:
        return cohorts
    if not cohorts:
        return (newest,)
    last = cohorts[-1]
    if last.end_minute == newest.start_minute and last.rate_per_minute == newest.rate_per_minute:
        return (*cohorts[:-1], replace(last, end_minute=newest.end_minute))
    return (*cohorts, newest)


def _served(
    cohorts: tuple[Cohort, ...], service_rate: float, start: float, until: float
) -> tuple[tuple[Cohort, ...], float]:
    """Serve the oldest items first. Return the remaining cohorts and the highest age.

    The age of the oldest item is linear while one cohort is served, so its maximum is reached
    where a cohort ends, or at `until`.
    """
    clock = start
    worst_age_minutes = 0.0
    for index, cohort in enumerate(cohorts):
        finished = clock + cohort.items / service_rate if service_rate else math.inf
        if finished > until + EPSILON_MINUTES:
            rest = _cut(cohort, (until - clock) * service_rate)
            age_minutes = until - rest.start_minute
            return (rest, *cohorts[index + 1 :]), max(worst_age_minutes, age_minutes)
        worst_age_minutes = max(worst_age_minutes, finished - cohort.end_minute)
        clock = finished
    return (), worst_age_minutes


def _cut(cohort: Cohort, items: float) -> Cohort:
    start = cohort.start_minute + items / cohort.rate_per_minute
    return replace(cohort, start_minute=min(start, cohort.end_minute))


def _counted(
    after: QueueState, before: QueueState, arrivals: float, age_minutes: float
) -> Counters:
    counters = after.counters
    backlog = after.backlog
    return replace(
        counters,
        arrivals=counters.arrivals + arrivals,
        # Never below zero: each backlog is a sum with its own rounding error.
        drained=counters.drained + max(0.0, before.backlog + arrivals - backlog),
        backlog_max=max(counters.backlog_max, backlog),
        age_max_minutes=max(counters.age_max_minutes, age_minutes),
    )
