"""The command-line options, checked as far as possible without the trace."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from backtest import PROGRAM
from backtest.arena import ARENAS, Arena, usual_rate
from backtest.errors import BacktestError, BadArena
from backtest.traces.reading import add_reading, reading_of, trace_file
from backtest.workload import MISSING, Workload, load_workload
from backtest.world import VARIATIONS, varied
from shared.autoscaling.declaring import PLAN_CAPACITY_MAX
from shared.settings import SettingsError, add_file, add_file_or_local
from shared.settings import parse as parse_settings
from shared.settings.connections import HOST_STORAGE
from shared.values import text as texts
from shared.values.text import whole

PLOT_KINDS = (".png", ".html")

MINUTES_MAX = 1440


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Replay a trace through the scaling rules, and compare them with well-known "
        "autoscalers and the best schedule that is found. Exit code 1: a safety rule was broken "
        "under --faults. 2: the trace, the rules or the options cannot be used.",
        epilog=f"{PROGRAM} tune TRACE... --rules FILE fits the numbers of the rules. "
        f"{PROGRAM} import-autoscale SETTING.json converts rules of Azure Monitor. "
        f"{PROGRAM} audit says what a plan in Azure cost, and what other rules would cost. "
        f"{PROGRAM} what-if RESOURCE says what other rules would have done in a time that the app "
        "recorded.",
    )
    parser.add_argument(
        "trace",
        type=trace_file,
        nargs="?",
        help="CSV with the columns time,arrivals, an export of metrics (docs/traffic.md), CPU "
        "and instances for rules on CPU (docs/backtest.md), or `sample`: the bundled trace",
    )
    parser.add_argument(
        "--from-history", metavar="RESOURCE", help="replay the app's records instead of a trace"
    )
    add_settings(parser)
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of the report"
    )
    parser.add_argument(
        "--plot",
        type=plot_file,
        metavar="FILE",
        help="draw the replay into this file, .png or .html",
    )
    parser.add_argument(
        "--faults",
        type=whole,
        metavar="SEED",
        help="lose, delay, repeat and refuse samples and actions at random, by this seed",
    )
    add_arena(parser)
    options = parser.parse_args(arguments)
    if (options.trace is None) == (options.from_history is None):
        parser.error("give either a trace or --from-history RESOURCE")
    return options


def add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--price",
        type=bounded(texts.number, 0),
        metavar="MONEY",
        help="of an instance-hour (default: PricePerInstanceHour)",
    )
    parser.add_argument(
        "--settings",
        type=Path,
        metavar="FILE",
        help="read settings from this file, such as the storage account of the demo: "
        ".local/settings.json",
    )


def read_settings(options: argparse.Namespace, *, records: bool) -> None:
    """Add the settings of the file, and find the price. If the app's records are to be read, the
    file is local.settings.json unless another is given. Raises BacktestError."""
    unread = ""
    try:
        if records:
            unread = add_file_or_local(options.settings)
            parse_settings()[0].storage(HOST_STORAGE)
        elif options.settings is not None:
            add_file(options.settings)
    except SettingsError as error:
        raise BacktestError(f"{error}{unread}") from error
    if options.price is None:
        options.price = parse_settings()[0].price_per_instance_hour


def add_arena(parser: argparse.ArgumentParser) -> None:
    """Add the options that the replay and the tuner share."""
    add = parser.add_argument
    add_reading(parser)
    add(
        "--missing",
        choices=MISSING,
        help="what steps without a value mean: no arrivals, or not recorded (default: no arrivals "
        "if the file evidently leaves out empty steps)",
    )
    add("--rules", type=Path, default=Path("scaling_rules.py"), help="default: %(default)s")
    add("--resource", metavar="NAME", help="the resource, if the rules declare several")
    _add_model(parser)
    add(
        "--learn",
        action="store_true",
        help="do not tell the rules the instance rate and the start-up time, as in production "
        "where they are not set",
    )
    add(
        "--learn-finished",
        action="store_true",
        help="like --learn, with a metric of finished items to learn from, declared or not; if it "
        "is not declared, its values are one to four minutes late",
    )
    add(
        "--backlog-metric",
        metavar="NAME",
        help="the only metric that sees the backlog (default: every one that counts waiting items)",
    )
    add(
        "--superseding",
        choices=("keep", "restart"),
        default="keep",
        help="what a new order does to instances that are starting (default: %(default)s)",
    )
    _add_world(parser)


def _add_model(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what instances do, and what they and late work cost."""
    number, minutes = bounded(texts.number, 0), bounded(whole, 0, MINUTES_MAX)
    instances = bounded(whole, 0, PLAN_CAPACITY_MAX)
    add = parser.add_argument
    add(
        "--instance-rate",
        type=number,
        metavar="ITEMS",
        help="items that one instance serves a minute (default: the 99.9th-percentile minute "
        "needs 14 instances)",
    )
    add(
        "--dead-time-minutes",
        type=minutes,
        default=3,
        metavar="D",
        help="minutes from an order to the new instances (default: %(default)s)",
    )
    add(
        "--age-limit-minutes",
        type=minutes,
        default=5,
        metavar="L",
        help="minutes after which waiting work is late (default: %(default)s)",
    )
    add(
        "--switch-cost",
        type=number,
        default=2.0,
        metavar="κ",
        help="cost of adding or removing an instance, in instance-minutes (default: %(default)s)",
    )
    add(
        "--late-penalty",
        type=number,
        default=10.0,
        metavar="P",
        help="cost of late work, per minute and instance-minute of work (default: %(default)s)",
    )
    add("--min-instances", type=instances, default=1, metavar="N", help="default: %(default)s")
    add("--max-instances", type=instances, default=20, metavar="N", help="default: %(default)s")


