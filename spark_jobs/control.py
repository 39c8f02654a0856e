"""A control series from a CSV file: what is not sampled, such as the messages of a queue a day."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from datetime import date

from spark_jobs.errors import BadInput

COLUMNS = {"date", "value"}


def controls_of(text: str, where: str) -> Mapping[str, Mapping[str, float]]:
    """By event, and under an empty name for all others, by date.

    Columns date and value, and event where it differs by event. Raises BadInput with file and line.
    """
    rows = csv.DictReader(io.StringIO(text.removeprefix("\ufeff")))
    missing = COLUMNS - set(rows.fieldnames or ())
    if missing:
        raise BadInput(f"--control {where}: has no column {' and '.join(sorted(missing))}")
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        try:
            day, value = date.fromisoformat(row["date"]), float(row["value"])
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"{row['value']} is no number of at least 0")
        except (ValueError, TypeError) as error:
            raise BadInput(f"--control {where}, line {rows.line_num}: {error}") from error
        found.setdefault(row.get("event") or "", {})[day.isoformat()] = value
    if not found:
        raise BadInput(f"--control {where}: holds no day")
    return found
