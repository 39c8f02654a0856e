"""Reads traces of arrivals as items per minute.

    time,arrivals
    1995-07-11T04:00:00Z,19
    1995-07-11T04:01:00Z,25

Exports of Azure Monitor, Log Analytics, Grafana, Prometheus and CloudWatch are read too. An
unusable file is refused with one `TraceError`. Smaller defects are corrected, and each correction
is recorded in `Trace.notices`.
"""

import argparse
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import MAXYEAR, MINYEAR, UTC, datetime, timedelta
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median_low, multimode
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from local.demo.trace_columns import Column, find_column, quoted
from local.demo.trace_files import Refused, Table, read_table
from local.demo.trace_values import is_absent, order_of_dates, reader_of_numbers, time_of

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
STEP_MIN = SECOND
STEP_MAX = timedelta(minutes=30)
JITTER_SHARE = 0.25
"""How far a row may be from its place, as a share of the step."""
ARRIVALS_MAX = 1e12
TRACE_MINUTES_MAX = 2 * 366 * 24 * 60
AUTUMN = "as local times do at the clock change in autumn"
SPRING = "as in local times at the clock change in spring. Name their zone with --time-zone"
SUNDAY = 6
IN_UTC = "Export the times in UTC, or name their time zone, such as --time-zone Europe/Berlin"


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


@dataclass(frozen=True, slots=True)
class Missing:
    """Steps without a value. `zeros` tells whether other rows state that nothing arrived."""

    steps: int
    places: int
    share: float
    smallest: float
    zeros: bool
    text: str


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


@dataclass(frozen=True, slots=True)
class _Sample:
    place: str
    time: datetime
    arrivals: float | None


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
    samples, notices = _samples(column, table, reading)
    step, samples, step_notices = _on_steps(samples)
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
        _missing(samples, step),
    )


def _scaled(sample: _Sample, factor: float) -> _Sample:
    return sample if sample.arrivals is None else replace(sample, arrivals=sample.arrivals * factor)


def _samples(
    column: Column, table: Table, reading: Reading
) -> tuple[list[_Sample], tuple[str, ...]]:
    """All values in the order of time, and what was assumed about the times."""
    day_first, sure = order_of_dates([time for _, time, _ in column.cells])
    texts = [value for _, _, value in column.cells if not is_absent(value)]
    try:
        number_of = reader_of_numbers(texts, comma_decimal=table.comma_decimal)
    except ValueError as error:
        what = f"the comma in {quoted(str(error))} may mark decimals or thousands"
        raise Refused(None, what, "Export the numbers with a point and without marks") from None
    samples = []
    for at, time, value in column.cells:
        where = f"{table.place} {at}"
        when = _time(where, time, day_first=day_first)
        count = None if is_absent(value) else _arrivals(where, value, number_of)
        samples.append(_Sample(where, when, count))
    if all(sample.arrivals is None for sample in samples):
        what = "arrivals '' is not a number, and no row has one"
        raise Refused(samples[0].place, what, NUMBER)
    notices: tuple[str, ...] = ()
    if not sure:
        notices = ("dates such as 02/11/2026 are read as month/day",)
    samples, told = _in_order(samples, column, reading.time_zone)
    return samples, (*notices, *told)


def _in_order(
    samples: list[_Sample], column: Column, zone: ZoneInfo | None
) -> tuple[list[_Sample], tuple[str, ...]]:
    """In UTC and in the order of time, and what was assumed."""
    naive = [sample for sample in samples if sample.time.tzinfo is None]
    if naive and len(naive) < len(samples):
        raise Refused(naive[0].place, "the time has no offset, others have one", IN_UTC)
    if samples[0].time > samples[-1].time:
        samples = samples[::-1]
    notices: tuple[str, ...] = ()
    if naive and "utc" not in column.time.casefold():
        samples, notices = _located(samples, naive[0].place, zone)
    samples = [_in_utc(sample) for sample in samples]
    falls = sum(after.time < before.time for before, after in pairwise(samples))
    if falls:
        notices = (*notices, f"rows sorted by time: {falls} were before the row above")
        samples.sort(key=lambda one: one.time)
    _check_unique(samples, local=bool(notices) and zone is None)
    return samples, notices


