"""Reads the time at which telemetry was received from the paths of exported blobs.

Diagnostic settings write ``…/y=2026/m=03/d=01/h=05/m=00/PT1H.json``, the classic export of
Application Insights ``…/2026-03-01/05/….blob``, and Event Hubs Capture ``…/2026/03/01/05/…``. All
times are in UTC. Only complete folder names with ASCII digits are recognized.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import UTC, date, datetime

FORMATS = (
    re.compile(r"(?:^|/)y=([0-9]{4})/m=([0-9]{1,2})/d=([0-9]{1,2})(?:/h=([0-9]{1,2}))?(?=/)"),
    re.compile(r"(?:^|/)([0-9]{4})-([0-9]{2})-([0-9]{2})(?:/([0-9]{2}))?(?=/)"),
    re.compile(r"(?:^|/)([12][0-9]{3})/(0[1-9]|1[0-2])/([0-3][0-9])(?:/([0-9]{2}))?(?=/)"),
)
"""The first matching format is used. Numeric folders with an impossible month do not match."""

YEAR_AND_MONTH = re.compile(r"(?:^|/)y=([0-9]{4})/(?:m=([0-9]{1,2})/)?")


def hour_of(path: str) -> datetime | None:
    """The hour in a path, or the first hour of the day; None if the path has no date.

    Raises ValueError for a date that does not exist, such as the 30th of February.
    """
    for pattern in FORMATS:
        if match := pattern.search(path):
            year, month, day, hour = map(int, match.groups("0"))
            return datetime(year, month, day, hour, tzinfo=UTC)
    return None


def date_of(path: str) -> date | None:
    """The date in a path; None if the path has no date or names a date that does not exist."""
    try:
        hour = hour_of(path)
    except ValueError:
        return None
    return hour and hour.date()


def may_hold(folder: str, dates: Collection[date]) -> bool:
    """Whether a folder can contain blobs of these dates, judging by its path."""
    if (day := date_of(folder)) is not None:
        return day in dates
    match = YEAR_AND_MONTH.search(folder)
    year, month = match.groups() if match else (None, None)
    return any(
        (year is None or day.year == int(year)) and (month is None or day.month == int(month))
        for day in dates
    )
