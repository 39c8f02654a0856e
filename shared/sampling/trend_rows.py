"""One event on one day as people and the dashboard see it: as JSON, and as a row of a table.

PartitionKey = kind, event, measurement and dimensions; RowKey = date. So a series is one range.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import date
from typing import Any

KEY_LENGTH_MAX = 400
"""Characters; a key holds 1 KiB of UTF-16."""
TEXT_LENGTH_MAX = 16_000
NOT_IN_KEYS = frozenset("/\\#?%!")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Trend:
    """Sums are in the unit of the measurement; without one each record counts 1.

    ``date`` is ISO; rates are in percent, shares between 0 and 1; intervals hold the truth in about
    95 % of cases, as far as sampling goes. ``quarantined`` counts lines of that date's files: an
    unread line has no event.
    """

    date: str
    event: str
    kind: str
    measurement: str = ""
    dimensions: Mapping[str, str] = field(default_factory=dict)
    records: int = 0
    raw_sum: float | None = None
    """As sums below: None where no record has the measurement."""
    sampling_rate: float | None = None
    adjusted_count: float = 0
    adjusted_count_se: float = 0
    adjusted_count_low: float = 0
    adjusted_count_high: float = 0
    adjusted_sum: float | None = None
    adjusted_sum_se: float | None = None
    adjusted_sum_low: float | None = None
    adjusted_sum_high: float | None = None
    n_eff: float = 0
    """As many records of equal weight would be as sure."""
    weight_max: float = 0
    duplicates_removed: int = 0
    quarantined: int = 0
    late_share: float | None = None
    complete: bool = True
    """False where files of that date have not been read, or are still being written."""
    warnings: tuple[str, ...] = ()
    verdict: str = ""
    reason: str = ""
    figure: str = "count"
    """Which figure the verdict is about: ``count``, ``sum`` or ``count and sum``."""
    count_verdict: str = ""
    sum_verdict: str = ""
    """Empty where nothing was measured. Both are empty in rows of before there were these."""
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @property
    def series(self) -> tuple[str, str, str, tuple[tuple[str, str], ...]]:
        """What it has in common with the same event's other days."""
        return self.kind, self.event, self.measurement, tuple(sorted(self.dimensions.items()))

    @property
    def name(self) -> str:
        """The series in words, such as ``checkout Amount country=CH``."""
        dimensions = [f"{name}={value}" for name, value in sorted(self.dimensions.items())]
        return " ".join(part for part in (self.event, self.measurement, *dimensions) if part)


def as_json(trend: Trend) -> str:
    """One line; what has no lasting form, such as infinity, is null."""
    return json.dumps(_finite(asdict(trend)), ensure_ascii=False, allow_nan=False)


def from_json(line: str | bytes) -> Trend:
    """Raises KeyError, TypeError or ValueError for what is no such line."""
    found = json.loads(line)
    return Trend(**{**found, "warnings": tuple(found["warnings"])})


def trend_row(trend: Trend) -> Row:
    """The row of the table; none of its values is null, as tables know none."""
    fields = _finite(asdict(trend))
    texts = {
        name: json.dumps(fields.pop(name), ensure_ascii=False)
        for name in ("dimensions", "warnings", "evidence")
    }
    row = {name: value for name, value in {**fields, **texts}.items() if value is not None}
    cut = {name: v[:TEXT_LENGTH_MAX] for name, v in row.items() if isinstance(v, str)}
    return {**row, **cut, **keys(trend)}


def keys(trend: Trend) -> dict[str, str]:
    dimensions = [f"{name}={value}" for name, value in sorted(trend.dimensions.items())]
    parts = [trend.kind, trend.event, trend.measurement, *dimensions]
    return {"PartitionKey": _key("|".join(parts)), "RowKey": _key(trend.date)}


UNREADABLE = "unreadable"
"""The verdict of a trend that stands in for a row that cannot be read; never written."""
TEXTS = ("date", "event", "kind", "measurement", "verdict", "reason")
NUMBERS = ("raw_sum", "adjusted_count", "adjusted_sum", "sampling_rate", "records")


def unreadable_trend(row: Mapping[str, Any], error: Exception) -> Trend:
    """The row by its keys, and why it cannot be read."""
    reason = f"{type(error).__name__}: {error}"[:300]
    place = f"{row['PartitionKey']}/{row['RowKey']}"
    why = f"row {place!r} of table Trends cannot be read ({reason})"
    return Trend(row["RowKey"], row["PartitionKey"], "", verdict=UNREADABLE, reason=why)


def trend_of(row: Mapping[str, Any]) -> Trend:
    """Raises KeyError, TypeError or ValueError for a row that is none."""
    names = {name for name in Trend.__slots__ if name in row}
    found = {name: row[name] for name in names}
    found["dimensions"] = json.loads(row["dimensions"])
    found["warnings"] = tuple(json.loads(row["warnings"]))
    found["evidence"] = json.loads(row["evidence"])
    date.fromisoformat(found["date"])
    return _checked(Trend(**found))


def _checked(trend: Trend) -> Trend:
    """Raises TypeError for a value that pages could do nothing with."""
    kinds = {**dict.fromkeys(TEXTS, str), **dict.fromkeys(NUMBERS, float | int | None)}
    kinds |= {"dimensions": dict, "evidence": dict}
    for name, kind in kinds.items():
        if not isinstance(value := getattr(trend, name), kind):
            raise TypeError(f"{name} is a {type(value).__name__}")
    return trend


def _key(text: str) -> str:
    """What may stand in a key; one that is too long ends in a hash of all of it."""
    escaped = "".join(
        f"!{ord(c):04x}" if c in NOT_IN_KEYS or not c.isprintable() else c for c in text
    )
    if len(escaped) <= KEY_LENGTH_MAX:
        return escaped
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{escaped[: KEY_LENGTH_MAX - 33]}!{digest}"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(found) for name, found in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(found) for found in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