def _located(
    samples: list[_Sample], first: str, zone: ZoneInfo | None
) -> tuple[list[_Sample], tuple[str, ...]]:
    """Times without an offset, in their time zone. An hour is there twice in autumn."""
    told = f"{len(samples)} times without an offset, the first on {first}: read as"
    if zone is not None:
        return _in_zone(samples, zone), (f"{told} {zone.key}",)
    falls = [(a, b) for a, b in pairwise(samples) if b.time < a.time]
    if len(falls) == 1 and falls[0][0].time - falls[0][1].time <= HOUR:
        before, after = falls[0]
        what = f"the times go back from {_iso(before.time)} to {_iso(after.time)}, {AUTUMN}"
        raise Refused(after.place, what, IN_UTC)
    skips = [b for a, b in pairwise(samples) if HOUR < b.time - a.time <= HOUR + STEP_MAX]
    spring = [
        f"; the hour before {_iso(one.time)} is missing, {SPRING}"
        for one in skips
        if one.time.weekday() == SUNDAY and one.time.hour <= 3
    ]
    return samples, (f"{told} UTC{''.join(spring[:1])}",)


def _in_zone(samples: Sequence[_Sample], zone: ZoneInfo) -> list[_Sample]:
    """What follows the first of two equal hours belongs to the second one."""
    found: list[_Sample] = []
    for sample in samples:
        local = sample.time.replace(tzinfo=zone)
        late = replace(sample, time=local.replace(fold=1))
        again = bool(found) and local.astimezone(UTC) <= found[-1].time.astimezone(UTC)
        found.append(late if again else replace(sample, time=local))
    return found


def _in_utc(sample: _Sample) -> _Sample:
    aware = sample.time.tzinfo or UTC
    try:
        time = sample.time.replace(tzinfo=aware).astimezone(UTC)
    except OverflowError:
        raise Refused(sample.place, f"{_iso(sample.time)!r} is not a time", ISO) from None
    if not MINYEAR < time.year < MAXYEAR:
        what = f"{_iso(time)!r} is at the end of the calendar, where no time can be added"
        raise Refused(sample.place, what, f"Use years from {MINYEAR + 1} to {MAXYEAR - 1}")
    return replace(sample, time=time)


NUMBER = "Write the number of items in that step, such as 19"
ISO = "Write ISO 8601: 1995-07-11T04:00:00Z"


def _time(place: str, text: str, *, day_first: bool) -> datetime:
    try:
        return time_of(text, day_first=day_first)
    except (ValueError, OverflowError):
        raise Refused(place, f"{quoted(text)} is not a time", ISO) from None


def _arrivals(place: str, text: str, number_of: Callable[[str], float]) -> float:
    what, fix = f"arrivals {quoted(text)} is", NUMBER
    try:
        value = number_of(text)
    except ValueError:
        raise Refused(place, f"{what} not a number", fix) from None
    if not math.isfinite(value):
        raise Refused(place, f"{what} not a finite number", fix)
    if value < 0:
        raise Refused(place, f"{what} negative", fix)
    if value > ARRIVALS_MAX:
        raise Refused(place, f"{what} above {ARRIVALS_MAX:.0e}", "Check the unit")
    return value


def _check_unique(samples: Sequence[_Sample], *, local: bool) -> None:
    again = [(a, b) for a, b in pairwise(samples) if a.time == b.time]
    if not again:
        return
    before, sample = again[0]
    if local and HOUR / 2 <= again[-1][0].time - before.time < HOUR:
        what = f"an hour from {_iso(sample.time)} is there twice, {AUTUMN}"
        raise Refused(sample.place, what, IN_UTC)
    what = f"the time {_iso(sample.time)} is already on {before.place}"
    raise Refused(sample.place, what, "Add up the two rows, or delete one")


