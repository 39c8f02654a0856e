"""Traces of arrivals: from a CSV file to items per minute.

    time,arrivals
    1995-07-11T04:00:00Z,19
    1995-07-11T04:01:00Z,25

A file that cannot be trusted is refused with one `TraceError`. What can be put right is put
right and said so in `Trace.notices`.
"""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import MAXYEAR, MINYEAR, UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import multimode

MINUTE = timedelta(minutes=1)
STEP_MIN = timedelta(seconds=1)
STEP_MAX = timedelta(minutes=30)
ARRIVALS_MAX = 1e12
TRACE_MINUTES_MAX = 2 * 366 * 24 * 60
COLUMNS = ("time", "arrivals")


class TraceError(Exception):
    """The trace cannot be used. Names the file, the line, the value and what to do."""

    def __init__(self, path: Path, line: int | None, problem: str, fix: str) -> None:
        where = str(path) if line is None else f"{path}, line {line}"
        super().__init__(f"{where}: {problem}. {fix}.")
        self.path = path
        self.line = line
        self.problem = problem
        self.fix = fix


@dataclass(frozen=True, slots=True)
class Trace:
    """Arrivals, minute by minute.

    `arrivals[m]` are the items that came in the minute which starts `m` minutes after
    `start` (aware, UTC). `notices` say what was changed while reading, for a human.
    """

    start: datetime
    arrivals: tuple[float, ...]
    notices: tuple[str, ...] = ()

    @property
    def minutes(self) -> int:
        return len(self.arrivals)

    def time_at(self, minute: float) -> datetime:
        return self.start + timedelta(minutes=minute)


@dataclass(frozen=True, slots=True)
class _Sample:
    line: int
    time: datetime
    arrivals: float


@dataclass(frozen=True, slots=True)
class _Grid:
    """Samples at one uniform step, with what had to be assumed to see it so."""

    samples: Sequence[_Sample]
    step: timedelta
    notices: tuple[str, ...]


def load_trace(path: Path | str) -> Trace:
    """Read a CSV with the columns `time` (ISO 8601) and `arrivals` (items in that step).

    Header names may be in any case, other columns are ignored, and so are blank lines and a
    byte order mark. Times without an offset are read as UTC; steps from 1 s to 30 min become
    minutes; missing steps become zero. Each of these leaves a notice. All else raises
    `TraceError`.
    """
    path = Path(path)
    rows = _rows(path)
    header = _header(path, next(rows, None))
    naive: list[int] = []
    samples = [_sample(path, header, row, naive) for row in rows]
    _check_order(path, samples)
    grid = _grid(path, samples)
    arrivals = _per_minute(grid)
    start = samples[0].time
    return Trace(start, arrivals, (*_naive_notice(naive), *grid.notices, *_step_notice(grid.step)))


@dataclass(frozen=True, slots=True)
class _Row:
    line: int
    fields: list[str]


def _rows(path: Path) -> Iterator[_Row]:
    """Rows that are not blank, with the number of the line on which each ends."""
    reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
    try:
        for fields in reader:
            if any(field.strip() for field in fields):
                yield _Row(reader.line_num, [field.strip() for field in fields])
    except csv.Error as error:
        raise TraceError(
            path, reader.line_num, f"not a CSV row ({error})", "Save the file as plain CSV"
        ) from None


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise TraceError(path, None, f"cannot be read ({reason})", "Check the path") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        value = error.object[error.start : error.end]
        raise TraceError(
            path, line, f"{value!r} is not UTF-8 text", "Save the file as CSV in UTF-8"
        ) from None


@dataclass(frozen=True, slots=True)
class _Header:
    time: int
    arrivals: int
    width: int


def _header(path: Path, row: _Row | None) -> _Header:
    header = ",".join(COLUMNS)
    if row is None:
        raise TraceError(path, 1, "the file is empty", f"Start it with the line '{header}'")
    names = [name.lower() for name in row.fields]
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise TraceError(
            path,
            row.line,
            f"{_quoted(','.join(row.fields))} has no column {_listed(missing)}",
            f"The first line must be a header such as '{header}', separated by commas",
        )
    return _Header(names.index("time"), names.index("arrivals"), len(names))


def _sample(path: Path, header: _Header, row: _Row, naive: list[int]) -> _Sample:
    if len(row.fields) != header.width:
        raise TraceError(
            path,
            row.line,
            f"{_quoted(','.join(row.fields))} has {len(row.fields)} fields, the header has "
            f"{header.width}",
            "Write one value for each column, with a point in decimals",
        )
    time = _time(path, row.line, row.fields[header.time], naive)
    return _Sample(row.line, time, _arrivals(path, row.line, row.fields[header.arrivals]))


