"""What the nightly job says of dates that it cannot read again, and where its log has it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import date, timedelta

PREFIX = "warning: cannot be read again: "
SPANS_MAX = 10
DAY = timedelta(days=1)


def last_warning(log: Iterable[str]) -> str:
    """What the job said last of such dates, without the prefix; empty where it said nothing."""
    warnings = [line[line.index(PREFIX) + len(PREFIX) :] for line in log if PREFIX in line]
    return warnings[-1].strip() if warnings else ""


def spans(dates: Collection[str]) -> str:
    """Dates in order, neighbours put together: ``2026-01-01 to 2026-01-05, 2026-01-09``."""
    found: list[tuple[str, str]] = []
    for day in sorted(dates):
        if found and _next(found[-1][1]) == day:
            found[-1] = (found[-1][0], day)
        else:
            found.append((day, day))
    shown = [first if first == last else f"{first} to {last}" for first, last in found[:SPANS_MAX]]
    rest = len(found) - SPANS_MAX
    return ", ".join(shown) + (f" and {rest} more" if rest > 0 else "")


def _next(day: str) -> str:
    """Empty after what is no date, such as that of files whose path names none."""
    try:
        return (date.fromisoformat(day) + DAY).isoformat()
    except (ValueError, OverflowError):
        return ""
