"""NCRONTAB expressions of timers, by the grammar of NCrontab, which the Functions host uses."""

from __future__ import annotations

import re
from dataclasses import dataclass

STEP = re.compile(r"[+-]?[0-9]{1,9}")
MONTH_DAYS_MAX = {2: 29, 4: 30, 6: 30, 9: 30, 11: 30}
MONTHS = "January February March April May June July August September October November December"
WEEKDAYS = "Sunday Monday Tuesday Wednesday Thursday Friday Saturday"


@dataclass(frozen=True, slots=True)
class CronField:
    """The name of a field, its lowest and highest value, and the names of its values."""

    name: str
    low: int
    high: int
    names: str = ""

    def values(self, text: str) -> tuple[int, ...]:
        """The values that the text selects, in order. Raises ValueError."""
        return tuple(sorted({value for item in text.split(",") for value in self._range(item)}))

    def _range(self, item: str) -> range:
        """``*``, ``5`` or ``1-5``, and these with a step. A step of 0 counts as 1, a range may be
        given in any order, and ``5/2`` lasts to the highest value."""
        part, slash, every = item.partition("/")
        if slash and not STEP.fullmatch(every):
            raise ValueError(f"the {self.name} {item!r} has the step {every!r}, which is no number")
        if part == "*":
            first, last = self.low, self.high
        else:
            start, dash, end = part.partition("-")
            first = self._value(start)
            last = self._value(end) if dash else self.high if slash else first
        return range(min(first, last), max(first, last) + 1, max(int(every or 1), 1))

    def _value(self, text: str) -> int:
        """A number, or the beginning of a name in any case."""
        if re.fullmatch("[0-9]{1,9}", text) and self.low <= int(text) <= self.high:
            return int(text)
        for value, name in enumerate(self.names.split(), self.low):
            if text and name.lower().startswith(text.lower()):
                return value
        example = f", a name such as {self.names.split()[1]}" if self.names else ""
        allowed = f"{self.low} to {self.high}{example}, a range, a list, or *"
        raise ValueError(f"the {self.name} {text!r} is not {allowed}")


FIELDS = (
    CronField("second", 0, 59),
    CronField("minute", 0, 59),
    CronField("hour", 0, 23),
    CronField("day of the month", 1, 31),
    CronField("month", 1, 12, MONTHS),
    CronField("day of the week", 0, 6, WEEKDAYS),
)


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """The values that each field of an NCRONTAB expression selects, in UTC. A date must match the
    day of the month and the day of the week."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]


def parse_cron(expression: str) -> CronSchedule:
    """Parse six fields, seconds first, or five without seconds. Raises ValueError, also if no date
    matches."""
    texts = [text for text in expression.split(" ") if text]
    if len(texts) not in (5, 6):
        raise ValueError(f"it has {len(texts)} fields")
    texts = ["0", *texts][-len(FIELDS) :]
    parsed = CronSchedule(*(field.values(text) for field, text in zip(FIELDS, texts, strict=True)))
    if parsed.days[0] > max(MONTH_DAYS_MAX.get(month, 31) for month in parsed.months):
        raise ValueError("no month has such a day, so it would never run")
    return parsed
