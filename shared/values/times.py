"""Times in texts from outside."""

from __future__ import annotations

from datetime import UTC, datetime

TIME_CHARACTERS_MAX = 64


def utc_time(value: object) -> datetime | None:
    """An ISO 8601 time with a zone, in UTC, cut to microseconds; None for any other value."""
    if not isinstance(value, str) or len(value) > TIME_CHARACTERS_MAX:
        return None
    try:
        time = datetime.fromisoformat(value)
        return time.astimezone(UTC) if time.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
