"""The simulated workload: replays a trace into a queue that capacity drains.

`Workload` holds the state of a `FluidQueue`; the caller supplies the time.
"""

import math
from collections.abc import Sequence
from statistics import quantiles

from backtest.fluid_queue import BUSY_MINUTE_INSTANCES, Counters, FluidQueue, Pace, QueueState
from backtest.traces.reading import Trace

FALLBACK_RATE_PER_MINUTE = 1.0


def default_instance_rate(arrivals: Sequence[float]) -> float:
    """Items per minute and instance at which the 99.9th-percentile minute needs 14 instances.

    `arrivals` are items per minute. The percentile interpolates between the two nearest
    minutes (inclusive method). The result is 1.0 if the percentile is zero.
    """
    rate = _percentile_999(arrivals) / BUSY_MINUTE_INSTANCES
    return rate or FALLBACK_RATE_PER_MINUTE


def _percentile_999(values: Sequence[float]) -> float:
    if len(values) < 2:
        return sum(values)
    return quantiles(values, n=1000, method="inclusive")[-1]


class Workload:
    """A trace that arrives at a queue, whose capacity the caller orders.

    Minute 0 is the start of the trace. Nothing arrives after its end. Memory is bounded by the
    number of trace minutes whose items still wait.
    """

    def __init__(
        self,
        trace: Trace,
        *,
        instance_rate_per_minute: float | None = None,
        start_up_minutes: float = 3.0,
        pace: Pace | None = None,
        starting_capacity: int = 1,
    ) -> None:
        """`instance_rate_per_minute` defaults to `default_instance_rate` of the trace."""
        if instance_rate_per_minute is None:
            instance_rate_per_minute = default_instance_rate(trace.arrivals)
        self.trace = trace
        self.queue = FluidQueue(instance_rate_per_minute, start_up_minutes, pace)
        self._state = self.queue.start(starting_capacity)

    @property
    def state(self) -> QueueState:
        """The queue at the last `advance_to`, as a frozen value."""
        return self._state

    @property
    def counters(self) -> Counters:
        return self._state.counters

    @property
    def minute(self) -> float:
        return self._state.minute

    @property
    def backlog(self) -> float:
        return self._state.backlog

    @property
    def age_minutes(self) -> float:
        return self._state.age_minutes

    @property
    def arrivals_per_minute(self) -> float:
        """The current arrival rate."""
        return self._rate_at(self._state.minute)

    def advance_to(self, trace_minute: float) -> None:
        """Advance to `trace_minute`. Repeating a minute is allowed, going back is not."""
        if not self._state.minute <= trace_minute < math.inf:
            raise ValueError(
                f"cannot go from minute {self._state.minute} to {trace_minute}: "
                "time must not go back and must be finite"
            )
        while self._state.minute < trace_minute:
            rate = self._rate_at(self._state.minute)
            until = min(trace_minute, self._rate_changes_at(self._state.minute))
            self._state = self.queue.flow(self._state, rate, until)

    def order_capacity(self, capacity: int) -> None:
        """Order an absolute number of instances at the time of the last `advance_to`."""
        self._state = self.queue.order(self._state, capacity)

    def _rate_at(self, minute: float) -> float:
        return self.trace.arrivals[int(minute)] if minute < self.trace.minutes else 0.0

    def _rate_changes_at(self, minute: float) -> float:
        return math.floor(minute) + 1.0 if minute < self.trace.minutes else math.inf
