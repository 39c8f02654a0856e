"""Reads the addresses of exported blobs: the time at which telemetry was received, and containers.

Diagnostic settings write ``…/y=2026/m=03/d=01/h=05/m=00/PT1H.json``, the classic export of
Application Insights ``…/2026-03-01/05/….blob``, Event Hubs Capture ``…/2026/03/01/05/…``, and jobs
that write to data lakes ``…/year=2026/month=03/day=01/…``, ``…/dt=2026-03-01/…`` or
``…/20260301/…``. All times are in UTC. Only complete folder names with ASCII digits are recognized.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import UTC, date, datetime
from functools import lru_cache
from urllib.parse import unquote, urlsplit

YEAR, MONTH = r"(?:^|/)(?:y+|year)=([0-9]{4})/", r"(?:m+|month)=([0-9]{1,2})/"
DAY_KEY = r"(?:^|/)(?:(?:[a-z_]*(?:date|day|dt)|ds)=)?"
HOUR_IN_NAME = r"(?:[-_T]?([01][0-9]|2[0-3]))?"
HOUR = r"(?:/(?:[^/]+/)*?(?:h+|hr|hour)=([0-9]{1,2})(?=/)|/([01]?[0-9]|2[0-3])(?=/))?(?=/)"
FORMATS = [
    re.compile(f".*{pattern}{HOUR}", re.ASCII | re.IGNORECASE | re.DOTALL)
    for pattern in (
        rf"{YEAR}{MONTH}(?:d+|day)=([0-9]{{1,2}})",
        rf"{DAY_KEY}([0-9]{{4}})[-_]([0-9]{{2}})[-_]([0-9]{{2}}){HOUR_IN_NAME}",
        rf"{DAY_KEY}(20[0-9]{{2}})(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01]){HOUR_IN_NAME}",
        r"(?:^|/)(20[0-9]{2})/(0?[1-9]|1[0-2])/(0?[1-9]|[12][0-9]|3[01])",
    )
]
"""Each matches the last date of its form. Numeric folders with an impossible month do not match."""

YEAR_AND_MONTH = re.compile(f"{YEAR}(?:{MONTH})?", re.ASCII | re.IGNORECASE)


@lru_cache(maxsize=4096)  # callers ask several times in a row for the same file
def hour_of(path: str, below: int = 0) -> datetime | None:
    """The hour in a path, or the first hour of the day; None if the path has no date.

    The last date counts, and only one that ends beyond the first ``below`` characters, such as
    those of the folder that is read. Raises ValueError for a date that does not exist, such as the
    30th of February.
    """
    matches = [match for pattern in FORMATS if (match := pattern.match(path))]
    within = [match for match in matches if match.end() > below]
    if not within:
        return None
    last = max(within, key=lambda match: match.start(1))
    year, month, day, *hours = map(int, last.groups("0"))
    return datetime(year, month, day, max(hours), tzinfo=UTC)


def hour_if_valid(path: str, below: int = 0) -> datetime | None:
    """See ``hour_of``; None also for a date that does not exist."""
    try:
        return hour_of(path, below)
    except ValueError:
        return None


def date_of(path: str, below: int = 0) -> date | None:
    """The date in a path; None if the path has no date or names a date that does not exist."""
    hour = hour_if_valid(path, below)
    return hour and hour.date()


def may_hold(folder: str, dates: Collection[date], below: int = 0) -> bool:
    """Whether a folder can contain blobs of these dates, judging by its path."""
    if (day := date_of(folder, below)) is not None:
        return day in dates
    match = YEAR_AND_MONTH.search(folder, max(below - 1, 0))
    year, month = match.groups() if match else (None, None)
    return any(
        (year is None or day.year == int(year)) and (month is None or day.month == int(month))
        for day in dates
    )


AZURE = ("abfs", "abfss", "wasb", "wasbs")
"""The schemes of the addresses that Spark gives to blobs."""


def container_of(address: str) -> tuple[str, str, str]:
    """The account's URL, the container, and the prefix without slashes at its ends, of
    ``https://ACCOUNT.blob.core.windows.net/CONTAINER/PREFIX``, an emulator's URL, which has the
    account in its path, or ``abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX``, which is not
    encoded. The container is empty if the address names none.
    """
    url = urlsplit(address)
    segments = list(filter(None, url.path.split("/")))
    if url.scheme in AZURE:
        host = (url.hostname or "").replace(".dfs.", ".blob.")
        return f"https://{host}", url.username or "", "/".join(segments)
    account_url, segments = f"{url.scheme}://{url.netloc}", [*map(unquote, segments)]
    if ".blob." not in url.netloc and segments:
        account_url += f"/{segments.pop(0)}"
    container, *prefix = segments or [""]
    return account_url, container, "/".join(prefix)
