"""When telemetry was received, by the folders that its exports file blobs in.

Diagnostic settings write ``…/y=2026/m=03/d=01/h=05/m=00/PT1H.json``, the classic export of
Application Insights ``…/2026-03-01/05/….blob``, Event Hubs Capture ``…/2026/03/01/05/…``. All are
in UTC. Only whole folders count, and only ASCII digits.
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
"""The first one that a path has counts. Folders of numbers that are no month are no date."""

YEAR_AND_MONTH = re.compile(r"(?:^|/)y=([0-9]{4})/(?:m=([0-9]{1,2})/)?")


def hour_of(path: str) -> datetime | None:
    """The hour, or the first one of the day, that a path names; None where it names none.

    Raises ValueError for one that no calendar has, such as the 30th of February.
    """
    for pattern in FORMATS:
        if match := pattern.search(path):
            year, month, day, hour = map(int, match.groups("0"))
            return datetime(year, month, day, hour, tzinfo=UTC)
    return None


def date_of(path: str) -> date | None:
    """The date that a path names; None where it names none, or one that no calendar has."""
    try:
        hour = hour_of(path)
    except ValueError:
        return None
    return hour and hour.date()


def may_hold(folder: str, dates: Collection[date]) -> bool:
    """Whether blobs of these dates can lie below a folder, as far as its path tells."""
    if (known := date_of(folder)) is not None:
        return known in dates
    match = YEAR_AND_MONTH.search(folder)
    year, month = match.groups() if match else (None, None)
    return any(
        (year is None or day.year == int(year)) and (month is None or day.month == int(month))
        for day in dates
    )
