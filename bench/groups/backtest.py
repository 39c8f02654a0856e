"""backtest: how long 28 days take, and how close the default rules come to the best schedule."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta

import numpy as np

from backtest.arena import ARENAS, Arena, usual_rate
from backtest.clairvoyant import clairvoyant
from backtest.lower_bound import lower_bound
from backtest.progress import Progress
from backtest.replay import replay
from backtest.rules_file import load_rules
from backtest.study import RULES, study
from backtest.workload import Workload, load_workload
from bench.measurement import ROOT, Measurement
from shared.autoscaling import Observation, Recommendation

TRACE = ROOT / "local" / "data" / "nasa_http_1995-07-11_13.csv"
DAYS = 28
MINUTE = timedelta(minutes=1)


def measure() -> Iterator[Measurement]:
    """Times for the bundled days repeated to 28 days, and regrets for the bundled days."""
    rules, slice_ = load_rules(ROOT / "scaling_rules.py", None), load_workload(TRACE)
    long = _repeated(slice_, DAYS * 1440)
    arena = Arena(usual_rate(slice_.arrivals), **ARENAS["production"])
    clairvoyant(arena, slice_.arrivals)  # The first call compiles.

    def hold(seen: Observation) -> Recommendation:
        return Recommendation(seen.capacity, "hold")

    held = replace(rules.resource, policy=hold)
    replayed = _seconds(lambda: replay(arena, long, rules.resource))
    overhead = _seconds(lambda: replay(arena, long, held))
    note = f"{arena.told}; baseline: the same replay of a rule that always holds"
    yield Measurement("backtest.replay_28_days", replayed, "s", overhead, "≤ 12 s", note)
    best = _seconds(lambda: clairvoyant(arena, long.arrivals))
    yield Measurement("backtest.clairvoyant_28_days", best, "s", 15, "≤ 15 s", "baseline: the aim")
    bound = _seconds(lambda: lower_bound(arena, long.arrivals))
    note = "baseline: the dynamic program of the same run"
    yield Measurement("backtest.lower_bound_28_days", bound, "s", best, note=note)
    for switch_cost in (2.0, 10.0):
        yield _regret(replace(arena, switch_cost=switch_cost), slice_)


def _regret(arena: Arena, workload: Workload) -> Measurement:
    rules = load_rules(ROOT / "scaling_rules.py", None)
    result = study(arena, workload, rules, Progress())
    regrets = {n: score.J / result.best_cost - 1 for n, score in result.scores().items()}
    rivals = {name: regret for name, regret in regrets.items() if name != RULES}
    rival = min(rivals, key=lambda name: rivals[name])
    name = f"backtest.regret_at_switch_cost_{arena.switch_cost:g}"
    aim = "≤ 0.10" if arena.switch_cost <= 2 else "≤ 0.15"
    note = f"bundled days; baseline: the best rival, {rival}"
    return Measurement(name, regrets[RULES], "J / J_dp - 1", rivals[rival], aim, note)


def _repeated(workload: Workload, minutes: int) -> Workload:
    arrivals = np.resize(workload.arrivals, minutes)
    starts = [workload.starts[0] + MINUTE * minute for minute in range(minutes)]
    return Workload(workload.name, arrivals, starts)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
