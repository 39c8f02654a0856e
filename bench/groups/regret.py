"""regret: what the default rules cost above the best schedule, beside every rival.

python -m bench regret                          made-up traffic of many shapes
python -m bench regret --traces FOLDER          every CSV file with the columns time,arrivals
python -m bench.groups.regret --seed 2          a line for each trace as well, other traffic

The rules are replayed three times: with the throughput told (given in settings), with finished
items counted, and with nothing but the backlog. The replay begins with a fresh deployment.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, median

from backtest.arena import Arena, usual_rate
from backtest.clairvoyant import clairvoyant
from backtest.errors import BacktestError
from backtest.outcome import Score, course
from backtest.replay import replay
from backtest.rivals import RIVALS
from backtest.rules_file import load_rules
from backtest.workload import Workload, load_workload, workload_of
from bench.measurement import Measurement
from bench.traffic import SHAPES, traffic

RULES_FILE = Path(__file__).parents[2] / "scaling_rules.py"
SEED = 1
START = datetime(2026, 3, 2, tzinfo=UTC)
BEST = "clairvoyant"
TOLD, COUNTED, BACKLOG = MODES = ("told", "counted", "backlog")
SWITCH_COSTS = (2.0, 10.0)
AIMS = {
    f"regret.{TOLD}.2.mean": "≤ 0.10",
    f"regret.{TOLD}.10.mean": "≤ 0.15",
    f"regret.{COUNTED}.2.mean": "≤ 0.06",
    f"regret.{COUNTED}.10.mean": "≤ 0.12",
    f"regret.{BACKLOG}.2.mean": "≤ 0.12",
    f"regret.{BACKLOG}.2.median": "≤ 0.07",
    f"regret.{BACKLOG}.2.worst": "≤ 0.50",
}
STATISTICS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": mean,
    "median": median,
    "worst": max,
}
Scores = Mapping[str, Score]


def measure(seed: int = SEED, traces: Path | None = None) -> Iterator[Measurement]:
    """For each switch cost: regret, actions and late minutes of the rules and of each rival."""
    workloads = made_up(seed) if traces is None else from_files(traces)
    for switch_cost in SWITCH_COSTS:
        yield from _measurements([scores(each, switch_cost) for each in workloads], switch_cost)


def made_up(seed: int) -> Sequence[Workload]:
    """One trace of each shape."""
    return [workload_of(shape, START, traffic(shape, seed)) for shape in SHAPES]


def from_files(folder: Path) -> Sequence[Workload]:
    """Every CSV file in the folder. Raises BacktestError if there is none, or for a bad one."""
    paths = sorted(folder.glob("*.csv"))
    if not paths:
        raise BacktestError(f"{folder} holds no CSV file. Give a folder of files time,arrivals")
    return [load_workload(path) for path in paths]


def scores(workload: Workload, switch_cost: float) -> Scores:
    """The cost of everybody's schedule on one trace; the throughput is the backtest's usual one."""
    arena = Arena(instance_rate=usual_rate(workload.arrivals), switch_cost=switch_cost)
    rules = load_rules(RULES_FILE)
    schedules = {name: rival(arena, workload) for name, rival in RIVALS.items()}
    for mode, each in arenas(arena).items():
        schedules[mode] = replay(each, workload, rules.resource, rules.timing).capacity
    schedules[BEST] = clairvoyant(arena, workload.arrivals)
    played = {n: course(arena, workload.arrivals, planned) for n, planned in schedules.items()}
    return {name: one.score(arena) for name, one in played.items()}


def arenas(arena: Arena) -> Mapping[str, Arena]:
    """The same arena with different knowledge of the throughput, by mode."""
    return {
        TOLD: arena,
        COUNTED: replace(arena, service_learned=True, finished_counted=True),
        BACKLOG: replace(arena, service_learned=True),
    }


def regret(found: Scores, name: str) -> float:
    """The cost above the clairvoyant's, relative to it."""
    return found[name].J / found[BEST].J - 1


def actions(found: Scores, name: str) -> float:
    """Actions per action of the clairvoyant."""
    return found[name].actions / max(found[BEST].actions, 1)


def _measurements(found: Sequence[Scores], switch_cost: float) -> Iterator[Measurement]:
    regrets = {name: [regret(one, name) for one in found] for name in (*MODES, *RIVALS)}
    rival = min(RIVALS, key=lambda name: mean(regrets[name]))
    for name in (*MODES, *RIVALS):
        note = f"{len(found)} traces; baseline: the best rival, {rival}"
        prefix = f"regret.{name}.{switch_cost:g}"
        for statistic, value in STATISTICS.items():
            line = f"{prefix}.{statistic}"
            both = (value(regrets[name]), "J / J_dp - 1", value(regrets[rival]))
            yield Measurement(line, *both, AIMS.get(line, ""), note)
        each, others = ([actions(one, n) for one in found] for n in (name, rival))
        unit = "actions / clairvoyant's"
        yield Measurement(f"{prefix}.actions", mean(each), unit, mean(others), "≤ 2", note)
        late, theirs = (sum(one[n].violation_minutes for one in found) for n in (name, rival))
        note = f"{note}, but at least 1"
        yield Measurement(f"{prefix}.late_minutes", late, "min", max(theirs, 1), note=note)


def main() -> None:
    """A line for each trace, then the measurements."""
    parser = argparse.ArgumentParser(prog="python -m bench.groups.regret", description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--traces", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    workloads = made_up(options.seed) if options.traces is None else from_files(options.traces)
    for switch_cost in SWITCH_COSTS:
        found = []
        for workload in workloads:
            one = scores(workload, switch_cost)
            found.append(one)
            told = (f"{n} {regret(one, n):.1%}/{actions(one, n):.2f}" for n in (*MODES, *RIVALS))
            sys.stdout.write(f"{switch_cost:g} {workload.name}: {', '.join(told)}\n")
            sys.stdout.flush()
        for measured in _measurements(found, switch_cost):
            sys.stdout.write(measured.line + "\n")


if __name__ == "__main__":
    main()
