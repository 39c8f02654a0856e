"""``python -m backtest what-if``: what other rules would have done in a recorded time."""

from __future__ import annotations

import argparse
import json
import math
import sys
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from backtest import PROGRAM
from backtest.arena import ARENAS, Arena, Floats, Schedule, as_schedule
from backtest.clairvoyant import clairvoyant
from backtest.errors import BacktestError
from backtest.history import History, load_history
from backtest.import_autoscale import call
from backtest.options import MINUTES_MAX, add_settings, bounded, plot_file, read_settings
from backtest.outcome import Score, course, course_with
from backtest.progress import Progress
from backtest.replay import Replay, replay
from backtest.report import grid
from backtest.rules_file import Rules, load_rules
from backtest.study import RULES, Study, check_policy, no_verdict, unjudged
from shared.autoscaling import Goal, Limits
from shared.autoscaling.declaring import PLAN_CAPACITY_MAX
from shared.values import text as texts
from shared.values.text import whole

REAL, NOW, THEN = "paid", "now", RULES
NAMES = {REAL: "as it was", NOW: "rules as they are, replayed", THEN: "what if"}
START_UP = 3
MODEL_ERROR_MAX = 0.1
"""If the replay of the rules differs by more from what was, it says little."""


def what_if_command(arguments: Sequence[str]) -> int:
    """Read the records of a time, replay the rules and the other ones, and print a table."""
    options = parsed(arguments)
    read_settings(options, records=True)
    rules = load_rules(Path("scaling_rules.py"), options.resource)
    other = load_rules(options.rules, options.resource) if options.rules else rules
    resource = rules.resource
    found = load_history(resource, options.instance_rate, options.since, options.until)
    price = options.price
    numbers = (options.age_limit, options.maximum)
    done = what_if(found, rules, other, *numbers, Progress(), drawn=bool(options.plot))
    if options.plot:
        from backtest.plot import draw  # noqa: PLC0415  slow to import and rarely needed

        draw(done.study, options.plot)
    if options.json:
        sys.stdout.write(json.dumps(done.as_dict(price), ensure_ascii=False) + "\n")
    else:
        show(done, Console(), price)
    return 0


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"{PROGRAM} what-if",
        description="Say what other rules, limits or goals would have done in a time that the app "
        "recorded, beside what was done. Exit code 2: the records, the rules or the options "
        "cannot be used.",
    )
    add = parser.add_argument
    add("resource", metavar="RESOURCE", nargs="?", help="the name in scaling_rules.py, if it "
        "declares several")  # fmt: skip
    add("--since", type=_time, required=True, metavar="TIME", help="ISO 8601, or 14:03 "
        "for the last such time, in UTC by default")  # fmt: skip
    add("--until", type=_time, metavar="TIME", help="default: now")
    minutes, instances = bounded(texts.number, 0.01, MINUTES_MAX), PLAN_CAPACITY_MAX
    add("--age-limit", type=minutes, metavar="L", help="another age limit, in minutes")
    add("--maximum", type=bounded(whole, 1, instances), metavar="N", help="another maximum")
    add("--rules", type=Path, metavar="FILE", help="another rules file")
    add("--instance-rate", type=bounded(texts.number, 0), metavar="ITEMS", help="items that an "
        "instance finishes a minute; default: what the app has learned")  # fmt: skip
    add_settings(parser)
    add("--plot", type=plot_file, metavar="FILE", help="draw a picture, .png or .html")
    add("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args(arguments)
    if options.until and options.until <= options.since:
        parser.error("--until: must be later than --since")
    return options


def _time(text: str) -> datetime:
    try:
        now = datetime.now(UTC)  # noqa: TID251  of the person who asks
        return texts.last_such_time(text, now).astimezone(UTC)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


@dataclass(frozen=True)
class WhatIf:
    """What was, what the rules do in a replay, and what the other ones do."""

    study: Study
    limit: float
    """The age limit by which all are judged."""
    lines: Sequence[str]
    """What to change so that the other rules apply."""

    @property
    def scores(self) -> Mapping[str, Score]:
        return self.study.scores()

    @property
    def model_error(self) -> float:
        """By how much more instance-hours the rules have in the replay than they had."""
        return self.scores[NOW].instance_hours / self.scores[REAL].instance_hours - 1

    def as_dict(self, price: float | None) -> dict[str, object]:
        """The JSON of ``--json``."""
        rows = {
            NAMES[name]: asdict(score)
            | ({} if price is None else {"money": score.instance_hours * price})
            for name, score in self.scores.items()
        }
        notices = list(self.study.notices)
        return {"schedules": rows, "model_error": self.model_error, "change": list(self.lines),
                "minutes": self.study.workload.minutes, "notices": notices}  # fmt: skip


def what_if(
    found: History,
    rules: Rules,
    other: Rules,
    age_limit: float | None,
    maximum: int | None,
    progress: Progress,
    *,
    drawn: bool,
) -> WhatIf:
    """Replay both rules on the reconstructed work, from the capacity at the beginning. Only a
    picture shows the best schedule, whose search takes as long as the replays."""
    resource = rules.resource
    start, mine = resource.throughput.start_up_minutes, resource.goal.age_limit_minutes
    backlog, capacity = _recorded(found)
    arrivals = found.workload.arrivals.copy()
    arrivals[0] += found.points[0].backlog
    workload = replace(found.workload, arrivals=arrivals)
    arena = _arena(rules, found, int(capacity[0]), mine)
    limit, limits = other.resource.goal.age_limit_minutes, other.resource.limits
    limit, most = age_limit or limit, maximum or limits.maximum
    if most < limits.minimum:
        raise BacktestError(f"--maximum {most}: must be at least the minimum, {limits.minimum}")
    changed = replace(other.resource, limits=replace(limits, maximum=most))
    other = replace(other, resource=changed)
    its = _arena(other, found, int(capacity[0]), limit)
    courses = {REAL: course_with(arena, arrivals, capacity, backlog)}

    def play(name: str, those: Rules, where: Arena) -> Replay:
        if blind := unjudged(those.resource, where):
            raise BacktestError(no_verdict(blind, where))
        check_policy(those.resource, where)
        with progress.task(NAMES[name], workload.minutes):
            done = replay(where, workload, those.resource, those.timing, progress.advance)
        courses[name] = replace(course(arena, arrivals, done.capacity), capacity=done.ordered)
        return done

    play(NOW, rules, arena)
    done = play(THEN, other, its)
    best = courses[THEN]
    if drawn:
        with progress.task("best schedule", workload.minutes):
            best = course(its, arrivals, clairvoyant(its, arrivals))
    notices = (*workload.notices, *rules.notices, *_whole_minutes(start, {mine, limit}))
    study = Study(workload, arena, other, done, courses, best, 0.0, notices, mine=NAMES[THEN])
    return WhatIf(study, arena.age_limit_minutes, list(_lines(rules, other, limit)))


def _arena(rules: Rules, found: History, capacity: int, age_limit: float) -> Arena:
    limits, goal = rules.resource.limits, rules.resource.goal
    start = rules.resource.throughput.start_up_minutes
    low, high = max(limits.minimum, 1), max(limits.maximum, 1)
    return Arena(
        instance_rate=found.rate,
        dead_time_minutes=START_UP if start is None else math.ceil(start),
        age_limit_minutes=max(math.ceil(age_limit), 1),
        switch_cost=goal.switch_cost,
        late_penalty=goal.late_penalty,
        min_instances=low,
        max_instances=high,
        start_instances=min(max(capacity, low), high),
        **ARENAS["production"],
    )


def _whole_minutes(start: float | None, limits: set[float]) -> Iterator[str]:
    """What counts as more minutes than the rules say."""
    for name, exact in (("start-up time", start or 0), *(("age limit", each) for each in limits)):
        if exact % 1:
            whole = f"{math.ceil(exact)}, because a replay has whole minutes"
            yield f"the {name} of {exact:.3g} min counts as {whole}"


def _recorded(found: History) -> tuple[Floats, Schedule]:
    """The backlog at the end of each minute, and the capacity in it."""
    times = [point.time for point in found.points]
    at = [max(bisect_right(times, end) - 1, 0) for end in found.workload.ends]
    backlog = np.array([found.points[each].backlog for each in at])
    return backlog, as_schedule([max(found.points[each].capacity, 1) for each in at])


def _lines(rules: Rules, other: Rules, limit: float) -> Iterator[str]:
    before, after = rules.resource, other.resource
    if after.limits != before.limits:
        yield f"limits={call(Limits(after.limits.minimum, after.limits.maximum))},"
    if limit != before.goal.age_limit_minutes:
        yield f"goal={call(Goal(limit, after.goal.switch_cost, after.goal.late_penalty))},"


def show(done: WhatIf, console: Console, price: float | None) -> None:
    """Print the table and what to do."""
    study, say = done.study, console.print
    first, last = study.workload.starts[0], study.workload.ends[-1]
    name = study.rules.resource.name
    when = f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC"
    head = f"{name}, {when}: {study.workload.minutes:,} minutes"
    say(head, style="bold", markup=False, highlight=False)
    for notice in study.notices:
        say(f"  · {notice}", style="yellow", highlight=False, markup=False)
    say(_table(done, price))
    say(f"Hours are instance-hours, from the order on. Late: minutes with items older than "
        f"{done.limit:g} min.", highlight=False)  # fmt: skip
    if price is None:
        say("With --price or the setting PricePerInstanceHour, the table has money.")
    error = done.model_error
    trust = "so the replay is like it" if abs(error) <= MODEL_ERROR_MAX else "so trust it little"
    say(f"Check of the model: replayed, the rules as they are have {error:+.1%} of the hours that "
        f"there were, {trust}.", highlight=False)  # fmt: skip
    if done.lines:
        say(f"In the rules file, Resource({name!r}, …) would have:", highlight=False, markup=False)
        for line in done.lines:
            say(f"    {line}", highlight=False, markup=False)


def _table(done: WhatIf, price: float | None) -> Table:
    money = ("money",) if price is not None else ()
    table = grid("hours", *money, "late", "age p99", "changes")
    for name, score in done.scores.items():
        table.add_row(
            NAMES[name],
            f"{score.instance_hours:,.2f}",
            *([f"{score.instance_hours * price:,.2f}"] if price is not None else []),
            f"{score.violation_minutes:,}",
            f"{score.age_p99:.1f}",
            f"{score.actions:,}",
            style="bold green" if name == THEN else "",
        )
    return table
