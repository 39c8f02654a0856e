"""The command line: what is asked for, checked as far as it can be without the trace."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from backtest.arena import Arena, usual_rate
from backtest.workload import Workload
from shared.autoscaling.deciding.validation import PLAN_CAPACITY_MAX

PLOT_KINDS = (".png", ".html")

MINUTES_MAX = 1440


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m backtest",
        description="Replay a trace through the scaling rules, beside well-known autoscalers and "
        "the best possible schedule. Exit code 1: a safety rule was broken under --faults; "
        "2: trace, rules or options cannot be used.",
        epilog="python -m backtest tune TRACE... --rules FILE fits the rules' numbers.",
    )
    parser.add_argument("trace", type=Path, nargs="?", help="CSV with the columns time,arrivals")
    parser.add_argument(
        "--from-history", metavar="RESOURCE", help="replay what the app recorded, instead of TRACE"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the report")
    parser.add_argument(
        "--plot", type=_plot, metavar="FILE", help="draw what happened, as .png or .html"
    )
    parser.add_argument(
        "--faults", type=int, metavar="SEED", help="lose, delay, repeat and refuse things, seeded"
    )
    add_arena(parser)
    options = parser.parse_args(arguments)
    if (options.trace is None) == (options.from_history is None):
        parser.error("give a trace or --from-history RESOURCE, one of the two")
    return options


def add_arena(parser: argparse.ArgumentParser) -> None:
    """What the replay and the tuner have in common."""
    number, minutes = bounded(float, 0), bounded(int, 0, MINUTES_MAX)
    instances = bounded(int, 0, PLAN_CAPACITY_MAX)
    add = parser.add_argument
    add("--rules", type=Path, default=Path("scaling_rules.py"), help="default: %(default)s")
    add("--resource", metavar="NAME", help="which one, if the rules declare several")
    add(
        "--instance-rate",
        type=number,
        metavar="ITEMS",
        help="items that an instance serves a minute (default: such that the 99.9th percentile "
        "minute needs 14 instances)",
    )
    add("--dead-time-minutes", type=minutes, default=3, metavar="D", help="default: %(default)s")
    add("--age-limit-minutes", type=minutes, default=5, metavar="L", help="default: %(default)s")
    add("--switch-cost", type=number, default=2.0, metavar="κ", help="default: %(default)s")
    add("--late-penalty", type=number, default=10.0, metavar="P", help="default: %(default)s")
    add("--min-instances", type=instances, default=1, metavar="N", help="default: %(default)s")
    add("--max-instances", type=instances, default=20, metavar="N", help="default: %(default)s")
    add(
        "--learn",
        action="store_true",
        help="do not tell the rules the instance rate and the dead time: as in production, where "
        "nobody fixed them by hand",
    )
    add(
        "--learn-finished",
        action="store_true",
        help="the same, with a metric of finished items to learn from, declared or not",
    )
    add(
        "--backlog-metric",
        metavar="NAME",
        help="the one metric that sees the backlog (default: each that counts waiting items)",
    )
    add(
        "--superseding",
        choices=("keep", "restart"),
        default="keep",
        help="what a new order does to instances on their way (default: %(default)s)",
    )


def arena_of(options: argparse.Namespace, workload: Workload) -> Arena:
    """Raises BadArena where the options and the trace do not make one."""
    rate = options.instance_rate
    return Arena(
        instance_rate=usual_rate(workload.arrivals) if rate is None else rate,
        dead_time_minutes=options.dead_time_minutes,
        age_limit_minutes=options.age_limit_minutes,
        switch_cost=options.switch_cost,
        late_penalty=options.late_penalty,
        service_learned=options.learn or options.learn_finished,
        finished_counted=options.learn_finished,
        backlog_metric=options.backlog_metric,
        min_instances=options.min_instances,
        max_instances=options.max_instances,
        superseding=options.superseding,
    )


def bounded(
    parse_number: Callable[[str], float], low: float, high: float = 1e9
) -> Callable[[str], float]:
    def checked(text: str) -> float:
        try:
            value = parse_number(text)
        except ValueError:
            value = -1
        if not low <= value <= high:
            kind = "whole number" if parse_number is int else "number"
            said = f"{text!r} must be a {kind} of at least {low:g} and at most {high:g}"
            raise argparse.ArgumentTypeError(said)
        return value

    return checked


def _plot(text: str) -> Path:
    path = Path(text)
    if path.suffix not in PLOT_KINDS:
        raise argparse.ArgumentTypeError(f"{text!r} must end in {' or '.join(PLOT_KINDS)}")
    return path
