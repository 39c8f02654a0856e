"""Fits the numbers of a policy to traces, and judges them on later traffic that was not used.

A policy is tunable if it is a dataclass with a mapping ``tunable``: field → (lowest, highest).
Values that its ``problems()`` reports are skipped. The search uses the first 60 % of each trace;
the rest is only used for the final judgment. The search tries some random points, then takes steps
of shrinking size around the best one. Whole numbers stay whole.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console
from rich.table import Table

from backtest import PROGRAM
from backtest.arena import Arena
from backtest.clairvoyant import clairvoyant
from backtest.errors import BadArena, BadRules
from backtest.options import add_arena, arena_of, bounded, workload_of
from backtest.outcome import course
from backtest.progress import Progress
from backtest.replay import replay
from backtest.rules_file import Rules, load_rules, with_policy
from backtest.study import no_verdict, unjudged
from backtest.traces.reading import trace_file
from backtest.workload import Workload
from shared.autoscaling import Resource
from shared.autoscaling.policy import described
from shared.values.bounds import is_number
from shared.values.text import whole

FITTED_SHARE = 0.6
RANDOM_SHARE = 0.4
MINUTES_MIN = 20
TRIES_MAX = 100_000
Values = Mapping[str, float]
Ranges = Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a trace, its arena, and the best known cost for it."""

    workload: Workload
    arena: Arena
    best_cost: float


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of the search. Regrets are means over the traces, relative to the best known."""

    before: Values
    after: Values
    fitted_before: float
    fitted_after: float
    later_before: float
    later_after: float
    tries: int

    def as_dict(self) -> dict[str, Any]:
        return {
            "parameters": {
                k: {"before": v, "after": self.after[k]} for k, v in self.before.items()
            },
            "regret_fitted": {"before": self.fitted_before, "after": self.fitted_after},
            "regret_later": {"before": self.later_before, "after": self.later_after},
            "tries": self.tries,
        }


def tune_command(arguments: Sequence[str]) -> int:
    """``python -m backtest tune``."""
    options = _parse(arguments)
    rules = load_rules(options.rules, options.resource)
    ranges = ranges_of(rules.resource.policy, options.rules)
    workloads = [workload_of(options, path) for path in options.traces]
    result = tune(rules, ranges, _parts(options, rules.resource, workloads), options, Progress())
    if options.json:
        sys.stdout.write(json.dumps(result.as_dict()) + "\n")
    else:
        _show(result, Console())
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"{PROGRAM} tune", description=__doc__)
    parser.add_argument("traces", type=trace_file, nargs="+", metavar="TRACE")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of a table"
    )
    tries = bounded(whole, 0, TRIES_MAX)
    parser.add_argument(
        "--tries", type=tries, default=60, help="points to try (default: %(default)s)"
    )
    add_arena(parser)
    return parser.parse_args(arguments)


def ranges_of(policy: object, path: Path) -> Ranges:
    """The tunable fields. Raises BadRules if there are none, or one is not a number."""
    ranges: Any = described(policy).tunable
    if not is_dataclass(policy) or not ranges or not isinstance(ranges, Mapping):
        raise BadRules(
            f"{path}: the policy {type(policy).__name__} has nothing to tune; it must be a "
            "dataclass with a mapping tunable: field → (lowest, highest)"
        )
    names = {field.name for field in fields(policy)}
    for name, bounds in ranges.items():
        if name not in names or not isinstance(getattr(policy, name), int | float):
            raise BadRules(f"{path}: tunable {name!r} is not a number of {type(policy).__name__}")
        if not _is_range(bounds):
            raise BadRules(
                f"{path}: tunable {name!r} = {bounds!r}: must be a pair (lowest, highest) of "
                "numbers"
            )
    return ranges


def _is_range(bounds: object) -> bool:
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        return False
    low, high = bounds
    return is_number(low) and is_number(high) and low < high


def _parts(
    options: argparse.Namespace, resource: Resource, workloads: Sequence[Workload]
) -> tuple[list[Part], list[Part]]:
    """The part to fit and the later part of each trace, both in the arena of the whole trace."""
    fitted, later = [], []
    for workload in workloads:
        if workload.minutes < MINUTES_MIN:
            raise BadArena(
                f"{workload.name} has {workload.minutes} minutes; tuning needs at least "
                f"{MINUTES_MIN} minutes"
            )
        arena, cut = arena_of(options, workload), int(workload.minutes * FITTED_SHARE)
        if blind := unjudged(resource, arena):
            raise BadRules(no_verdict(blind, arena))
        fitted.append(_part(workload.part(0, cut), arena))
        later.append(_part(workload.part(cut, workload.minutes), arena))
    return fitted, later


def _part(workload: Workload, arena: Arena) -> Part:
    schedule = clairvoyant(arena, workload.arrivals)
    cost = course(arena, workload.arrivals, schedule).score(arena).J
    return Part(workload, arena, cost)


def tune(
    rules: Rules,
    ranges: Ranges,
    parts: tuple[list[Part], list[Part]],
    options: argparse.Namespace,
    progress: Progress,
) -> Tuned:
    fitted, later = parts
    policy: Any = rules.resource.policy
    before = {name: getattr(policy, name) for name in ranges}

    def regret(values: Values, on: Sequence[Part]) -> float:
        return mean_regret(with_policy(rules, replace(policy, **values)), on)

    def fitted_regret(values: Values) -> float:
        progress.advance()
        wrong = described(replace(policy, **values)).problems()
        return math.inf if wrong else regret(values, fitted)

    with progress.task("tuning", options.tries + 1):
        after, fitted_after = search(fitted_regret, before, ranges, options.tries, options.seed)
    return Tuned(
        before=before,
        after=after,
        fitted_before=regret(before, fitted),
        fitted_after=fitted_after,
        later_before=regret(before, later),
        later_after=regret(after, later),
        tries=options.tries,
    )


def mean_regret(rules: Rules, parts: Sequence[Part]) -> float:
    total = 0.0
    for one in parts:
        schedule = replay(one.arena, one.workload, rules.resource, rules.timing).capacity
        cost = course(one.arena, one.workload.arrivals, schedule).score(one.arena).J
        total += cost / one.best_cost - 1
    return total / len(parts)


def search(
    cost: Callable[[Values], float],
    start: Values,
    ranges: Ranges,
    tries: int,
    seed: int,
) -> tuple[Values, float]:
    """The best of ``tries`` points and the start, and its cost. A seed repeats its search."""
    random = Random(seed)  # noqa: S311  reproducible, not secret
    best, least = dict(start), cost(start)
    for number in range(tries):
        spread = 1.0 - number / tries
        anywhere = number < RANDOM_SHARE * tries
        values = {
            name: _near(random, start[name], None if anywhere else best[name], bounds, spread)
            for name, bounds in ranges.items()
        }
        tried = cost(values)
        if tried < least:
            best, least = values, tried
    return best, least


def _near(
    random: Random,
    like: float,
    around: float | None,
    bounds: tuple[float, float],
    spread: float,
) -> float:
    low, high = bounds
    value = random.uniform(low, high)
    if around is not None:
        value = around if random.random() < 0.5 else random.gauss(around, spread * (high - low) / 4)
    value = min(max(value, low), high)
    return round(value) if isinstance(like, int) else value


def _show(tuned: Tuned, console: Console) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("", "before", "after"):
        table.add_column(column, justify="right" if column else "left")
    for name, value in tuned.before.items():
        table.add_row(name, f"{value:.4g}", f"{tuned.after[name]:.4g}")
    table.add_row("regret, first 60 %", f"{tuned.fitted_before:+.1%}", f"{tuned.fitted_after:+.1%}")
    table.add_row("regret, later 40 %", f"{tuned.later_before:+.1%}", f"{tuned.later_after:+.1%}")
    console.print(table)
    better = tuned.later_after < tuned.later_before
    verdict = "better" if better else "not better"
    console.print(
        f"On traffic that was not used to fit it, the policy is {verdict}.", highlight=False
    )