def _add_world(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how the world answers the rules."""
    add = parser.add_argument
    add(
        "--arena",
        choices=tuple(ARENAS),
        default="production",
        help="kind: one sample a minute, the number of instances is read when they work, and no "
        "change is refused (default: %(default)s)",
    )
    add(
        "--sample-seconds",
        type=bounded(whole, 1, 60),
        metavar="S",
        help="time between two samples, which divides a minute (default: 15; kind: 60)",
    )
    add(
        "--confirm-seconds",
        type=bounded(texts.number, 0, 3600),
        metavar="S",
        help="time until Resource Manager shows an ordered number (default: 8; kind: until the "
        "instances work)",
    )
    add("--variation", choices=tuple(VARIATIONS), help="let the world change: see docs/backtest.md")
    add(
        "--seed",
        type=whole,
        default=1,
        metavar="N",
        help="for the times of arrivals within a minute, the variation and the search of tune "
        "(default: %(default)s)",
    )


def workload_of(options: argparse.Namespace, trace: Path) -> Workload:
    return load_workload(trace, reading_of(options), options.missing)


def arena_of(options: argparse.Namespace, workload: Workload) -> Arena:
    """Raises BadArena if the options and the trace do not describe an arena."""
    rate = options.instance_rate
    low, high, start = options.min_instances, options.max_instances, workload.start_instances
    cpu = start is not None
    if cpu and rate is not None:
        raise BadArena("--instance-rate: a trace of CPU has no items. Leave the option out")
    if rate is None:
        rate = 1.0 if cpu else usual_rate(workload.arrivals)
    given = {"sample_seconds": options.sample_seconds, "confirm_seconds": options.confirm_seconds}
    arena = Arena(
        instance_rate=rate,
        dead_time_minutes=options.dead_time_minutes,
        age_limit_minutes=options.age_limit_minutes,
        switch_cost=options.switch_cost,
        late_penalty=options.late_penalty,
        service_learned=options.learn or options.learn_finished,
        finished_counted=options.learn_finished,
        backlog_metric=options.backlog_metric,
        min_instances=low,
        max_instances=high,
        superseding=options.superseding,
        cpu=cpu,
        start_instances=None if start is None else min(max(start, low), high),
        seed=options.seed,
        **{**ARENAS[options.arena], **{k: v for k, v in given.items() if v is not None}},
    )
    return varied(arena, options.variation) if options.variation else arena


def bounded(
    parse_number: Callable[[str], float], low: float, high: float = 1e9
) -> Callable[[str], float]:
    def checked(text: str) -> float:
        try:
            value = parse_number(text)
        except ValueError:
            value = -1
        if not low <= value <= high:
            kind = "whole number" if parse_number is whole else "number"
            message = f"{text!r} must be a {kind} of at least {low:g} and at most {high:g}"
            raise argparse.ArgumentTypeError(message)
        return value

    return checked


def plot_file(text: str) -> Path:
    path = Path(text)
    if path.suffix not in PLOT_KINDS:
        raise argparse.ArgumentTypeError(f"{text!r} must end in {' or '.join(PLOT_KINDS)}")
    return path
