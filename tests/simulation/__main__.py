"""Runs the seeded simulations on all processors: ``make simulate SEEDS=10000``.

Each seed is a separate world, and the same seed gives the same run. A failing seed is printed with
the command that replays it, and the exit code is then 1. ``--only`` selects simulations.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import multiprocessing
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

NAMES = (
    "ingestion",
    "ingestion_fleet",
    "ingestion_breaker",
    "ingestion_redrive",
    "ingestion_slow_failures",
    "autoscaling",
    "variations",
    "nightly",
    "sending",
)
"""The modules test_<name> in this folder. Each has a function ``check_seed``."""

CHUNK = 10
FAILURES_SHOWN_MAX = 20


class Run(NamedTuple):
    name: str
    seed: int


class Outcome(NamedTuple):
    run: Run
    error: str
    trace: str


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    names = options.only or list(NAMES)
    if options.seed is not None:
        runs = [Run(name, options.seed) for name in names]
    else:
        first = options.first
        runs = [Run(name, seed) for seed in range(first, first + options.seeds) for name in names]
    failures = _failures(runs, min(options.jobs, len(runs)))
    for outcome in failures[:FAILURES_SHOWN_MAX]:
        _print(f"{outcome.run.name}, seed {outcome.run.seed}: {outcome.error}")
        _print(f"  to replay: make simulate SEED={outcome.run.seed} ONLY={outcome.run.name}")
        if options.seed is not None:
            _print(outcome.trace)
    _print(f"{len(runs)} runs ({len(names)} simulations), {len(failures)} failed")
    return 1 if failures else 0


def _failures(runs: Sequence[Run], jobs: int) -> list[Outcome]:
    failures: list[Outcome] = []
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("simulate", total=len(runs))
        for outcome in _outcomes(runs, jobs):
            progress.advance(task)
            if outcome.error:
                failures.append(outcome)
                progress.update(task, description=f"simulate, {len(failures)} failed")
    return failures


def _outcomes(runs: Sequence[Run], jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from map(check, runs)
        return
    with multiprocessing.Pool(jobs) as pool:
        yield from pool.imap_unordered(check, runs, CHUNK)


def check(run: Run) -> Outcome:
    """Run one simulation with one seed."""
    logging.disable()  # the app logs each simulated fault
    try:
        importlib.import_module(f"tests.simulation.test_{run.name}").check_seed(run.seed)
    except Exception as error:  # usually an AssertionError
        first_line = (str(error).splitlines() or [""])[0]
        return Outcome(run, f"{type(error).__name__}: {first_line}", traceback.format_exc())
    return Outcome(run, "", "")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="number of seeds (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="first seed (%(default)s)")
    parser.add_argument(
        "--seed", type=int, help="run only this seed, and print the trace of a failure"
    )
    parser.add_argument("--only", nargs="*", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="number of processes (%(default)s)"
    )
    return parser


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
