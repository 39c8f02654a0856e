"""Durations as Service Bus writes them in its descriptions. Pure."""

import re
from datetime import timedelta

from local.amqp_broker.model.errors import InvalidProperties

_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?"
    r"(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
FOREVER = timedelta(days=10_675_199)
"""What the service calls for ever: the longest duration that .NET can express, in days."""


def duration(text: str) -> timedelta:
    """ISO 8601 as far as the service writes it: days, hours, minutes, seconds."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        raise InvalidProperties(f"'{text}' is no duration")
    parts = {unit: float(value) for unit, value in match.groupdict().items() if value}
    try:
        return timedelta(**parts)
    except OverflowError:
        raise InvalidProperties(f"'{text}' is too long") from None


def written(length: timedelta) -> str:
    seconds = length.seconds + length.microseconds / 1_000_000
    return f"P{length.days}DT{seconds:.6f}".rstrip("0").rstrip(".") + "S"