def _time(path: Path, line: int, text: str, naive: list[int]) -> datetime:
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is None:
            naive.append(line)
            time = time.replace(tzinfo=UTC)
        time = time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise TraceError(
            path, line, f"{_quoted(text)} is not a time", "Write ISO 8601: 1995-07-11T04:00:00Z"
        ) from None
    if not MINYEAR < time.year < MAXYEAR:
        what = f"{_quoted(text)} lies at the end of the calendar, where no time can be added"
        raise TraceError(path, line, what, f"Use years from {MINYEAR + 1} to {MAXYEAR - 1}")
    return time


def _arrivals(path: Path, line: int, text: str) -> float:
    fix = "Write the number of items in that step, such as 19"
    try:
        value = float(text.replace("_", "?"))  # Python would take 1_000; nobody else would
    except ValueError:
        raise TraceError(path, line, f"arrivals {_quoted(text)} is not a number", fix) from None
    if not math.isfinite(value):
        raise TraceError(path, line, f"arrivals {_quoted(text)} is not a finite number", fix)
    if value < 0:
        raise TraceError(path, line, f"arrivals {_quoted(text)} is negative", fix)
    if value > ARRIVALS_MAX:
        raise TraceError(
            path, line, f"arrivals {_quoted(text)} is above {ARRIVALS_MAX:.0e}", "Check the unit"
        )
    return value


def _check_order(path: Path, samples: Sequence[_Sample]) -> None:
    if not samples:
        raise TraceError(path, 2, "there is a header and no row", "Add at least one row")
    for before, sample in pairwise(samples):
        if sample.time == before.time:
            raise TraceError(
                path,
                sample.line,
                f"the time {_iso(sample.time)} stands already on line {before.line}",
                "Add up the two, or delete one",
            )
        if sample.time < before.time:
            raise TraceError(
                path,
                sample.line,
                f"the time {_iso(sample.time)} is before {_iso(before.time)} on line {before.line}",
                "Sort the rows by time",
            )


def _grid(path: Path, samples: Sequence[_Sample]) -> _Grid:
    """Take the commonest distance as the step; others must be whole multiples of it: gaps."""
    if len(samples) == 1:
        return _Grid(samples, MINUTE, ("one row only: read as the arrivals of one minute",))
    step = min(multimode(after.time - before.time for before, after in pairwise(samples)))
    if not STEP_MIN <= step <= STEP_MAX:
        raise TraceError(
            path,
            samples[1].line,
            f"the rows are {_spoken(step)} apart",
            "Give rows from 1 s to 30 min apart",
        )
    _check_length(path, samples, step)
    missing = 0
    first_gap: _Sample | None = None
    for before, after in pairwise(samples):
        steps, rest = divmod(after.time - before.time, step)
        if rest:
            raise TraceError(
                path,
                after.line,
                f"{_iso(after.time)} is {_spoken(after.time - before.time)} after the row before, "
                f"where most rows are {_spoken(step)} apart",
                "Keep one step in the whole file",
            )
        missing += steps - 1
        first_gap = first_gap or (after if steps > 1 else None)
    return _Grid(samples, step, _gap_notice(missing, step, first_gap))


def _check_length(path: Path, samples: Sequence[_Sample], step: timedelta) -> None:
    minutes = (samples[-1].time + step - samples[0].time) / MINUTE
    if minutes > TRACE_MINUTES_MAX:
        raise TraceError(
            path,
            samples[-1].line,
            f"{_iso(samples[-1].time)} ends a trace of {minutes:,.0f} minutes, more than "
            f"{TRACE_MINUTES_MAX:,}",
            "Check the year, or cut the file",
        )


def _per_minute(grid: _Grid) -> tuple[float, ...]:
    """Spread every sample evenly over its step, and sum what falls into each minute."""
    start = grid.samples[0].time
    last = grid.samples[-1].time + grid.step - start
    arrivals = [0.0] * -(-last // MINUTE)
    for sample in grid.samples:
        begin = sample.time - start
        end = begin + grid.step
        for minute in range(begin // MINUTE, -(-end // MINUTE)):
            inside = min(end, (minute + 1) * MINUTE) - max(begin, minute * MINUTE)
            arrivals[minute] += sample.arrivals * (inside / grid.step)
    return tuple(arrivals)


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
