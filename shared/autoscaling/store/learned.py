"""Converts the row ``learned`` of the table ``Scaling``. No I/O.

A part that cannot be read is learned again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

from shared.autoscaling.state import (
    EPOCH_MAX,
    BacklogTrend,
    BusyIntervals,
    Learned,
    RateClaim,
    Stall,
)
from shared.storage.table_requests import Row
from shared.values.row_values import checked, json_text, properties, utc

PAIR = 2
UNREADABLE = (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError)


def learned_fields(learned: Learned) -> Row:
    """The properties of the row ``learned``: ``work`` holds busy intervals, and ``trend`` moving
    averages of the backlog's growth."""
    row = properties(learned, ("work", "trend", "stalls", "claim"))
    row["work"], row["trend"] = json_text(_plain(learned.work)), json_text(_plain(learned.trend))
    claims = [learned.claim] if learned.claim else []
    lists = {"stalls": learned.stalls, "claim": claims}
    return row | {name: json_text([*map(_plain, each)]) for name, each in lists.items()}


def _plain(value: Any) -> dict[str, Any]:
    """The fields of a data class. ``dataclasses.asdict`` copies each value, which takes long."""
    return {each.name: getattr(value, each.name) for each in fields(value)}


def learned_of(row: Mapping[str, Any]) -> tuple[Learned, list[str]]:
    """The learned values, and the names of the unreadable parts, which the app learns again."""
    lost: list[str] = []

    def part(name: str, read: Callable[[], Any], absent: Any) -> Any:
        try:
            return read()
        except UNREADABLE:
            lost.append(name)
            return absent

    def json_of(name: str, hint: Any, absent: Any) -> Any:
        text = row.get(name, json_text(absent))
        return part(name, lambda: checked(hint, json.loads(text), name), absent)

    def sums(name: str, of: type[BusyIntervals | BacklogTrend]) -> Any:
        """All sums of a part. They are only valid together, but their end stands."""
        found = json_of(name, Mapping, {})
        until = None
        with suppress(*UNREADABLE):
            until = utc(found.pop("until"))
        return replace(part(name, lambda: checked(of, found, name), of()), until=until)

    def dead_times() -> tuple[int, float]:
        return _whole(row["dead_times"]), checked(float, row["dead_time_minutes"], "minutes")

    epoch = part("epoch", lambda: _whole(row["epoch"]), 0)
    work, trend = sums("work", BusyIntervals), sums("trend", BacklogTrend)
    stalls = json_of("stalls", tuple[Stall, ...], ())
    count, minutes = part("dead_times", dead_times, (0, 0.0))
    claim = next(iter(json_of("claim", tuple[RateClaim, ...], ())), None)
    work = replace(work, recent=tuple([each for each in work.recent if len(each) == PAIR]))
    return Learned(epoch, count, minutes, work, trend, stalls, claim), lost


def _whole(value: Any) -> Any:
    if type(value) is not int or not 0 <= value <= EPOCH_MAX:
        raise ValueError("not a whole number")
    return value
