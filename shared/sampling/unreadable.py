"""The job's warning about dates that it cannot read again, and how to find it in the job's log."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import date, timedelta

PREFIX = "warning: cannot be read again: "
SPANS_MAX = 10
DAY = timedelta(days=1)


def last_warning(log: Iterable[str]) -> str:
    """The last such warning in the log, without the prefix; empty if there is none."""
    warnings = [line[line.index(PREFIX) + len(PREFIX) :] for line in log if PREFIX in line]
    return warnings[-1].strip() if warnings else ""


def spans(dates: Collection[str]) -> str:
    """The dates in order, as spans: ``2026-01-01 to 2026-01-05, 2026-01-09``."""
    merged: list[tuple[str, str]] = []
    for day in sorted(dates):
        if merged and _next(merged[-1][1]) == day:
            merged[-1] = (merged[-1][0], day)
        else:
            merged.append((day, day))
    named = [first if first == last else f"{first} to {last}" for first, last in merged[:SPANS_MAX]]
    rest = len(merged) - SPANS_MAX
    return ", ".join(named) + (f" and {rest} more" if rest > 0 else "")


def _next(day: str) -> str:
    """The next date. Empty for a text that is not a date; files without a date have such a text."""
    try:
        return (date.fromisoformat(day) + DAY).isoformat()
    except (ValueError, OverflowError):
        return ""
