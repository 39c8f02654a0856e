"""Finds the times and the arrivals in a table of exported metrics.

The arrivals are the only column of numbers, or the one named `arrivals`, `total` or `sum`. If the
rows belong to several series, or several columns remain, the user must choose with `--series`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from backtest.traces.files import AZ_JSON, Refused, Table
from backtest.traces.values import is_absent, is_time, is_value

TIME_NAMES = frozenset(
    ("time", "timestamp", "timegenerated", "date", "datetime", "date/time", "ts", "epoch", "zeit")
)
PREFERRED = ("arrivals", "total", "sum")
NAMING = frozenset(("metric", "metricname", "name", "label", "series", "unit", "unitname"))
"""Columns whose text says what the numbers of the other columns are."""

NOT_ARRIVALS = re.compile(
    r"average|\bavg|\bmean\b|minimum|maximum|(?<!per )(?<!/)\bmin\b|\bmax\b|percent|\bcpu|memory"
    r"|active ?messages?|messages? ready|unack|\blag\b|dead ?-?letter|scheduled ?messages?"
    r"|message ?count|approximate|backlog|queue ?(length|depth)|outgoing|completed?(message|\b)"
    r"|bytes|milliseconds|count of samples",
    re.IGNORECASE,
)
CLOCK = re.compile(r"\d{1,2}:\d\d(:\d\d([.,]\d+)?)?( [AP]M)?", re.IGNORECASE)
"""The time of day in a column beside that of the date."""

CLOUDWATCH = ("full label", "label", "stat", "statistic")
"""The rows above the times of the CSV of CloudWatch that tell what its columns are."""

PER_SECOND = re.compile(r"per ?second|\w/s\b|per ?sec\b", re.IGNORECASE)
HEADER_ROWS_MAX = 50
EXAMINED_ROWS = 2_000
SHOWN_MAX = 12
EXPORTS = "Give a CSV file with the columns time,arrivals, or an export that docs/traffic.md lists"


Rows = Sequence[tuple[int, list[str]]]


@dataclass(frozen=True, slots=True)
class Column:
    """One series. Each cell has the number of the row, the text of the time and of the value.

    `time` is the name of the column of times, and `place` what a row is called: `line` or `row`.
    """

    name: str
    time: str
    place: str
    comma_decimal: bool
    cells: Sequence[tuple[int, str, str]]


@dataclass(frozen=True, slots=True)
class _Candidate:
    name: str
    column: int
    labels: tuple[str, ...]


def find_column(table: Table, series: str | None, *, per_second: bool = False) -> Column:
    """The series of that name, or the only one. Raises `Refused`."""
    if not table.rows:
        what = "the file is empty" if table.place == "line" else "the file holds no values"
        fix = "Start it with the line 'time,arrivals'" if table.place == "line" else EXPORTS
        raise Refused(f"{table.place} 1", what, fix)
    names, rows = _headed(table)
    time = _time_column(table, names, rows)
    if not rows:
        what = "the file has a header but no rows"
        raise Refused(f"{table.place} 2", what, "Add at least one row")
    for number, fields in rows:
        if len(fields) != len(names):
            what = f"{quoted(','.join(fields))} has {len(fields)} fields, the header has "
            fix = "Write one value for each column, with a point in decimals"
            raise Refused(f"{table.place} {number}", f"{what}{len(names)}", fix)
    chosen, kept = _chosen(table, names, rows, time, series, per_second=per_second)
    clock = next((at for at, field in enumerate(rows[0][1]) if CLOCK.fullmatch(field)), time)
    cells = [
        (number, " ".join(fields[at] for at in sorted({time, clock})), fields[chosen.column])
        for number, fields in kept
    ]
    return Column(chosen.name, names[time], table.place, table.comma_decimal, cells)


def _plain(name: str) -> str:
    return re.sub(r"\[.*?\]|\(.*?\)|[\s_@$]", "", name).casefold()


def _headed(table: Table) -> tuple[list[str], Rows]:
    """Names of the columns, and the rows below them."""
    rows = list(table.rows)
    for at, (_, fields) in enumerate(rows[:HEADER_ROWS_MAX]):
        if any(_plain(name) in TIME_NAMES for name in fields) and not any(map(is_time, fields)):
            return fields, rows[at + 1 :]
    for at, (_, fields) in enumerate(rows[:HEADER_ROWS_MAX]):
        below = [row for _, row in rows[at : at + 3] if len(row) == len(fields)]
        if any(all(is_time(row[column]) for row in below) for column in range(len(fields))):
            told = [row for _, row in rows[:at] if row[0].casefold() in CLOUDWATCH]
            header = rows[at - 1][1] if at else []
            if told and {len(row) for row in told} == {len(fields)}:
                header = [" ".join(dict.fromkeys(texts)) for texts in zip(*told, strict=True)]
            if len(header) != len(fields) or any(map(is_time, header)):
                header = [f"column {number}" for number in range(1, len(fields) + 1)]
            return header, rows[at:]
    return rows[0][1], rows[1:]


def _time_column(table: Table, names: Sequence[str], rows: Rows) -> int:
    named = [at for at, name in enumerate(names) if _plain(name) in TIME_NAMES]
    first = rows[0][1] if rows else []
    by_content = [at for at, field in enumerate(first[: len(names)]) if is_time(field)]
    found = [at for at in by_content if at in named] or named or by_content
    if found:
        return found[0]
    number = table.rows[0][0]
    where = f"{table.place} {number}" if number else None
    if any(re.match(r"PT?\d", field) for field in names):
        what = "a summary of az without its values"
        raise Refused(where, what, f"Export the values: {AZ_JSON}")
    raise Refused(where, f"{quoted(','.join(names))} has no column of times", EXPORTS)


def _chosen(
    table: Table,
    names: Sequence[str],
    rows: Rows,
    time: int,
    series: str | None,
    *,
    per_second: bool,
) -> tuple[_Candidate, Rows]:
    sample = list(islice(rows, 0, None, max(1, len(rows) // EXAMINED_ROWS)))
    values, texts = _kinds(names, sample, time)
    exact = next((at for at in values if _plain(names[at]) == PREFERRED[0]), None)
    if exact is not None and series is None:
        return _Candidate(names[exact], exact, ()), rows
    if not values:
        raise Refused(None, *_no_numbers(table, names, sample, time))
    labels = [at for at in texts if _divides(rows, at)]
    candidates = _candidates(names, rows, values, labels)
    found = _named(candidates, series) if series is not None else _usual(candidates, names)
    if len(found) != 1:
        raise Refused(None, *_ambiguous(found or candidates, series, missing=not found))
    (one,) = found
    kept = [row for row in rows if _labels(row[1], labels) == one.labels]
    told = {_plain(names[at]): kept[0][1][at] for at in texts if _plain(names[at]) in NAMING}
    if series is None:
        measure = " ".join((*told.values(), names[one.column]))
        if told and names[one.column].casefold() in ("count", "samplecount"):
            measure += " of samples"
        _refuse_other_measures(one.name, measure, per_second=per_second)
    of = [text for name, text in told.items() if text and text not in one.labels and name != "unit"]
    return (replace(one, name=f"{one.name} of {of[0]}") if of else one), kept


def _labels(fields: Sequence[str], labels: Sequence[int]) -> tuple[str, ...]:
    return tuple(fields[at] for at in labels)


def _candidates(
    names: Sequence[str], rows: Rows, values: Sequence[int], labels: Sequence[int]
) -> Sequence[_Candidate]:
    """All series that have a value."""
    found = {
        (_labels(fields, labels), at): None
        for _, fields in rows
        for at in values
        if not is_absent(fields[at])
    }
    return [
        _Candidate(" ".join((*filter(None, group), names[at])), at, group)
        for group, at in sorted(found)
    ]


def _refuse_other_measures(name: str, told: str, *, per_second: bool) -> None:
    if PER_SECOND.search(told):
        if per_second:
            return
        raise Refused(None, f"{told.strip()!r} is a rate", "Add --per-second to read items")
    if level := NOT_ARRIVALS.search(told.replace("_", " ")):
        what = f"{told.strip()!r}: {level[0]!r} is not a number of arrivals"
        fix = "Export the arrivals, such as IncomingMessages with the aggregation Total, or read "
        raise Refused(None, what, f"{fix}it as arrivals with --series {name!r}")


def _kinds(names: Sequence[str], sample: Rows, time: int) -> tuple[list[int], list[int]]:
    """The columns of numbers and of other texts: neither times nor columns without a value."""
    numbers: list[int] = []
    texts: list[int] = []
    for at in range(len(names)):
        present = [fields[at] for _, fields in sample if not is_absent(fields[at])]
        is_index = not names[at]  # as pandas writes it
        if at == time or is_index or (not present and _plain(names[at]) != PREFERRED[0]):
            continue
        times = sum(is_time(text) and not is_value(text) for text in present[:9])
        if 2 * times > len(present[:9]) or (present and CLOCK.fullmatch(present[0])):
            continue
        numeric = 2 * sum(map(is_value, present)) > len(present)
        is_number = numeric or _plain(names[at]) == PREFERRED[0]
        (numbers if is_number else texts).append(at)
    return numbers, texts


def _divides(rows: Rows, at: int) -> bool:
    """Whether a column of texts names series: some of its texts repeat, and there are several."""
    return 2 <= len({fields[at] for _, fields in rows}) <= len(rows) / 2


def _usual(candidates: Sequence[_Candidate], names: Sequence[str]) -> Sequence[_Candidate]:
    if len({one.column for one in candidates}) > 1:
        preferred = [one for one in candidates if _plain(names[one.column]) in PREFERRED]
        return preferred or candidates
    return candidates


def _named(candidates: Sequence[_Candidate], series: str) -> Sequence[_Candidate]:
    wanted = series.casefold()
    exact = [one for one in candidates if one.name.casefold() == wanted]
    return exact or [one for one in candidates if wanted in one.name.casefold()]


def _ambiguous(
    candidates: Sequence[_Candidate], series: str | None, *, missing: bool
) -> tuple[str, str]:
    shown = [repr(one.name) for one in candidates[:SHOWN_MAX]]
    shown += [f"{len(candidates) - SHOWN_MAX} more"] if len(candidates) > SHOWN_MAX else []
    if missing:
        return f"has no series {series!r}", f"Choose with --series one of {', '.join(shown)}"
    what = f"several series could be the arrivals: {', '.join(shown)}"
    return what, f"Choose one with --series, such as --series {shown[0]}"


def _no_numbers(table: Table, names: Sequence[str], sample: Rows, time: int) -> tuple[str, str]:
    for at, field in enumerate(sample[0][1]):
        if at != time and re.match(r"[+-]?\d", field):
            what = f"{names[at]} holds {quoted(field)}, which is not a number"
            return what, "Export plain numbers without units (in Grafana: Formatted data off)"
    return f"no column of {table.form} holds numbers beside {names[time]!r}", EXPORTS


def quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
