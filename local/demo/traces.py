"""Reads traces of arrivals from CSV files as items per minute.

    time,arrivals
    1995-07-11T04:00:00Z,19
    1995-07-11T04:01:00Z,25

An unusable file is refused with one `TraceError`. Smaller defects are corrected, and each
correction is recorded in `Trace.notices`.
"""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import MAXYEAR, MINYEAR, UTC, datetime, timedelta
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import multimode

from shared.values.text import number

MINUTE = timedelta(minutes=1)
STEP_MIN = timedelta(seconds=1)
STEP_MAX = timedelta(minutes=30)
ARRIVALS_MAX = 1e12
TRACE_MINUTES_MAX = 2 * 366 * 24 * 60
COLUMNS = ("time", "arrivals")


class TraceError(Exception):
    """The trace cannot be used. The message names the file, the line, the value and the fix."""

    def __init__(self, path: Path, line: int | None, problem: str, fix: str) -> None:
        where = str(path) if line is None else f"{path}, line {line}"
        super().__init__(f"{where}: {problem}. {fix}.")
        self.problem = problem
        self.fix = fix


class _Refused(Exception):
    """The arguments of a TraceError except the file: line, problem and fix."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Arrivals, minute by minute.

    `arrivals[m]` is the number of items that arrived in the minute that starts `m` minutes after
    `start` (aware, UTC). `notices` describe the corrections made while reading. `covered[m]` is
    the part of the minute, from 0 to 1, that the rows of the file cover.
    """

    start: datetime
    arrivals: tuple[float, ...]
    notices: tuple[str, ...] = ()
    covered: tuple[float, ...] = field(default=(), compare=False, repr=False)

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


@dataclass(frozen=True, slots=True)
class _Sample:
    line: int
    time: datetime
    arrivals: float


def load_trace(path: Path | str) -> Trace:
    """Read a CSV file with the columns `time` (ISO 8601) and `arrivals` (items in that step).

    Header names may be in any case. Other columns, blank lines and a byte order mark are
    ignored. Times without an offset are read as UTC, steps from 1 s to 30 min become minutes,
    and missing steps become zero; each of these leaves a notice. Everything else raises
    `TraceError`.
    """
    path = Path(path)
    try:
        return _read(path)
    except _Refused as refused:
        raise TraceError(path, *refused.args) from refused.__cause__


