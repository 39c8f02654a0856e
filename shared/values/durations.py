"""Durations in texts: one parser for each of the three forms. All of them raise ValueError."""

from __future__ import annotations

import re
from datetime import timedelta
from functools import lru_cache

_UNITS = "([0-9]{1,6})"
SHORT_PATTERN = rf"^(?:{_UNITS}d)?(?:{_UNITS}h)?(?:{_UNITS}m)?(?:{_UNITS}s)?$"
"""The form of ``short``, as a pattern of JSON Schema."""
_SHORT = re.compile(SHORT_PATTERN)
_ISO = re.compile(
    rf"P(?:{_UNITS}D)?(?:T(?:{_UNITS}H)?(?:{_UNITS}M)?(?:{_UNITS}S)?)?", re.IGNORECASE
)
_TIME_SPAN = re.compile(r"(?:([0-9]{1,8})\.)?([0-9]{1,8}):([0-9]{1,2}):([0-9]{1,2})(\.[0-9]{1,7})?")


def short(text: str) -> timedelta:
    """What people type: ``90m``, ``2h`` or ``1d12h``."""
    return _read(_SHORT, text, "duration such as 90m, 2h or 1d12h")


@lru_cache
def iso(text: str) -> timedelta:
    """ISO 8601 without years, months and weeks, as Azure Resource Manager writes it: ``PT5M``.
    Cached because each sample needs the interval of its source."""
    return _read(_ISO, text, "duration such as PT10M")


def time_span(text: str) -> timedelta:
    """What .NET writes: ``hh:mm:ss``, ``d.hh:mm:ss`` or ``hh:mm:ss.fff``.

    As in .NET, a first number of 24 or more means days: ``24:00:00`` is 24 days.
    """
    match = _TIME_SPAN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a time span such as 00:05:00")
    days, first, second, third = (int(part or 0) for part in match.groups()[:4])
    if days == 0 and first >= 24:
        return timedelta(days=first, hours=second, minutes=third)
    fraction = float(match[5] or 0)
    return timedelta(days=days, hours=first, minutes=second, seconds=third + fraction)


def _read(form: re.Pattern[str], text: str, example: str) -> timedelta:
    match = form.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        raise ValueError(f"{text!r}: must be a {example}")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
