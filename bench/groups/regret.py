"""regret: what the default rules cost above the best schedule, beside every rival.

python -m bench regret                          made-up traffic of many shapes, and variations
python -m bench regret --traces FOLDER          every CSV file with the columns time,arrivals
python -m bench.groups.regret --seed 2          a line for each trace as well, other traffic
python -m bench.groups.regret --arena kind      one sample a minute, the number read with the work

The rules are replayed four times: with the throughput told (given in settings), with finished
items counted, with both, and with nothing but the backlog. The replay begins with a fresh
deployment. Rivals decide once a minute. The clairvoyant schedule is one in whole minutes; it knows
the variation.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, median

import numpy as np

from backtest.arena import ARENAS, Arena, sufficient_rate, usual_rate
from backtest.clairvoyant import clairvoyant
from backtest.errors import BacktestError
from backtest.outcome import Score, course
from backtest.replay import replay
from backtest.rivals import RIVALS
from backtest.rules_file import load_rules
from backtest.workload import Workload, load_workload, workload_of
from backtest.world import OUTAGE, VARIATIONS, varied
from bench.measurement import Measurement
from bench.traffic import DAY, SHAPES, constant, traffic

RULES_FILE = Path(__file__).parents[2] / "scaling_rules.py"
SEED = 1
START = datetime(2026, 3, 2, tzinfo=UTC)
BEST = "clairvoyant"
TOLD, COUNTED, BOTH, BACKLOG = MODES = ("told", "counted", "told_and_counted", "backlog")
SWITCH_COSTS = (2.0, 10.0)
VARIED_SHAPES = ("web_site", "on_and_off", "shop", "sensors")
"""The variations are measured on these, at the first switch cost."""
POPULAR = ("keda", "knative", "azure_monitor")
BETTER_BY = 0.01
CONSTANT_LOAD, CONSTANT_RATE, CONSTANT_DAYS = 600.0, 50.0, 1
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


class Scores(dict[str, Score]):
    """The score of everybody's schedule, by name."""

    false_holds = 0
    """The decisions that were held because no instance, or none of those added last, seemed to
    finish anything, with finished items counted."""


@dataclass(frozen=True, slots=True)
class Run:
    """A trace in an arena."""

    workload: Workload
    arena: Arena

    @property
    def days(self) -> float:
        return round(self.workload.minutes / DAY, 1)


def measure(
    seed: int = SEED, traces: Path | None = None, processes: int | None = None
) -> Iterator[Measurement]:
    """For each switch cost: regret, actions and late minutes of the rules and of each rival.

    Made-up traffic is also measured with each variation, and at a constant load.
    """
    runs = made_up(seed) if traces is None else from_files(traces)
    for switch_cost in SWITCH_COSTS:
        yield from measured([with_cost(run, switch_cost) for run in runs], processes)
    if traces is None:
        for name in VARIATIONS:
            few = [run for run in runs if run.workload.name in VARIED_SHAPES]
            yield from measured([with_cost(run, SWITCH_COSTS[0], name) for run in few], processes)
        yield from _constant(seed)


def made_up(seed: int, arena: str = "production") -> Sequence[Run]:
    """One trace of each shape, each at the backtest's usual rate."""
    workloads = [workload_of(shape, START, traffic(shape, seed)) for shape in SHAPES]
    return [Run(each, Arena(usual_rate(each.arrivals), **ARENAS[arena])) for each in workloads]


def from_files(folder: Path, arena: str = "production") -> Sequence[Run]:
    """Every CSV file in the folder, each at a rate at which 20 instances can serve it.

    Raises BacktestError if there is none, or for a bad one.
    """
    paths = sorted(folder.glob("*.csv"))
    if not paths:
        raise BacktestError(f"{folder} holds no CSV file. Give a folder of files time,arrivals")
    workloads = [load_workload(path) for path in paths]
    return [Run(each, Arena(sufficient_rate(each.arrivals), **ARENAS[arena])) for each in workloads]


def with_cost(run: Run, switch_cost: float, variation: str = "") -> Run:
    arena = replace(run.arena, switch_cost=switch_cost)
    return replace(run, arena=varied(arena, variation) if variation else arena)


def scores(run: Run) -> Scores:
    """The cost of everybody's schedule on one trace."""
    rules, arena, workload = load_rules(RULES_FILE), run.arena, run.workload
    schedules = {name: rival(arena, workload) for name, rival in RIVALS.items()}
    replays = {
        mode: replay(each, workload, rules.resource, rules.timing)
        for mode, each in arenas(arena).items()
    }
    schedules |= {mode: each.capacity for mode, each in replays.items()}
    schedules[BEST] = clairvoyant(arena, workload.arrivals)
    played = {n: course(arena, workload.arrivals, planned) for n, planned in schedules.items()}
    found = Scores({name: one.score(arena) for name, one in played.items()})
    found.false_holds = replays[COUNTED].limited_by.get("nothing_finished", 0)
    return found


def all_scores(runs: Sequence[Run], processes: int | None) -> Iterator[Scores]:
    """The scores of each run, in their order. ``None`` uses every core."""
    count = min(processes or os.cpu_count() or 1, len(runs))
    if count == 1:
        yield from map(scores, runs)
        return
    with ProcessPoolExecutor(count) as pool:
        yield from pool.map(scores, runs)


def arenas(arena: Arena) -> Mapping[str, Arena]:
    """The same arena with different knowledge of the throughput, by mode."""
    return {
        TOLD: arena,
        COUNTED: replace(arena, service_learned=True, finished_counted=True),
        BOTH: replace(arena, finished_counted=True),
        BACKLOG: replace(arena, service_learned=True),
    }


def regret(found: Mapping[str, Score], name: str) -> float:
    """The cost above the clairvoyant's, relative to it."""
    return found[name].J / found[BEST].J - 1


