"""Converts the row ``learned`` of the table ``Scaling``. No I/O.

A part that cannot be read is learned again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any, TypeVar, cast

from shared.adapters.tables.row_values import json_text, utc
from shared.adapters.tables.table import Row
from shared.autoscaling.learning.outliers import RECENT_MAX
from shared.autoscaling.state import EPOCH_MAX, BacklogTrend, BusyIntervals, Learned, Stall
from shared.values.stored import known_fields

LEARNED_PARTS = ("work", "trend")
"""Properties of the row ``learned``. ``work`` holds sums over busy intervals, and ``trend`` holds
moving averages of the backlog's growth."""
RECENT = "recent"
STALLS = "stalls"
SUM_MAX = 1e300
SumsT = TypeVar("SumsT", BusyIntervals, BacklogTrend)


def learned_fields(learned: Learned) -> Row:
    """The properties of the row ``learned``. Recent observations have a separate property, so that
    older versions can still read the other properties."""
    fields = asdict(learned)
    for part in LEARNED_PARTS:
        until = fields[part]["until"]
        fields[part]["until"] = until.isoformat() if until else None
    recent = {"work": fields["work"].pop("recent")}
    return {
        **fields,
        **{part: json_text(fields[part]) for part in LEARNED_PARTS},
        RECENT: json_text(recent),
        STALLS: json_text([_stall_fields(stall) for stall in learned.stalls]),
    }


def _stall_fields(stall: Stall) -> Row:
    oldest_at = stall.oldest_at.isoformat() if stall.oldest_at else None
    return {"metric": stall.metric, "since": stall.since.isoformat(), "oldest_at": oldest_at}


def learned_of(row: Mapping[str, Any]) -> tuple[Learned, list[str]]:
    """The learned values, and the names of the unreadable parts, which the app learns again."""
    texts = {part: _object(row.get(part, "{}")) for part in (*LEARNED_PARTS, RECENT)}
    until = {part: _time_or_none((texts[part] or {}).pop("until", None)) for part in LEARNED_PARTS}
    recent = _pairs((texts[RECENT] or {}).get("work"))
    no_work, no_trend = BusyIntervals(until["work"], recent=recent), BacklogTrend(until["trend"])
    work, trend = _sums(no_work, texts["work"]), _sums(no_trend, texts["trend"])
    stalls = _stalls(row.get(STALLS, "[]"))
    epoch, count, mean = (row.get(name) for name in ("epoch", "dead_times", "dead_time_minutes"))
    has_dead_times = _is_whole(count) and _is_finite(mean)
    learned = Learned(
        epoch=cast("int", epoch) if _is_whole(epoch) else 0,
        dead_times=cast("int", count) if has_dead_times else 0,
        dead_time_minutes=cast("float", mean) if has_dead_times else 0,
        work=work or no_work,
        trend=trend or no_trend,
        stalls=tuple(stalls or ()),
    )
    readable = {
        "epoch": _is_whole(epoch),
        "work": work is not None,
        "trend": trend is not None,
        RECENT: texts[RECENT] is not None,
        STALLS: stalls is not None,
        "dead_times": has_dead_times,
    }
    return learned, [part for part, is_readable in readable.items() if not is_readable]


def _object(text: object) -> dict[str, Any] | None:
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _stalls(text: object) -> list[Stall] | None:
    try:
        values = json.loads(str(text))
        return [
            Stall(each["metric"], utc(each["since"]), _time_or_none(each["oldest_at"]))
            for each in values
        ]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def _pairs(value: object) -> tuple[tuple[float, float], ...]:
    pairs = value if isinstance(value, list) else []
    sound = [pair for pair in pairs if isinstance(pair, list) and len(pair) == 2]
    finite = [(a, b) for a, b in sound if _is_finite(a) and _is_finite(b) and b]
    return tuple(finite[-RECENT_MAX:])


def _sums(empty: SumsT, fields: Mapping[str, Any] | None) -> SumsT | None:
    """All sums of a part, or None if one of them is unreadable. They are only valid together.

    If no field is known, the part has the form of another version.
    """
    known = known_fields(type(empty), fields or {})
    if fields is None or (fields and not known):
        return None
    try:
        sums = replace(empty, **known)
    except TypeError:
        return None
    return sums if all(map(_is_finite, known.values())) else None


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= SUM_MAX  # False for NaN


def _is_whole(value: object) -> bool:
    return type(value) is int and 0 <= value <= EPOCH_MAX


def _time_or_none(text: object) -> datetime | None:
    try:
        return utc(text) if isinstance(text, str) else None
    except (ValueError, OverflowError):
        return None
