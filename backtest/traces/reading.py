"""Reads traces of arrivals as items per minute.

    time,arrivals
    1995-07-11T04:00:00Z,19
    1995-07-11T04:01:00Z,25

Exports of Azure Monitor, Log Analytics, Grafana, Prometheus and CloudWatch are read too. An
unusable file is refused with one `TraceError`. Smaller defects are corrected, and each correction
is recorded in `Trace.notices`.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import accumulate
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from backtest.traces.columns import find_column
from backtest.traces.files import Refused, read_table
from backtest.traces.samples import (
    MINUTE,
    SECOND,
    Missing,
    Sample,
    missing_of,
    on_steps,
    samples_of,
    spoken,
)


class TraceError(Exception):
    """The trace cannot be used. The message names the file, the place, the value and the fix."""

    def __init__(self, path: Path, place: str | None, problem: str, fix: str) -> None:
        where = str(path) if place is None else f"{path}, {place}"
        super().__init__(f"{where}: {problem}. {fix}.")
        self.problem = problem
        self.fix = fix


@dataclass(frozen=True, slots=True)
class Reading:
    """What the user says of the trace, where the file alone does not tell."""

    series: str | None = None
    per_second: bool = False
    time_zone: ZoneInfo | None = None


AS_FOUND = Reading()
BUNDLED = Path(__file__).parents[2] / "local" / "data" / "nasa_http_1995-07-11_13.csv"
"""Three days of requests to a web server, as arrivals."""
PLAIN = "read as CSV, column arrivals"
"""The form that needs no word."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Arrivals, minute by minute.

    `arrivals[m]` is the number of items that arrived in the minute that starts `m` minutes after
    `start` (aware, UTC). Steps without a value count as no arrivals, and `missing` tells of them.
    `read_as` names the form of the file and the column. `notices` describe the corrections made
    while reading. `covered[m]` is the part of the minute, from 0 to 1, that the values cover.
    """

    start: datetime
    arrivals: tuple[float, ...]
    notices: tuple[str, ...] = ()
    covered: tuple[float, ...] = field(default=(), compare=False, repr=False)
    read_as: str = field(default="", compare=False)
    missing: Missing | None = field(default=None, compare=False)

    @property
    def minutes(self) -> int:
        return len(self.arrivals)

    def time_at(self, minute: float) -> datetime:
        return self.start + timedelta(minutes=minute)


def busiest(trace: Trace, minutes: int) -> Trace:
    """The part of that many minutes with the most arrivals; the whole trace if it is shorter."""
    totals = (0.0, *accumulate(trace.arrivals))
    starts = range(max(trace.minutes - minutes, 0) + 1)
    first = max(
        starts, key=lambda start: totals[min(start + minutes, trace.minutes)] - totals[start]
    )
    return Trace(trace.time_at(first), trace.arrivals[first : first + minutes], trace.notices)


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Add the options of `Reading` to a command that reads traces."""
    add = parser.add_argument
    add("--series", metavar="NAME", help="the column or series to read, if the trace has several")
    add(
        "--per-second",
        action="store_true",
        help="the values are items per second, such as those of rate() in Prometheus",
    )
    add(
        "--time-zone",
        type=_time_zone,
        metavar="ZONE",
        help="the time zone of times without an offset (default: UTC)",
    )


def reading_of(options: argparse.Namespace) -> Reading:
    return Reading(options.series, options.per_second, options.time_zone)


def _time_zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise argparse.ArgumentTypeError(
            f"{name!r} is not a time zone such as Europe/Berlin"
        ) from None


def trace_file(name: str) -> Path:
    """The file of that name; the bundled trace if the name is ``sample``."""
    return BUNDLED if name == "sample" else Path(name)


def load_trace(path: Path | str, reading: Reading = AS_FOUND) -> Trace:
    """Read a CSV file with the columns `time` and `arrivals` (items in that step), or an export.

    Times without an offset are read as UTC, steps from 1 s to 30 min become minutes, and missing
    steps become zero; each of these is told. Everything else raises `TraceError`.
    """
    path = Path(path)
    try:
        return _read(path, reading)
    except Refused as refused:
        raise TraceError(path, *refused.args) from refused.__cause__


def _read(path: Path, reading: Reading) -> Trace:
    table = read_table(path)
    column = find_column(table, reading.series, per_second=reading.per_second)
    samples, notices = samples_of(column, reading.time_zone)
    step, samples, step_notices = on_steps(samples)
    if reading.per_second:
        samples = [_scaled(sample, step / SECOND) for sample in samples]
    elif table.rates_possible:
        told = "values are read as items in each step; --per-second reads them as items per second"
        notices = (*notices, told)
    arrivals, covered = _per_minute(samples, step)
    unit = ", items per second" if reading.per_second else ""
    return Trace(
        samples[0].time,
        arrivals,
        (*notices, *step_notices, *_step_notice(step)),
        covered,
        f"read as {table.form}, column {column.name}{unit}",
        missing_of(samples, step),
    )


def _scaled(sample: Sample, factor: float) -> Sample:
    return sample if sample.arrivals is None else replace(sample, arrivals=sample.arrivals * factor)


def _per_minute(
    samples: Sequence[Sample], step: timedelta
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Spread each sample evenly over its step. Return arrivals and coverage of each minute."""
    start = samples[0].time
    arrivals = [0.0] * -(-(samples[-1].time + step - start) // MINUTE)
    covered = list(arrivals)
    for sample in samples:
        if sample.arrivals is None:
            continue
        for minute, inside in minutes_of(sample.time - start, sample.time - start + step):
            arrivals[minute] += sample.arrivals * (inside / step)
            covered[minute] += inside / MINUTE
    return tuple(arrivals), tuple(covered)


def minutes_of(begin: timedelta, end: timedelta) -> Iterator[tuple[int, timedelta]]:
    """Yield the minutes that an interval touches, each with the part of the interval inside it."""
    for minute in range(begin // MINUTE, -(-end // MINUTE)):
        yield minute, min(end, (minute + 1) * MINUTE) - max(begin, minute * MINUTE)


def _step_notice(step: timedelta) -> tuple[str, ...]:
    if step == MINUTE:
        return ()
    how = "summed into" if step < MINUTE else "spread evenly over"
    return (f"rows {spoken(step)} apart: {how} minutes",)