def _on_steps(
    samples: Sequence[_Sample],
) -> tuple[timedelta, list[_Sample], tuple[str, ...]]:
    """The step, and the samples moved to whole steps if they are some seconds off."""
    if len(samples) == 1:
        told = "the file has one row, which is read as the arrivals of one minute"
        return MINUTE, list(samples), (told,)
    spans = [after.time - before.time for before, after in pairwise(samples)]
    step, moved = _usual_step(spans), 0
    if not STEP_MIN <= step <= STEP_MAX:
        what = f"the rows are {_spoken(step)} apart"
        raise Refused(samples[1].place, what, "Give rows from 1 s to 30 min apart")
    _check_length(samples, step)
    start = samples[0].time
    if any(span % step for span in spans):
        start = _whole(start, step)
    placed: list[_Sample] = []
    for sample in samples:
        time = start + round((sample.time - start) / step) * step
        if abs(sample.time - time) > JITTER_SHARE * step or (placed and placed[-1].time == time):
            span = _spoken(sample.time - samples[max(len(placed) - 1, 0)].time)
            what = (
                f"{_iso(sample.time)} is {span} after the row before, where most rows are "
                f"{_spoken(step)} apart"
            )
            raise Refused(sample.place, what, "Keep one step in the whole file")
        moved += time != sample.time
        placed.append(replace(sample, time=time))
    told = f"{moved} times are not on whole steps of {_spoken(step)}: moved to the nearest one"
    return step, placed, (told,) if moved else ()


def _usual_step(spans: Sequence[timedelta]) -> timedelta:
    """The most common span if all are multiples of it. Otherwise times are irregular, or many
    steps are missing: then what all spans have in common, in whole minutes.
    """
    step = min(multimode(spans))
    if all(span % step == timedelta() for span in spans):
        return step
    middle = median_low(spans)
    unit = MINUTE if middle >= 0.75 * MINUTE else 5 * SECOND if middle >= 5 * SECOND else SECOND
    steps = [max(1, round(span / unit)) for span in spans]
    usual, times = Counter(steps).most_common(1)[0]
    return (usual if times >= 0.9 * len(steps) else math.gcd(*steps)) * unit


def _whole(start: datetime, step: timedelta) -> datetime:
    """The nearest whole minute, or second of shorter steps, if the start is some seconds off."""
    unit = MINUTE if step >= MINUTE else SECOND
    past = (start - datetime(1, 1, 1, tzinfo=UTC)) % unit
    nearest = start - past + (unit if past > unit / 2 else timedelta())
    return nearest if abs(nearest - start) <= step / 10 else start


def _missing(samples: Sequence[_Sample], step: timedelta) -> Missing | None:
    """How many steps have no row or no value, and in how many places of the file."""
    total = round((samples[-1].time - samples[0].time) / step) + 1
    values = [one.arrivals for one in samples if one.arrivals is not None]
    steps, places, first = total - len(values), 0, ""
    if not steps:
        return None
    open_place = False
    for before, sample in pairwise((samples[0], *samples)):
        skipped = sample.time - before.time > step
        if skipped or sample.arrivals is None:
            places += skipped or not open_place
            first = first or (f"before {sample.place}" if skipped else f"on {sample.place}")
        open_place = sample.arrivals is None
    text = f"{steps} missing steps of {_spoken(step)}, the first {first}"
    return Missing(steps, places, steps / total, min(values), 0 in values, text)


def _check_length(samples: Sequence[_Sample], step: timedelta) -> None:
    minutes = (samples[-1].time + step - samples[0].time) / MINUTE
    if minutes > TRACE_MINUTES_MAX:
        length = f"{minutes:,.0f} minutes, more than {TRACE_MINUTES_MAX:,}"
        what = f"{_iso(samples[-1].time)} ends a trace of {length}"
        raise Refused(samples[-1].place, what, "Check the year, or cut the file")


def _per_minute(
    samples: Sequence[_Sample], step: timedelta
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
    return (f"rows {_spoken(step)} apart: {how} minutes",)


def _spoken(span: timedelta) -> str:
    seconds = span.total_seconds()
    return f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds:g} s"


def _iso(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")
