"""Reads the CPU percentage and the instances of a plan as work, so that rules on CPU can be judged.

    time,cpu,instances
    2026-11-02T00:00:00Z,62.5,4

An instance that is busy for a minute does one instance-minute of work, so this plan did 2.5. In a
replay, an instance can do one instance-minute a minute, and work beyond that waits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

import numpy as np

from backtest.errors import BacktestError
from backtest.traces.files import Refused, read_table
from backtest.traces.values import is_absent, order_of_dates, time_of
from backtest.workload import Workload
from shared.autoscaling import Resource
from shared.autoscaling.sources import Source
from shared.values.text import number

TIME = re.compile(r"time|date")
VALUE = re.compile(r"observedmetricvalue|cpu")
INSTANCES = re.compile(r"observedcapacity|instance|capacity")
INSTANCES_MAX = 1000
MINUTE = timedelta(minutes=1)
MINUTES_MAX = 2 * 366 * 24 * 60

Columns = dict[str, dict[datetime, float]]
Cell = tuple[str, str, str, str]
"""Place, column, time and value."""


def is_cpu(source: Source, resource: Resource) -> bool:
    """True if the source is the average CPU percentage of the instances of the target."""
    series = source.series
    if series is None or series.aggregation != "average":
        return False
    plan = series.resource_id.rstrip("/").lower()
    is_target = plan.endswith(f"/serverfarms/{resource.target.name}".lower())
    return is_target and series.metric.lower() == "cpupercentage"


def load_cpu(path: Path, zone: tzinfo | None = None) -> Workload | None:
    """The work by minute; None if the file does not have CPU and instances in two columns."""
    columns = _columns(path, zone)
    found = [columns.get(pattern.pattern, {}) for pattern in (VALUE, INSTANCES)]
    return _workload(path, *found) if all(found) else None


def instances_of(path: Path) -> dict[datetime, float]:
    """The instances by minute. Raises BacktestError, also if the file has none."""
    found = _columns(path).get(INSTANCES.pattern, {})
    _check_range(path, "instances", found, 1, INSTANCES_MAX)
    if not found:
        raise BacktestError(
            f"{path}: no column of instances. It needs a row with names, such as time,instances"
        )
    return found


def _columns(path: Path, zone: tzinfo | None = None) -> Columns:
    columns: Columns = {}
    cells = list(_cells(path))
    day_first, _ = order_of_dates([time for _, _, time, _ in cells])

    def read(text: str) -> datetime:
        at = time_of(text, day_first=day_first)
        return (at if at.tzinfo else at.replace(tzinfo=zone or UTC)).astimezone(UTC)

    for place, name, time, value in cells:
        for pattern in (VALUE, INSTANCES):
            if pattern.match(_letters(name)) and not is_absent(value):
                _add(columns.setdefault(pattern.pattern, {}), f"{path}, {place}", time, value, read)
    return columns


def _letters(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.lower())


def _cells(path: Path) -> Iterator[Cell]:
    """All cells; none if the file is of another form, so that the reader of traces answers."""
    try:
        table = read_table(path)
    except Refused:
        return
    names = table.rows[0][1] if table.rows else []
    times = [at for at, name in enumerate(names) if TIME.match(name.lower())]
    counted = any(INSTANCES.match(_letters(name)) for name in names)
    metric = names.index("metric") if "metric" in names and "average" in names else None
    for line, row in table.rows[1:] if times else ():
        if counted and len(row) != len(names):  # such as 62,5
            what = f"{len(row)} fields, the header has {len(names)}"
            raise BacktestError(
                f"{path}, {table.place} {line}: {what}. Write decimals with a point"
            )
        for name, value in zip(names, row, strict=False):
            shown = row[metric] if metric is not None and name == "average" else name
            yield f"{table.place} {line}", shown, row[times[0]], value


def _add(
    column: dict[datetime, float],
    place: str,
    time: str,
    value: str,
    read: Callable[[str], datetime],
) -> None:
    try:
        at, parsed = read(time), number(value)
    except (ValueError, OverflowError):
        raise BacktestError(
            f"{place}: {time!r}, {value!r}: must be a time, as 2026-11-02T00:00:00Z, and a number"
        ) from None
    minute = at.replace(second=0, microsecond=0)
    if minute in column:
        raise BacktestError(f"{place}: a second value for {time}. Export the metric of one rule")
    column[minute] = parsed


def _check_range(path: Path, name: str, column: dict[datetime, float], low: int, high: int) -> None:
    for minute, value in column.items():
        if not (math.isfinite(value) and low <= value <= high):
            raise BacktestError(f"{path}: {minute}: {name} = {value:g}: must be {low} to {high}")


def _workload(
    path: Path, values: dict[datetime, float], instances: dict[datetime, float]
) -> Workload:
    _check_range(path, "CPU", values, 0, 100)
    _check_range(path, "instances", instances, 1, INSTANCES_MAX)
    starts = sorted(values.keys() & instances.keys())
    span = (max(*values, *instances) - min(*values, *instances)) // MINUTE + 1
    if span > MINUTES_MAX or 2 * len(starts) < span:
        raise BacktestError(
            f"{path}: {len(starts)} of {span} minutes have both CPU and instances: export one "
            "value a minute (--interval PT1M)"
        )
    work = np.array([values[minute] / 100 * instances[minute] for minute in starts])
    notices = [
        f"read as CPU and instances, {len(starts):,} minutes from {starts[0]:%d %b %Y %H:%M} UTC"
    ]
    if missing := span - len(starts):
        notices.append(f"minutes without a value: {missing}, cut out; the next follow at once")
    if full := sum(values[minute] >= 100 for minute in starts):
        notices.append(f"minutes at 100 % CPU: {full}; more work may have waited than is known")
    return Workload(path.name, work, starts, tuple(notices), missing, round(instances[starts[0]]))
