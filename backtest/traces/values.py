"""Reads the times and numbers of exported metrics in the forms in which tools write them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from functools import partial

from shared.values.text import number

ABSENT = frozenset(("", "null", "none", "nan", "undefined", "n/a", "-"))
"""What exports write where there is no value."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EPOCH_SECONDS = (9e8, 4.2e9)
"""The years 1998 to 2103. A larger number is in milliseconds, microseconds or nanoseconds."""

NUMERIC = r"(?P<a>\d{1,4})(?P<mark>[/.-])(?P<b>\d{1,2})(?P=mark)(?P<c>\d{1,4})"
NAMED = r"(?:(?P<day>\d{1,2})[ -])?(?P<month>[a-z]{3})[a-z]*\.?[ -](?:(?P<day2>\d{1,2}),? )?"
CLOCK = (
    r"(?:[ ,t]+(?P<hour>\d{1,2}):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,](?P<part>\d{1,9}))?)?"
    r"\s*(?P<half>[ap])?\.?(?(half)m\.?)\s*(?P<zone>z|utc|gmt|(?:gmt|utc)?[+-]\d\d:?\d\d)?)?"
)
TIMES = tuple(re.compile(form + CLOCK, re.ASCII) for form in (NUMERIC, NAMED + r"(?P<year>\d{4})"))
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
SPACES = re.compile(r"(?<=\d)[\s\u00a0\u202f'\u2019](?=\d{3})")


def time_of(text: str, *, day_first: bool = False) -> datetime:
    """The time, naive if the text states no offset. Raises ValueError for any other text."""
    if re.fullmatch(r"\d{9,19}(\.\d{1,9})?", text, re.ASCII):
        return _epoch(float(text))
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        plain = " ".join(text.casefold().split())
    found = next((found for form in TIMES if (found := form.fullmatch(plain))), None)
    if found is None:
        raise ValueError(text)
    parts = found.groupdict()
    year, month, day = _date(parts, day_first=day_first)
    hour = int(parts["hour"] or 0)
    if parts["half"]:
        if not 1 <= hour <= 12:
            raise ValueError(text)
        hour = hour % 12 + 12 * (parts["half"] == "p")
    fraction = int((parts["part"] or "0").ljust(6, "0")[:6])
    clock = (hour, int(parts["minute"] or 0), int(parts["second"] or 0), fraction)
    return datetime(year, month, day, *clock, tzinfo=_zone(parts["zone"]))


def _epoch(seconds: float) -> datetime:
    low, high = EPOCH_SECONDS
    while seconds > high:
        seconds /= 1000
    if seconds < low:
        raise ValueError(seconds)
    return EPOCH + timedelta(seconds=seconds)


def _date(parts: dict[str, str | None], *, day_first: bool) -> tuple[int, int, int]:
    if parts.get("month"):
        month = MONTHS.index(parts["month"] or "") + 1  # ValueError if it is none
        return int(parts["year"] or 0), month, int(parts["day"] or parts["day2"] or 0)
    first, middle, last = (parts[key] or "" for key in "abc")
    if len(first) == 4:
        return int(first), int(middle), int(last)
    if len(first) > 2 or len(last) != 4:
        raise ValueError(first)
    if parts["mark"] == "." or day_first:
        return int(last), int(middle), int(first)
    return int(last), int(first), int(middle)


def _zone(text: str | None) -> timezone | None:
    digits = re.sub(r"[^0-9]", "", text or "")
    if not text or not digits:
        return UTC if text else None
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-offset if "-" in text else offset)


def is_time(text: str) -> bool:
    """Whether the text is a time, in either order of day and month."""
    for day_first in (False, True):
        try:
            time_of(text, day_first=day_first)
        except (ValueError, OverflowError):
            continue
        return True
    return False


def order_of_dates(texts: Sequence[str]) -> tuple[bool, bool]:
    """Whether the day stands before the month, and whether the texts tell.

    They tell if a number is above 12, or if one order gives a shorter time from first to last.
    """
    pairs = [
        found for text in texts if (found := re.match(r"(\d{1,2})[/-](\d{1,2})[/-]\d{4}", text))
    ]
    if not pairs:
        return False, True
    if (day_first := any(int(found[1]) > 12 for found in pairs)) or any(
        int(found[2]) > 12 for found in pairs
    ):
        return day_first, True
    try:
        month, day = (
            abs(time_of(texts[-1], day_first=first) - time_of(texts[0], day_first=first))
            for first in (False, True)
        )
    except (ValueError, TypeError, OverflowError):
        return False, False
    return day < month, day != month


def is_absent(text: str) -> bool:
    return text.casefold() in ABSENT


def is_value(text: str) -> bool:
    """Whether the text looks like a number, with any marks of decimals and thousands."""
    return (
        re.fullmatch(r"[+-]?[\d.,]*\d[\d.,]*(e[+-]?\d+)?", SPACES.sub("", text), re.I) is not None
    )


def reader_of_numbers(texts: Iterable[str], *, comma_decimal: bool) -> Callable[[str], float]:
    """How to read the numbers of a column: `1,234.5`, `1.234,5`, `1234,5` or `1 234`.

    Raises ValueError if a comma or a point may mark decimals or thousands.
    """
    marked = [SPACES.sub("", text) for text in texts if "," in text or "." in text]
    both = next((text for text in marked if "," in text and "." in text), None)
    if both:
        return partial(_number, decimal="," if both.rindex(",") > both.rindex(".") else ".")
    mark, other = ",." if any("," in text for text in marked) else ".,"
    shown = [text for text in marked if mark in text]
    grouped = all(re.fullmatch(rf"[+-]?[1-9]\d{{0,2}}(\{mark}\d{{3}})+", text) for text in shown)
    if not comma_decimal:
        return partial(_number, decimal=".", grouped=grouped)
    if not (shown and grouped):
        return partial(_number, decimal=mark)
    if any(text.count(mark) > 1 for text in shown):
        return partial(_number, decimal=other)
    raise ValueError(shown[0])


def _number(text: str, *, decimal: str, grouped: bool = True) -> float:
    plain = SPACES.sub("", text)
    if decimal == ",":
        return number(re.sub(r"\.(?=\d{3})", "", plain).replace(",", "."))
    return number(plain.replace(",", "") if grouped else plain)
