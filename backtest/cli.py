"""``python -m backtest``: parse the command line; print a report or JSON, and draw a plot."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from rich.console import Console

from backtest import PROGRAM, audit, import_autoscale, tune, what_if
from backtest import options as command_line
from backtest.cpu import is_cpu, load_cpu
from backtest.errors import BacktestError
from backtest.history import load_history
from backtest.progress import Progress
from backtest.report import show
from backtest.rules_file import Rules, load_rules
from backtest.study import Study, study
from backtest.workload import Workload

FAILED, UNUSABLE = 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0, 1 if faults broke a safety rule, or 2 if the input cannot be used."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    command = COMMANDS.get(arguments[0]) if arguments else None
    try:
        return command(arguments[1:]) if command else _backtest(arguments)
    except BacktestError as error:
        Console(stderr=True, soft_wrap=True).print(
            f"{PROGRAM}: {error}", markup=False, highlight=False
        )
        return UNUSABLE


COMMANDS = {
    "audit": audit.audit_command,
    "import-autoscale": import_autoscale.import_command,
    "tune": tune.tune_command,
    "what-if": what_if.what_if_command,
}


def _backtest(arguments: Sequence[str]) -> int:
    options = command_line.parse(arguments)
    command_line.read_settings(options, records=bool(options.from_history))
    result = _study(options)
    _print(result, options)
    return FAILED if result.faults.get("violations") else 0


def _study(options: argparse.Namespace) -> Study:
    rules = load_rules(options.rules, options.resource or options.from_history)
    workload = _workload(options, rules)
    arena = command_line.arena_of(options, workload)
    return study(arena, workload, rules, Progress(), options.faults)


def _workload(options: argparse.Namespace, rules: Rules) -> Workload:
    if options.from_history is not None:
        return load_history(rules.resource, options.instance_rate).workload
    sources = rules.resource.metrics.values()
    cpu = any(is_cpu(source, rules.resource) for source in sources)
    found = load_cpu(options.trace, options.time_zone) if cpu else None
    return found or command_line.workload_of(options, options.trace)


def _print(result: Study, options: argparse.Namespace) -> None:
    if options.plot and result.unjudged:
        raise BacktestError(f"--plot: {result.no_verdict}")
    if options.plot:
        from backtest.plot import draw  # noqa: PLC0415  slow to import and rarely needed

        draw(result, options.plot)
    if options.json:
        sys.stdout.write(json.dumps(result.as_dict(), ensure_ascii=False) + "\n")
    else:
        show(result, Console(), options.price)
