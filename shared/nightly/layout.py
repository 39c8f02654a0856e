"""Where exports of telemetry file their blobs by date.

Diagnostic settings write ``…/y=2026/m=03/d=01/h=05/m=00/PT1H.json``, the classic export of
Application Insights ``…/2026-03-01/05/….blob``. The date is that of the file, in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import date

PARTS = re.compile(r"(?:^|/)y=(\d{4})(?:/(?:m=(\d{2})(?:/(?:d=(\d{2})(?:/|$))?)?)?)?")
CLASSIC = re.compile(r"(?:^|/)(\d{4})-(\d{2})-(\d{2})(?:/|$)")


def date_of(path: str) -> date | None:
    """The date that a path names; None where it names none."""
    found = PARTS.search(path) or CLASSIC.search(path)
    if not found or not found[3]:
        return None
    try:
        return date(int(found[1]), int(found[2]), int(found[3]))
    except ValueError:
        return None


def may_hold(folder: str, dates: Collection[date]) -> bool:
    """Whether files of these dates can lie below a folder, as far as its path tells."""
    if (known := date_of(folder)) is not None:
        return known in dates
    found = PARTS.search(folder)
    year, month = found.groups()[:2] if found else (None, None)
    return any(
        (year is None or day.year == int(year)) and (month is None or day.month == int(month))
        for day in dates
    )
