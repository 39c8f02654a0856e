"""The simulated workload: the fluid queue, the replay of a trace, and the default rate."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backtest.fluid_queue import FluidQueue, Pace, QueueState
from backtest.traces.reading import Trace
from local.demo.workload import Workload, default_instance_rate

START = datetime(2024, 5, 1, tzinfo=UTC)
NAN, INF = math.nan, math.inf


def trace_of(*arrivals: float) -> Trace:
    return Trace(START, tuple(arrivals))


class TestTheQueue:
    queue = FluidQueue(instance_rate_per_minute=10.0, start_up_minutes=3.0)

    @pytest.mark.parametrize(
        ("before", "after", "standing", "start_up"),
        [(1.0, 4.0, 1, 3.0), (2.0, 5.0, 2, 3.0), (3.0, 20.0, 4, 2.5), (0.0, 3.0, 1, 7.0)],
    )
    def test_the_highest_age_after_a_load_step_follows_the_start_up_time_formula(
        self, before: float, after: float, standing: int, start_up: float
    ) -> None:
        """Load steps from λ0 to λ1 (in instances), s instances: highest age = D (1 - s / λ1)."""
        queue = FluidQueue(10.0, start_up)
        state = queue.step(queue.start(standing), arrivals=before * 10 * 5, minutes=5.0)
        state = queue.order(state, math.ceil(after) + 2)
        state = queue.step(state, arrivals=after * 10 * 30, minutes=30.0)
        assert state.counters.age_max_minutes == pytest.approx(start_up * (1 - standing / after))

    def test_scale_out_takes_the_start_up_time(self) -> None:
        state = self.queue.order(self.queue.start(1), 4)
        assert (state.capacity.effective, state.capacity.ordered) == (1, 4)
        state = self.queue.step(state, 0, minutes=2.9)
        assert state.capacity.effective == 1
        assert self.queue.step(state, 0, minutes=0.2).capacity.effective == 4

    def test_orders_take_effect_one_after_the_other_and_scale_in_at_once(self) -> None:
        state = self.queue.order(self.queue.start(5), 8)
        state = self.queue.order(self.queue.step(state, 0, minutes=1.0), 6)
        assert state.capacity.ordered == 6
        state = self.queue.order(self.queue.step(state, 0, minutes=2.0), 9)
        assert state.capacity.effective == 6
        state = self.queue.order(state, 2)
        assert state.capacity.effective == 2
        counters = self.queue.step(state, 0, minutes=10.0).counters
        assert (counters.ordered_min, counters.ordered_max) == (2, 9)

    def test_a_plan_that_fills_in_pieces_starts_a_few_instances_at_a_time(self) -> None:
        queue = FluidQueue(10.0, 3.0, Pace(2, 0.5))
        state = queue.order(queue.start(1), 4)
        state = queue.order(queue.step(state, 0, minutes=0.1), 6)
        effective = []
        for _ in range(6):
            state = queue.step(state, 0, minutes=0.7)
            effective.append(state.capacity.effective)
        assert (effective, state.capacity.ordered) == ([1, 1, 1, 1, 4, 6], 6)


MOVES = st.lists(
    st.tuples(
        st.just(0.0) | st.floats(1e-3, 1000),  # no value so small that halving makes it zero
        st.floats(0.01, 10),
        st.none() | st.integers(0, 20),
    ),
    max_size=30,
)


def run(queue: FluidQueue, moves: list[tuple[float, float, int | None]]) -> list[QueueState]:
    states = [queue.start(1)]
    for arrivals, minutes, order in moves:
        state = states[-1] if order is None else queue.order(states[-1], order)
        states.append(queue.step(state, arrivals, minutes))
    return states


class TestTheQueueWhateverHappens:
    @given(
        moves=MOVES,
        rate=st.floats(0, 100),
        start_up=st.floats(0, 10),
        pace=st.none() | st.builds(Pace, st.integers(1, 5), st.floats(0, 2)),
    )
    def test_backlog_age_and_capacity_stay_within_their_bounds(
        self,
        moves: list[tuple[float, float, int | None]],
        rate: float,
        start_up: float,
        pace: Pace | None,
    ) -> None:
        for state in run(FluidQueue(rate, start_up, pace), moves):
            due = [each.due_minute for each in state.capacity.pending]
            assert due == sorted(due)
            assert 0 <= state.backlog <= state.counters.backlog_max
            assert -1e-9 <= state.age_minutes <= state.counters.age_max_minutes + 1e-9
            assert state.capacity.effective <= state.capacity.ordered
            starts = [cohort.start_minute for cohort in state.cohorts]
            assert starts == sorted(starts)

    @given(moves=MOVES, parts=st.integers(2, 7))
    def test_many_small_steps_equal_one_large_step(
        self, moves: list[tuple[float, float, int | None]], parts: int
    ) -> None:
        queue = FluidQueue(10.0, 3.0)
        small = [
            (arrivals / parts, minutes / parts, order if part == 0 else None)
            for arrivals, minutes, order in moves
            for part in range(parts)
        ]
        one, many = run(queue, moves)[-1], run(queue, small)[-1]
        assert many.backlog == pytest.approx(one.backlog, abs=1e-6)
        assert many.counters.backlog_max == pytest.approx(one.counters.backlog_max, abs=1e-6)
        assert many.counters.age_max_minutes == pytest.approx(
            one.counters.age_max_minutes, abs=1e-5
        )


class TestTheWorkload:
    def test_an_order_takes_effect_after_the_start_up_time(self) -> None:
        workload = Workload(trace_of(*[20] * 10), instance_rate_per_minute=10, start_up_minutes=2.0)
        workload.advance_to(1.5)
        workload.order_capacity(3)
        workload.advance_to(3.5)
        assert workload.backlog == pytest.approx(35)
        workload.advance_to(10)
        assert workload.backlog == 0
        assert workload.counters.age_max_minutes == pytest.approx(1.75)

    @pytest.mark.parametrize(
        ("arrivals", "rate"),
        [
            ([10.0] * 990 + [140.0] * 10, 10.0),  # the busiest minutes need 14 instances
            ([28.0] * 5000 + [1e6], 2.0),  # a single extreme minute has no effect
            ((28.0,), 2.0),
            ((), 1.0),
            ((0.0,) * 100, 1.0),
        ],
    )
    def test_the_default_rate_follows_from_the_busiest_minutes(
        self, arrivals: Sequence[float], rate: float
    ) -> None:
        assert default_instance_rate(arrivals) == pytest.approx(rate)
