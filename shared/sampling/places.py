"""Limits the number of series: those without a place are added up as ``(other)``.

Without a limit, an event whose names contain numbers would fill the results and their tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from datetime import date, timedelta
from typing import Any

from shared.sampling.baseline import MEMORY_DAYS
from shared.sampling.series import OTHER, Row, Series, Totals, rows_of, totals_of

SERIES_MAX = 500
"""The most series of a kind, beside those named ``(other)``."""
NAME_LENGTH_MAX = 1024
"""The most characters of a name. Azure cuts names of requests at this length."""


def limited(
    old: Totals, new: Totals, last: str, kept_events: Collection[str]
) -> tuple[Totals, Counter[str]]:
    """Returns the new totals with few enough series, and how many were added up, by kind.

    1. A series that was published in the ten weeks before the date ``last`` keeps its place. On a
       date for which a series was published, it stays, whether or not it still has a place.
    2. The series with the most records on all new dates get the free places.
    3. Other series are added up: those of an event that has a place, or is one of ``kept_events``,
       for this event, and all others for the event ``(other)``.
    """
    since = str(date.fromisoformat(last) - timedelta(days=MEMORY_DAYS))
    places = {series for day, series in old if day >= since and not series.is_combined}
    taken = Counter(series.kind for series in places)
    records = Counter[Series]()
    for (_, series), day in new.items():
        records[series] += day.sums.records
    for series in sorted(records.keys() - places, key=lambda s: (-records[s], s)):
        is_short = max(map(len, (series.event, *series.dims))) <= NAME_LENGTH_MAX
        if is_short and taken[series.kind] < SERIES_MAX:
            places.add(series)
            taken[series.kind] += 1
    names = {(series.kind, series.event) for series in places}
    combined = set[Series]()

    def placed(row: Row) -> dict[str, Any]:
        series = Series(row["kind"], row["event"], tuple(row["dims"]))
        if series in places or (row["date"], series) in old:
            return dict(row)
        is_named = (series.kind, series.event) in names or series.event in kept_events
        event = series.event if is_named else OTHER
        target = Series(series.kind, event, (OTHER,) * len(series.dims))
        combined.update({series} - {target})
        return {**row, "event": event, "dims": target.dims}

    totals = totals_of(map(placed, rows_of(new)))
    return totals, Counter(series.kind for series in combined)
