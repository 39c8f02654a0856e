"""Converts the row ``learned`` of the table ``Scaling``. No I/O.

A part that cannot be read is learned again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from shared.autoscaling.learning.outliers import RECENT_MAX
from shared.autoscaling.state import EPOCH_MAX, BacklogTrend, BusyIntervals, Learned, Stall
from shared.storage.row_values import json_text, utc
from shared.storage.tables import Row
from shared.values.stored import known_fields

SUM_MAX = 1e300
UNREADABLE = (KeyError, OverflowError, RecursionError, TypeError, ValueError)


def learned_fields(learned: Learned) -> Row:
    """The properties of the row ``learned``. ``work`` holds sums over busy intervals, and ``trend``
    holds moving averages of the backlog's growth. Recent observations have a separate property, so
    that older versions can still read the other properties."""
    fields = asdict(learned)
    fields["recent"] = {"work": fields["work"].pop("recent")}
    numbers = ("epoch", "dead_times", "dead_time_minutes")
    return {name: each if name in numbers else json_text(each) for name, each in fields.items()}


def learned_of(row: Mapping[str, Any]) -> tuple[Learned, list[str]]:
    """The learned values, and the names of the unreadable parts, which the app learns again."""
    lost: list[str] = []

    def part(name: str, read: Callable[[], Any], absent: Any) -> Any:
        try:
            return read()
        except UNREADABLE:
            lost.append(name)
            return absent

    def sums(name: str, of: type[BusyIntervals | BacklogTrend]) -> Any:
        """All sums of a part. They are only valid together, but their end stands."""
        found = part(name, lambda: _object(row.get(name, "{}")), {})
        until = _time_or_none(found.pop("until", None))
        return part(name, lambda: of(until, **_numbers(of, found)), of(until))

    def dead_times() -> tuple[int, float]:
        return _whole(row["dead_times"]), _finite(row["dead_time_minutes"])

    epoch = part("epoch", lambda: _whole(row["epoch"]), 0)
    work, trend = sums("work", BusyIntervals), sums("trend", BacklogTrend)
    recent = part(
        "recent", lambda: _pairs(_object(row.get("recent", "{}")).get("work")), _pairs(())
    )
    stalls = part("stalls", lambda: _stalls(row.get("stalls", "[]")), ())
    count, minutes = part("dead_times", dead_times, (0, 0.0))
    work = replace(work, recent=recent)
    return Learned(epoch, count, minutes, work, trend, stalls), lost


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise TypeError("not an object")
    return value


def _stalls(text: str) -> tuple[Stall, ...]:
    return tuple(
        [
            Stall(each["metric"], utc(each["since"]), _time_or_none(each["oldest_at"]))
            for each in json.loads(text)
        ]
    )


def _pairs(value: object) -> tuple[tuple[float, float], ...]:
    pairs = value if isinstance(value, list) else []
    sound = [pair for pair in pairs if isinstance(pair, list) and len(pair) == 2]
    finite = [(a, b) for a, b in sound if _is_finite(a) and _is_finite(b) and b]
    return tuple(finite[-RECENT_MAX:])


def _numbers(of: type, found: Mapping[str, Any]) -> dict[str, Any]:
    """The stored sums. If none of them is known, the part has the form of another version."""
    known = known_fields(of, found)
    if found and not known:
        raise ValueError("no field is known")
    return {name: _finite(value) for name, value in known.items()}


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= SUM_MAX  # False for NaN


def _finite(value: Any) -> Any:
    if not _is_finite(value):
        raise ValueError("not a finite number")
    return value


def _whole(value: Any) -> Any:
    if type(value) is not int or not 0 <= value <= EPOCH_MAX:
        raise ValueError("not a whole number")
    return value


def _time_or_none(text: object) -> datetime | None:
    try:
        return utc(text) if isinstance(text, str) else None
    except (ValueError, OverflowError):
        return None
