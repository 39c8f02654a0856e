"""A control series: what is not sampled, such as the messages of a queue a day.

From a CSV file, or from JSON as `az monitor metrics list` prints a resource's platform metrics.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_jobs.errors import BadInput
from spark_jobs.read.sources import reason_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = {"date", "value"}
AGGREGATIONS = ("total", "count", "average", "maximum")
"""The first that an answer has; a day without a figure has null."""

Controls = Mapping[str, Mapping[str, float]]
"""By event, and under an empty name for all others, by date."""


def read_controls(location: str, spark: Callable[[], SparkSession]) -> Controls:
    """Of a local file, or of one that Spark reaches, such as abfss://…. Raises BadInput."""
    if "://" in location:
        text = _by_spark(location, spark())
    else:
        try:
            text = Path(location).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"--control {location}: {error}") from error
    return controls_of(text, location)


def _by_spark(location: str, spark: SparkSession) -> str:
    try:
        found = spark.read.text(location, wholetext=True).collect()
    except Exception as error:  # the JVM's, by way of py4j
        raise BadInput(f"--control {location}: {reason_of(error)}") from error
    if len(found) != 1:
        raise BadInput(f"--control {location}: name one file")
    return str(found[0][0])


def controls_of(text: str, where: str) -> Controls:
    """Raises BadInput with file and line.

    A CSV file has columns date and value, and event where it differs by event.
    """
    if text.lstrip("\ufeff \n\r\t").startswith("{"):
        return {"": _platform_metric(text, where)}
    return _csv(text, where)


def _csv(text: str, where: str) -> Controls:
    rows = csv.DictReader(io.StringIO(text.removeprefix("\ufeff")))
    missing = COLUMNS - set(rows.fieldnames or ())
    if missing:
        raise BadInput(f"--control {where}: has no column {' and '.join(sorted(missing))}")
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        try:
            day, value = date.fromisoformat(row["date"]), _figure(row["value"])
        except (ValueError, TypeError) as error:
            raise BadInput(f"--control {where}, line {rows.line_num}: {error}") from error
        found.setdefault(row.get("event") or "", {})[day.isoformat()] = value
    if not found:
        raise BadInput(f"--control {where}: holds no day")
    return found


def _platform_metric(text: str, where: str) -> Mapping[str, float]:
    """Sums by UTC day over all time series of the one metric, whatever their interval."""
    try:
        metrics = json.loads(text.removeprefix("\ufeff"))["value"]
        if len(metrics) != 1:
            raise ValueError(f"holds {len(metrics)} metrics; ask for one")
        found: dict[str, float] = {}
        for series in metrics[0]["timeseries"]:
            for point in series["data"]:
                value = _aggregated(point)
                if value is not None:
                    day = date.fromisoformat(point["timeStamp"][:10]).isoformat()
                    found[day] = found.get(day, 0.0) + _figure(value)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        why = f"has no {error}" if isinstance(error, KeyError) else error
        raise BadInput(
            f"--control {where}: is not what `az monitor metrics list` prints: {why}"
        ) from error
    if not found:
        raise BadInput(f"--control {where}: holds no day")
    return found


def _aggregated(point: Mapping[str, Any]) -> Any:
    return next((point[name] for name in AGGREGATIONS if point.get(name) is not None), None)


def _figure(value: Any) -> float:
    found = float(value)
    if not math.isfinite(found) or found < 0:
        raise ValueError(f"{value} is no number of at least 0")
    return found