def _read(path: Path) -> Trace:
    rows = _rows(path)
    columns = _columns(next(rows, None))
    naive: list[int] = []
    samples = [_sample(columns, line, fields, naive) for line, fields in rows]
    _check_order(samples)
    step, notices = _step(samples)
    arrivals, covered = _per_minute(samples, step)
    return Trace(
        samples[0].time, arrivals, (*_naive_notice(naive), *notices, *_step_notice(step)), covered
    )


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield each row that is not blank, with the number of the line on which it ends."""
    reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
    try:
        for fields in reader:
            if any(field.strip() for field in fields):
                yield reader.line_num, [field.strip() for field in fields]
    except csv.Error as error:
        what = f"not a CSV row ({error})"
        raise _Refused(reader.line_num, what, "Save the file as plain CSV") from None


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise _Refused(None, f"cannot be read ({reason})", "Check the path") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        value = error.object[error.start : error.end]
        raise _Refused(
            line, f"{value!r} is not UTF-8 text", "Save the file as CSV in UTF-8"
        ) from None


def _columns(row: tuple[int, list[str]] | None) -> list[str]:
    header = ",".join(COLUMNS)
    if row is None:
        raise _Refused(1, "the file is empty", f"Start it with the line '{header}'")
    line, fields = row
    names = [name.lower() for name in fields]
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        what = f"{_quoted(','.join(fields))} has no column {_listed(missing)}"
        fix = f"The first line must be a header such as '{header}', separated by commas"
        raise _Refused(line, what, fix)
    return names


def _sample(columns: list[str], line: int, fields: list[str], naive: list[int]) -> _Sample:
    if len(fields) != len(columns):
        what = (
            f"{_quoted(','.join(fields))} has {len(fields)} fields, the header has {len(columns)}"
        )
        raise _Refused(line, what, "Write one value for each column, with a point in decimals")
    time = _time(line, fields[columns.index("time")], naive)
    return _Sample(line, time, _arrivals(line, fields[columns.index("arrivals")]))


def _time(line: int, text: str, naive: list[int]) -> datetime:
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is None:
            naive.append(line)
            time = time.replace(tzinfo=UTC)
        time = time.astimezone(UTC)
    except (ValueError, OverflowError):
        what = f"{_quoted(text)} is not a time"
        raise _Refused(line, what, "Write ISO 8601: 1995-07-11T04:00:00Z") from None
    if not MINYEAR < time.year < MAXYEAR:
        what = f"{_quoted(text)} is at the end of the calendar, where no time can be added"
        raise _Refused(line, what, f"Use years from {MINYEAR + 1} to {MAXYEAR - 1}")
    return time


def _arrivals(line: int, text: str) -> float:
    what, fix = f"arrivals {_quoted(text)} is", "Write the number of items in that step, such as 19"
    try:
        value = number(text.strip())
    except ValueError:
        raise _Refused(line, f"{what} not a number", fix) from None
    if not math.isfinite(value):
        raise _Refused(line, f"{what} not a finite number", fix)
    if value < 0:
        raise _Refused(line, f"{what} negative", fix)
    if value > ARRIVALS_MAX:
        raise _Refused(line, f"{what} above {ARRIVALS_MAX:.0e}", "Check the unit")
    return value


def _check_order(samples: Sequence[_Sample]) -> None:
    if not samples:
        raise _Refused(2, "the file has a header but no rows", "Add at least one row")
    for before, sample in pairwise(samples):
        if sample.time == before.time:
            what = f"the time {_iso(sample.time)} is already on line {before.line}"
            raise _Refused(sample.line, what, "Add up the two rows, or delete one")
        if sample.time < before.time:
            times = f"{_iso(sample.time)} is before {_iso(before.time)}"
            what = f"the time {times} on line {before.line}"
            raise _Refused(sample.line, what, "Sort the rows by time")


def _step(samples: Sequence[_Sample]) -> tuple[timedelta, tuple[str, ...]]:
    """Return the most common distance between rows. Longer ones must be multiples of it: gaps."""
    if len(samples) == 1:
        return MINUTE, ("the file has one row, which is read as the arrivals of one minute",)
    step = min(multimode(after.time - before.time for before, after in pairwise(samples)))
    if not STEP_MIN <= step <= STEP_MAX:
        what = f"the rows are {_spoken(step)} apart"
        raise _Refused(samples[1].line, what, "Give rows from 1 s to 30 min apart")
    _check_length(samples, step)
    missing = 0
    first_gap: _Sample | None = None
    for before, after in pairwise(samples):
        steps, rest = divmod(after.time - before.time, step)
        if rest:
            what = (
                f"{_iso(after.time)} is {_spoken(after.time - before.time)} after the row before, "
                f"where most rows are {_spoken(step)} apart"
            )
            raise _Refused(after.line, what, "Keep one step in the whole file")
        missing += steps - 1
        first_gap = first_gap or (after if steps > 1 else None)
    return step, _gap_notice(missing, step, first_gap)


def _check_length(samples: Sequence[_Sample], step: timedelta) -> None:
    minutes = (samples[-1].time + step - samples[0].time) / MINUTE
    if minutes > TRACE_MINUTES_MAX:
        length = f"{minutes:,.0f} minutes, more than {TRACE_MINUTES_MAX:,}"
        what = f"{_iso(samples[-1].time)} ends a trace of {length}"
        raise _Refused(samples[-1].line, what, "Check the year, or cut the file")


def _per_minute(
    samples: Sequence[_Sample], step: timedelta
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Spread each sample evenly over its step. Return arrivals and coverage of each minute."""
    start = samples[0].time
    arrivals = [0.0] * -(-(samples[-1].time + step - start) // MINUTE)
    covered = list(arrivals)
    for sample in samples:
        for minute, inside in minutes_of(sample.time - start, sample.time - start + step):
            arrivals[minute] += sample.arrivals * (inside / step)
            covered[minute] += inside / MINUTE
    return tuple(arrivals), tuple(covered)


def minutes_of(begin: timedelta, end: timedelta) -> Iterator[tuple[int, timedelta]]:
    """Yield the minutes that an interval touches, each with the part of the interval inside it."""
    for minute in range(begin // MINUTE, -(-end // MINUTE)):
        yield minute, min(end, (minute + 1) * MINUTE) - max(begin, minute * MINUTE)


def _naive_notice(lines: Sequence[int]) -> tuple[str, ...]:
    if not lines:
        return ()
    return (f"{len(lines)} times without an offset, the first on line {lines[0]}: read as UTC",)


def _gap_notice(missing: int, step: timedelta, first: _Sample | None) -> tuple[str, ...]:
    if first is None:
        return ()
    return (
        f"{missing} missing steps of {_spoken(step)}, the first before line {first.line}: "
        "read as no arrivals",
    )


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


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _listed(names: Sequence[str]) -> str:
    return " and ".join(f"'{name}'" for name in names)
