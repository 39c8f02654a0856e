"""The clairvoyant schedule and the lower bound: no schedule costs less than the bound."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backtest.arena import Arena, Floats, Schedule, usual_rate
from backtest.clairvoyant import clairvoyant
from backtest.lower_bound import lower_bound
from backtest.outcome import course
from backtest.rivals import RIVALS
from backtest.workload import load_workload
from backtest.world import deliveries, speed, varied
from tests.backtest.arenas import NASA, arena, bursty


def cost(spec: Arena, arrivals: Floats, schedule: Schedule) -> float:
    return course(spec, arrivals, schedule).score(spec).J


def brute_force(spec: Arena, arrivals: Floats) -> float:
    """The lowest cost of all schedules, computed independently of the arena."""
    options = range(spec.min_instances, spec.max_instances + 1)
    capacity = np.array(list(product(options, repeat=len(arrivals))))
    costs = capacity.sum(axis=1) + spec.switch_cost * np.abs(np.diff(capacity)).sum(axis=1)
    backlog = np.zeros(len(capacity))
    arrivals, pace = deliveries(spec, arrivals), speed(spec, len(arrivals))
    for t, count in enumerate(arrivals):
        backlog = np.maximum(backlog + count - spec.instance_rate * pace[t] * capacity[:, t], 0)
        fresh = arrivals[max(0, t + 1 - spec.age_limit_minutes) : t + 1].sum()
        costs += spec.late_penalty * np.maximum(backlog - fresh, 0) / spec.instance_rate
    return float(costs.min())


@pytest.mark.parametrize("variation", ["", "halved", "outage"])
@pytest.mark.parametrize("seed", range(150))
def test_the_clairvoyant_schedule_is_optimal_if_its_grid_is_exact(
    seed: int, variation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backtest.world.OUTAGE_MINUTES", 2)
    random = np.random.default_rng(seed)
    spec = Arena(
        instance_rate=10.0,
        age_limit_minutes=int(random.integers(1, 4)),
        switch_cost=float(random.choice([0.0, 0.4, 2.0, 6.0])),
        late_penalty=float(random.choice([0.0, 0.2, 0.6, 1.0, 3.0, 10.0])),
        min_instances=int(random.integers(1, 3)),
        max_instances=4,
        variation=variation,
    )
    load = random.choice([0.0, 5.0, 10.0, 25.0, 60.0, 90.0], size=int(random.integers(1, 8)))
    assert cost(spec, load, clairvoyant(spec, load)) == pytest.approx(brute_force(spec, load))


@given(
    seed=st.integers(0, 10_000),
    minutes=st.integers(1, 120),
    changes=st.fixed_dictionaries(
        {
            "instance_rate": st.floats(0.3, 40),
            "switch_cost": st.floats(0, 12),
            "late_penalty": st.floats(0, 12),
            "age_limit_minutes": st.integers(1, 9),
            "min_instances": st.integers(1, 3),
            "variation": st.sampled_from(["", "halved", "hourly", "poison", "outage"]),
            "sample_seconds": st.sampled_from([15, 60]),
        }
    ),
)
@settings(max_examples=40)
def test_no_schedule_is_cheaper_than_the_bound(
    seed: int, minutes: int, changes: dict[str, Any]
) -> None:
    spec, load = arena(**changes), bursty(seed, minutes)
    bound = lower_bound(spec, load)
    steps = minutes * spec.steps_per_minute
    random = np.random.default_rng(seed).integers(spec.min_instances, 7, steps)
    assert bound <= cost(spec, load, clairvoyant(spec, load))
    assert bound <= cost(spec, load, random)


@pytest.mark.parametrize("window_minutes", [30, 97, 100_000])
def test_the_bound_is_valid_for_any_cuts_and_loses_little(
    window_minutes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, load = arena(), bursty(7, 600)
    whole = lower_bound(spec, load)
    monkeypatch.setattr("backtest.lower_bound.WINDOW_MINUTES", window_minutes)
    monkeypatch.setattr("backtest.lower_bound.CUT_SEARCH_MINUTES", min(window_minutes // 3, 20))
    cut = lower_bound(spec, load)
    assert cut <= whole * (1 + 1e-9)
    assert cut >= whole * 0.9


def test_a_failing_solver_leads_to_a_low_but_valid_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Nothing:
        class ineqlin:  # noqa: N801  scipy's name
            marginals = None

        eqlin = ineqlin

    monkeypatch.setattr("backtest.lower_bound.linprog", lambda *_, **__: Nothing)
    spec, load = arena(), bursty(7, 60)
    assert lower_bound(spec, load) <= cost(spec, load, clairvoyant(spec, load))


@pytest.mark.parametrize("variation", ["halved", "hourly", "poison", "outage"])
def test_the_optimum_is_also_close_to_the_bound_if_the_world_changes(variation: str) -> None:
    trace = load_workload(NASA).part(1800, 2520)
    spec = varied(Arena(usual_rate(trace.arrivals)), variation)
    assert cost(spec, trace.arrivals, clairvoyant(spec, trace.arrivals)) <= 1.02 * lower_bound(
        spec, trace.arrivals
    )


def test_on_real_traffic_the_optimum_is_close_to_the_bound_and_no_rival_is_below_it() -> None:
    trace = load_workload(NASA).part(1800, 3240)
    spec = Arena(usual_rate(trace.arrivals))
    bound = lower_bound(spec, trace.arrivals)
    best = cost(spec, trace.arrivals, clairvoyant(spec, trace.arrivals))
    assert bound <= best <= 1.03 * bound
    for name, rival in RIVALS.items():
        assert cost(spec, trace.arrivals, rival(spec, trace)) >= best * 0.999, name
