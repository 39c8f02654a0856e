"""The host's TimeSpan texts, as host.json and timer schedules write them."""

import re
from datetime import timedelta

_TIME_SPAN = re.compile(r"(?:(\d+)\.)?(\d+):(\d{1,2}):(\d{1,2})(\.\d{1,7})?")


def parse_time_span(text: str) -> timedelta:
    """Parse `hh:mm:ss`, `d.hh:mm:ss` or `hh:mm:ss.fff`.

    A first number of 24 or more means days, as in the host: `24:00:00` is 24 days.
    """
    found = _TIME_SPAN.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a time span such as 00:05:00")
    days, first, second, third = (int(part or 0) for part in found.groups()[:4])
    if days == 0 and first >= 24:
        return timedelta(days=first, hours=second, minutes=third)
    fraction = float(found[5] or 0)
    return timedelta(days=days, hours=first, minutes=second, seconds=third + fraction)