def actions(found: Scores, name: str) -> float:
    """Actions per action of the clairvoyant."""
    return found[name].actions / max(found[BEST].actions, 1)


def measured(runs: Sequence[Run], processes: int | None) -> Iterator[Measurement]:
    yield from _measurements(list(all_scores(runs, processes)), runs)


def _measurements(found: Sequence[Scores], runs: Sequence[Run]) -> Iterator[Measurement]:
    arena, days = runs[0].arena, sorted({run.days for run in runs})
    regrets = {name: [regret(one, name) for one in found] for name in (*MODES, *RIVALS)}
    rival = min(RIVALS, key=lambda name: mean(regrets[name]))
    which = f"regret.{arena.variation}." if arena.variation else "regret."
    spans = " to ".join(f"{each:g}" for each in (days if len(days) < 2 else (days[0], days[-1])))
    world = f"{len(found)} traces of {spans} days; {arena.told}"
    for name in (*MODES, *RIVALS):
        note = f"{world}; baseline: the best rival, {rival}"
        prefix = f"{which}{name}.{arena.switch_cost:g}"
        for statistic, value in STATISTICS.items():
            line = f"{prefix}.{statistic}"
            both = (value(regrets[name]), "J / J_dp - 1", value(regrets[rival]))
            yield Measurement(line, *both, AIMS.get(line, ""), note)
        each, others = ([actions(one, n) for one in found] for n in (name, rival))
        unit = "actions / clairvoyant's"
        yield Measurement(f"{prefix}.actions", mean(each), unit, mean(others), "≤ 2", note)
        both = (median(each), unit, median(others))
        yield Measurement(f"{prefix}.actions_median", *both, note=note)
        most, theirs = (max(one[n].actions_an_hour_max for one in found) for n in (name, rival))
        note = f"{note}, but at least 1"
        yield Measurement(f"{prefix}.actions_an_hour_max", most, "1/h", max(theirs, 1), note=note)
        late, theirs = (sum(one[n].violation_minutes for one in found) for n in (name, rival))
        yield Measurement(f"{prefix}.late_minutes", late, "min", max(theirs, 1), note=note)
    if arena.switch_cost == SWITCH_COSTS[0]:
        for name in MODES:
            better = sum(is_rival_better(one, name) for one in found)
            note = f"{world}; {', '.join(POPULAR)} by more than a point; baseline: all traces"
            line = f"{which}{name}.rival_better"
            yield Measurement(line, better, "traces", len(found), note=note)
        if arena.variation != OUTAGE:
            held, note = sum(one.false_holds for one in found), f"{world}; baseline: all of them"
            steps = sum(run.workload.minutes for run in runs) * arena.steps_per_minute
            yield Measurement(f"{which}{COUNTED}.false_holds", held, "decisions", steps, "0", note)


def is_rival_better(found: Mapping[str, Score], name: str) -> bool:
    """True if one of the popular rivals is more than a point of regret better."""
    return any(regret(found, each) < regret(found, name) - BETTER_BY for each in POPULAR)


def _constant(seed: int) -> Iterator[Measurement]:
    """The changes an hour at a constant load, after the first hour."""
    rules, load = load_rules(RULES_FILE), constant(CONSTANT_LOAD, CONSTANT_DAYS * DAY, seed)
    arena, workload = Arena(CONSTANT_RATE, **ARENAS["production"]), workload_of("", START, load)
    for mode, each in arenas(arena).items():
        capacity = replay(each, workload, rules.resource, rules.timing).capacity
        changes = np.flatnonzero(np.diff(capacity)) >= 60 * arena.steps_per_minute
        note = f"{CONSTANT_LOAD:g} items a minute; {arena.told}; baseline: one change an hour"
        an_hour = float(changes.sum()) / (workload.minutes / 60 - 1)
        yield Measurement(f"regret.constant.{mode}.changes", an_hour, "1/h", 1, "≤ 2", note)


def main() -> None:
    """A line for each trace, then the measurements."""
    options = _parse()
    found_in = options.traces
    runs = made_up(options.seed, options.arena)
    if found_in is not None:
        runs = from_files(found_in, options.arena)
    if options.days is not None:
        runs = [replace(run, workload=run.workload.part(0, options.days * DAY)) for run in runs]
    runs = [run for run in runs if not options.only or run.workload.name in options.only]
    for switch_cost in options.switch_cost or SWITCH_COSTS:
        costly = [with_cost(run, switch_cost, options.variation) for run in runs]
        found = []
        for run, one in zip(costly, all_scores(costly, options.processes), strict=True):
            found.append(one)
            told = (_told(one, name) for name in (*MODES, *RIVALS))
            sys.stdout.write(f"{switch_cost:g} {run.workload.name}: {', '.join(told)}\n")
            sys.stdout.flush()
        for figure in _measurements(found, costly):
            sys.stdout.write(figure.line + "\n")


def _told(one: Scores, name: str) -> str:
    an_hour, late = one[name].actions_an_hour_max, one[name].violation_minutes
    return f"{name} {regret(one, name):.1%}/{actions(one, name):.2f}/{an_hour}/{late}"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.groups.regret", description=__doc__)
    add = parser.add_argument
    add("--seed", type=int, default=SEED)
    add("--traces", type=Path, metavar="FOLDER")
    add("--arena", choices=tuple(ARENAS), default="production")
    add("--variation", choices=tuple(VARIATIONS), default="")
    add("--only", nargs="*", metavar="TRACE", help="names of shapes or files")
    add("--days", type=int, help="the first days of each trace alone")
    add("--switch-cost", type=float, nargs="*", metavar="κ")
    add("--processes", type=int, help="default: one for each core")
    return parser.parse_args()


if __name__ == "__main__":
    main()
