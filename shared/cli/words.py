"""What people write on the command line, as values."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime, timedelta

UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}


def age(text: str) -> timedelta:
    """``30d``, ``12h``, ``90m``, ``10s``."""
    found = re.fullmatch(r"(\d{1,6})([dhms])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r}: an age such as 30d, 12h, 90m is needed")
    return timedelta(**{UNITS[found[2]]: int(found[1])})


def time(text: str) -> datetime:
    """ISO 8601; without a zone it is UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        example = "2026-03-01T12:00:00Z"
        raise argparse.ArgumentTypeError(f"{text!r}: a time such as {example} is needed") from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def count(text: str) -> int:
    """A whole number that is not negative."""
    if not re.fullmatch(r"\d{1,18}", text):
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number from 0 is needed")
    return int(text)
