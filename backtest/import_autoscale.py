"""``python -m backtest import-autoscale setting.json``: Azure Monitor's rules as scaling_rules.py.

Reads an autoscale setting as ``az monitor autoscale show``, the REST API, or an ARM template
gives it. https://learn.microsoft.com/azure/azure-monitor/autoscale/autoscale-understanding-settings
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any

from backtest.autoscale_setting import Converted, ProfileOf, convert
from backtest.errors import BacktestError
from shared.autoscaling.deciding.validation import problems
from shared.autoscaling.declaring import Limits
from shared.autoscaling.policies import MetricRule, MetricRules
from shared.settings import load


def run(arguments: Sequence[str]) -> int:
    """Writes the rules, or prints them; says what could not be carried over."""
    parser = argparse.ArgumentParser(prog="python -m backtest import-autoscale")
    parser.add_argument("setting", type=Path, metavar="SETTING.json")
    parser.add_argument("--output", type=Path, metavar="FILE", help="never over one that is there")
    options = parser.parse_args(arguments)
    converted = convert(_read(options.setting))
    source = written(converted)
    _check(source)
    _put(source, options.output)
    _tell(converted)
    return 0


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise BacktestError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise BacktestError(f"{path}: no JSON: {error}") from error


def _check(source: str) -> None:
    """What is written must be what the app accepts."""
    names: dict[str, Any] = {}  # the text was written just above
    exec(compile(source, "scaling_rules.py", "exec"), names)  # noqa: S102  # nosec B102
    wrong = problems(names["resources"](load({})))
    if wrong:
        raise BacktestError("the setting makes rules that the app refuses: " + "; ".join(wrong))


def _put(source: str, output: Path | None) -> None:
    if output is None:
        sys.stdout.write(source)
        return
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(source)
    except FileExistsError as error:
        raise BacktestError(f"{output} is there already: name another file") from error
    except OSError as error:
        raise BacktestError(f"{output}: {error.strerror}") from error


def _tell(converted: Converted) -> None:
    for note in converted.notes:
        sys.stderr.write(f"note: {note}\n")


INDENT = "    "


def written(converted: Converted) -> str:
    """A whole file: what is not understood any more can be read beside the original."""
    names = sorted(_names(converted))
    windows = [rule.window_seconds for rule in _rules(converted)]
    lines = [
        f'"""Rules of {converted.name}, made from its autoscale setting of Azure Monitor."""',
        "",
        "from __future__ import annotations",
        "",
        "from collections.abc import Sequence",
        *(["from datetime import date, time"] if converted.profiles else []),
        "",
        "from shared.autoscaling import (",
        *[f"{INDENT}{name}," for name in names],
        ")",
        "from shared.settings import Settings",
        "",
        *[f"# {' '.join(note.split())}" for note in converted.notes],  # one line each, whatever
        "",
        "",
        "def resources(settings: Settings) -> Sequence[Resource]:",
        '    """What is scaled."""',
        "    return [",
        "        Resource(",
        f"            name={converted.name!r},",
        f"            target={_call(converted.target)},",
        "            metrics={",
        *[f"                {n!r}: {_call(s)}," for n, s in converted.metrics.items()],
        "            },",
        f"            policy={_policy(converted)},",
        f"            limits={_call(_widest(converted))},",
        f"            cooldown={_call(converted.cooldown)},",
        f"            history_seconds={max([*windows, 1800]):g},",
        "        )",
        "    ]",
    ]
    return "\n".join(lines) + "\n"


def _names(converted: Converted) -> set[str]:
    sources = {type(source).__name__ for source in converted.metrics.values()}
    names = {"AppServicePlan", "Cooldown", "Limits", "Resource", "MetricRule", "MetricRules"}
    return names | sources | ({"Profile", "Rule", "Schedule"} if converted.profiles else set())


def _rules(converted: Converted) -> Iterator[MetricRule]:
    for profile in (converted.default, *converted.profiles):
        if profile.policy:
            yield from profile.policy.rules


def _policy(converted: Converted) -> str:
    if not converted.profiles and converted.default.policy:
        return _metric_rules(converted.default.policy, 3)
    rules = "".join(
        f"\n{INDENT * 5}{rule}," for profile in converted.profiles for rule in _rules_of(profile)
    )
    default = _profile(converted.default)
    return (
        f"Schedule(\n{INDENT * 4}rules=({rules}\n{INDENT * 4}),\n"
        f"{INDENT * 4}default={default},\n{INDENT * 3})"
    )


def _metric_rules(policy: MetricRules, depth: int) -> str:
    inner = "".join(f"\n{INDENT * (depth + 2)}{_call(rule)}," for rule in policy.rules)
    return (
        f"MetricRules(\n{INDENT * (depth + 1)}({inner}\n{INDENT * (depth + 1)})\n{INDENT * depth})"
    )


def _profile(profile: ProfileOf) -> str:
    limits = profile.limits
    policy = f", {_metric_rules(profile.policy, 5)}" if profile.policy else ""
    return f"Profile({profile.name!r}, {limits.minimum}, {limits.maximum}{policy})"


def _rules_of(profile: ProfileOf) -> Iterator[str]:
    """One rule; of a fixed interval over several days one for its first, middle and last days."""
    when = profile.when
    assert when is not None
    told = _profile(profile)
    if not when.fixed:
        start, end = (time.fromisoformat(text) for text in (when.start, when.end))
        yield _rule(told, f"{when.weekdays!r}, ", start, end, "", when.time_zone)
        return
    first, last = (datetime.fromisoformat(text) for text in (when.start, when.end))
    for day, until, start, end in _days(first, last):
        dates = f", dates=(({_date(day)}, {_date(until)}),)"
        yield _rule(told, "", start, end, dates, when.time_zone)


def _days(first: datetime, last: datetime) -> Iterator[tuple[date, date, time, time]]:
    """First and last day, and from when to when on each of them."""
    one, midnight = timedelta(days=1), time()
    if first.date() == last.date():
        yield first.date(), first.date(), first.time(), last.time()
        return
    yield first.date(), first.date(), first.time(), midnight
    if last.date() - first.date() > one:
        yield first.date() + one, last.date() - one, midnight, midnight
    if last.time() != midnight:
        yield last.date(), last.date(), midnight, last.time()


def _rule(told: str, days: str, start: time, end: time, dates: str, zone: str) -> str:
    hours = f"start={_time(start)}, end={_time(end)}"
    return f"Rule({told}, {days}{hours}{dates}, time_zone={zone!r})"


def _time(moment: time) -> str:
    return f"time({moment.hour}, {moment.minute})"


def _date(moment: date) -> str:
    return f"date({moment.year}, {moment.month}, {moment.day})"


def _widest(converted: Converted) -> Limits:
    profiles = (converted.default, *converted.profiles)
    low = min(profile.limits.minimum for profile in profiles)
    return Limits(low, max(profile.limits.maximum for profile in profiles))


def _call(value: Any) -> str:
    """A frozen value as the call that makes it, without what is the default anyway."""
    given = [
        f"{each.name}={getattr(value, each.name)!r}"
        for each in fields(value)
        if each.default is MISSING or getattr(value, each.name) != each.default
    ]
    return f"{type(value).__name__}({', '.join(given)})"
