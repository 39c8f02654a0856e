"""`Trend`, the figures of one event on one day, as JSON and as a row of the table ``Trends``.

The partition key consists of kind, event, measurement and dimensions, and the row key is the date,
so that each series is one partition. Trends that report a loss are also in a partition of alarms,
in the order of their dates, so that the notifier need not read all series.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

KEY_LENGTH_MAX = 400
"""The most characters of a key. The service allows 1 KiB of UTF-16."""
TEXT_LENGTH_MAX = 16_000
NOT_IN_KEYS = frozenset("/\\#?%!")
ALARMS = "!alarms"
ALARMS_UNTIL = "!until"
"""The row of the partition ``ALARMS`` whose ``date`` is the last date that the job has written.
Older versions of the job write neither this row nor alarms.
"""
COUNTS = ("records", "duplicates_removed", "quarantined")
"""Whole numbers. The client for tables writes an int with 32 bits, so rows have counts from
``INT32_END`` on as floating-point numbers, which are exact up to 2⁵³.
"""
INT32_END = 2**31

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Trend:
    """The figures of one series on one day.

    ``date`` is in ISO format. Sums are in the unit of the measurement; without a measurement, each
    record counts as 1. Rates are in percent, shares are between 0 and 1. Intervals contain the true
    value in about 95 % of cases. They account for sampling only. ``quarantined`` counts unreadable
    lines in all files of the date, because an unreadable line belongs to no event.
    """

    date: str
    event: str
    kind: str
    measurement: str = ""
    dimensions: Mapping[str, str] = field(default_factory=dict)
    records: int = 0
    raw_sum: float | None = None
    """None if no record has the measurement, as for the other sums."""
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
    """The number of records of equal weight that would have the same uncertainty."""
    weight_max: float = 0
    duplicates_removed: int = 0
    quarantined: int = 0
    late_share: float | None = None
    complete: bool = True
    """False if files of the date were not read or are still being written."""
    warnings: tuple[str, ...] = ()
    verdict: str = ""
    reason: str = ""
    figure: str = "count"
    """The figure to which the verdict applies: ``count``, ``sum`` or ``count and sum``."""
    count_verdict: str = ""
    sum_verdict: str = ""
    """Empty for a series without a measurement. Rows of older versions have neither
    ``count_verdict`` nor ``sum_verdict``.
    """
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @property
    def series(self) -> tuple[str, str, str, tuple[tuple[str, str], ...]]:
        """The identity of the series, which all its days share."""
        return self.kind, self.event, self.measurement, tuple(sorted(self.dimensions.items()))

    @property
    def is_readable(self) -> bool:
        """False for the trend that is returned instead of an unreadable row."""
        return self.verdict != UNREADABLE

    @property
    def name(self) -> str:
        """The name of the series, such as ``checkout Amount country=CH``."""
        dimensions = [f"{name}={value}" for name, value in sorted(self.dimensions.items())]
        return " ".join(part for part in (self.event, self.measurement, *dimensions) if part)


def as_json(trend: Trend) -> str:
    """The trend as one line of JSON. Infinity and NaN become null."""
    return json.dumps(_finite(asdict(trend)), ensure_ascii=False, allow_nan=False)


def trend_row(trend: Trend) -> Row:
    """The row of the table. Null values are left out, because tables do not support them."""
    fields = _finite(asdict(trend))
    texts = {
        name: json.dumps(fields.pop(name), ensure_ascii=False)
        for name in ("dimensions", "warnings", "evidence")
    }
    row = {name: value for name, value in {**fields, **texts}.items() if value is not None}
    cut = {name: v[:TEXT_LENGTH_MAX] for name, v in row.items() if isinstance(v, str)}
    counts = {name: float(row[name]) for name in COUNTS if row[name] >= INT32_END}
    return {**row, **cut, **counts, **keys(trend)}


def keys(trend: Trend) -> dict[str, str]:
    return {"PartitionKey": _key(_name(trend)), "RowKey": _key(trend.date)}


def alarm_keys(trend: Trend) -> dict[str, str]:
    return {"PartitionKey": ALARMS, "RowKey": _key(f"{trend.date}|{_name(trend)}")}


def _name(trend: Trend) -> str:
    dimensions = [f"{name}={value}" for name, value in sorted(trend.dimensions.items())]
    return "|".join([trend.kind, trend.event, trend.measurement, *dimensions])


UNREADABLE = "unreadable"
"""The verdict of a trend that is not readable. It is never stored."""


def unreadable_trend(row: Mapping[str, Any], error: Exception) -> Trend:
    """A trend with the keys of an unreadable row, and the reason why it cannot be read."""
    reason = f"{type(error).__name__}: {error}"[:300]
    place = f"{row['PartitionKey']}/{row['RowKey']}"
    why = f"row {place!r} of table Trends cannot be read ({reason})"
    return Trend(row["RowKey"], row["PartitionKey"], "", verdict=UNREADABLE, reason=why)


def _key(text: str) -> str:
    """The text, in which characters that keys must not have are escaped. A long key ends in a
    hash."""
    escaped = "".join(
        f"!{ord(c):04x}" if c in NOT_IN_KEYS or not c.isprintable() else c for c in text
    )
    if len(escaped) <= KEY_LENGTH_MAX:
        return escaped
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{escaped[: KEY_LENGTH_MAX - 33]}!{digest}"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
