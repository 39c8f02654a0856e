"""regret: the default rules and every rival on made-up traffic of many shapes.

python -m bench regret
python -m bench.groups.regret --seed 2      a line for each shape as well, other traffic
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean

from backtest.arena import Arena, usual_rate
from backtest.clairvoyant import clairvoyant
from backtest.outcome import Score, course
from backtest.replay import replay
from backtest.rivals import RIVALS
from backtest.rules_file import load_rules
from backtest.study import RULES
from backtest.workload import workload_of
from bench.measurement import Measurement
from bench.traffic import SHAPES, traffic

RULES_FILE = Path(__file__).parents[2] / "scaling_rules.py"
SEED = 1
START = datetime(2026, 3, 2, tzinfo=UTC)
BEST = "clairvoyant"
AIMS = {2.0: "≤ 0.10", 10.0: "≤ 0.15"}
Scores = Mapping[str, Score]


def measure(seed: int = SEED) -> Iterator[Measurement]:
    """For each switch cost: mean regret beside the best rival's, and actions per best action."""
    for switch_cost, aim in AIMS.items():
        found = {shape: scores(shape, seed, switch_cost) for shape in SHAPES}
        yield from _means(found, switch_cost, aim)


def scores(shape: str, seed: int, switch_cost: float) -> Scores:
    """What everybody costs on one trace; the rate is the backtest's usual one."""
    workload = workload_of(shape, START, traffic(shape, seed))
    arena = Arena(instance_rate=usual_rate(workload.arrivals), switch_cost=switch_cost)
    rules = load_rules(RULES_FILE)
    schedules = {name: rival(arena, workload) for name, rival in RIVALS.items()}
    schedules[RULES] = replay(arena, workload, rules.resource, rules.timing).capacity
    schedules[BEST] = clairvoyant(arena, workload.arrivals)
    played = {n: course(arena, workload.arrivals, planned) for n, planned in schedules.items()}
    return {name: one.score(arena) for name, one in played.items()}


def regret(found: Scores, name: str) -> float:
    return found[name].J / found[BEST].J - 1


def actions(found: Scores, name: str) -> float:
    return found[name].actions / max(found[BEST].actions, 1)


def _means(found: Mapping[str, Scores], switch_cost: float, aim: str) -> Iterator[Measurement]:
    regrets = {n: mean(regret(one, n) for one in found.values()) for n in (RULES, *RIVALS)}
    rival = min(RIVALS, key=lambda name: regrets[name])
    yield Measurement(
        f"regret.mean_at_switch_cost_{switch_cost:g}",
        regrets[RULES],
        "J / J_dp - 1",
        regrets[rival],
        aim,
        f"{len(found)} made-up traces; baseline: the best rival, {rival}",
    )
    yield Measurement(
        f"regret.actions_at_switch_cost_{switch_cost:g}",
        mean(actions(one, RULES) for one in found.values()),
        "actions / clairvoyant's",
        mean(actions(one, rival) for one in found.values()),
        "≤ 2",
        f"baseline: {rival}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.groups.regret", description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED)
    seed = parser.parse_args().seed
    for switch_cost, aim in AIMS.items():
        found = {}
        for shape in SHAPES:
            found[shape] = one = scores(shape, seed, switch_cost)
            told = (f"{n} {regret(one, n):.1%}/{actions(one, n):.2f}" for n in (RULES, *RIVALS))
            sys.stdout.write(f"{switch_cost:g} {shape}: {', '.join(told)}\n")
            sys.stdout.flush()
        for measured in _means(found, switch_cost, aim):
            sys.stdout.write(measured.line + "\n")


if __name__ == "__main__":
    main()
