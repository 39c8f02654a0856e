"""Reads a control series: daily figures that are not sampled, such as the number of messages of a
queue.

The file is CSV, or JSON as ``az monitor metrics list`` prints a resource's platform metric.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from datetime import date
from typing import Any

COLUMNS = {"date", "value"}
AGGREGATIONS = ("total", "count", "average", "maximum")
"""The aggregates of a metric. The first one that the file has is used. Its value is null in an
interval without a figure.
"""


class BadControl(ValueError):
    """The text is no control series. The message says where and why."""


Controls = Mapping[str, Mapping[str, float]]
"""Figures by event and date. Figures under an empty name apply to all other events."""


def controls_of(text: str) -> Controls:
    """Parses the text of a file. A CSV file has the columns date and value, and the column event if
    figures differ by event. Raises BadControl, which names the line.
    """
    text = text.removeprefix("\ufeff")
    controls = {"": _platform_metric(text)} if text.lstrip()[:1] == "{" else _csv(text)
    if not any(controls.values()):
        raise BadControl("holds no day")
    return controls


def _csv(text: str) -> Controls:
    rows = csv.DictReader(io.StringIO(text))
    missing = COLUMNS - set(rows.fieldnames or ())
    if missing:
        raise BadControl(f"has no column {' and '.join(sorted(missing))}")
    controls: dict[str, dict[str, float]] = {}
    for row in rows:
        try:
            day, value = date.fromisoformat(row["date"]).isoformat(), _figure(row["value"])
            figures = controls.setdefault(row.get("event") or "", {})
            if day in figures:
                raise ValueError(f"a second figure for {day}; write one for each day")
            if any(row.get(None, ())):  # such as 1,200 without quotation marks
                raise ValueError("has more fields than the header; write 1200, not 1,200")
        except (ValueError, TypeError) as error:
            raise BadControl(f"line {rows.line_num}: {error}") from error
        figures[day] = value
    return controls


def _platform_metric(text: str) -> Mapping[str, float]:
    """Adds up the intervals of each UTC day, over all time series of the file's only metric."""
    days: dict[str, float] = {}
    try:
        metrics = json.loads(text)["value"]
        if len(metrics) != 1:
            raise ValueError(f"holds {len(metrics)} metrics; ask for one")
        for point in [point for series in metrics[0]["timeseries"] for point in series["data"]]:
            figures = [point[name] for name in AGGREGATIONS if point.get(name) is not None]
            if figures:
                day = date.fromisoformat(point["timeStamp"][:10]).isoformat()
                days[day] = days.get(day, 0.0) + _figure(figures[0])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"has no {error}" if isinstance(error, KeyError) else error
        raise BadControl(f"is not what `az monitor metrics list` prints: {reason}") from error
    return days


def _figure(value: Any) -> float:
    if "_" in str(value) or not str(value).isascii():
        raise ValueError(f"{value!r} is not a number in digits 0 to 9")
    figure = float(value)
    if not math.isfinite(figure) or figure < 0:
        raise ValueError(f"{value} is not a number of at least 0")
    return figure
