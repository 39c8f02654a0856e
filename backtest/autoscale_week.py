"""Computes when the recurring profiles of an autoscale setting apply. Pure.

Azure stores only when a profile begins; it applies until the next one begins. An end is stored as
the beginning of a copy of the default profile, which the portal names after the profile it ends.
https://learn.microsoft.com/azure/azure-monitor/autoscale/autoscale-understanding-settings
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from shared.autoscaling.policies.schedule import WEEKDAYS

DAY_MINUTES = 24 * 60
WEEK_MINUTES = 7 * DAY_MINUTES


@dataclass(frozen=True, slots=True)
class Begins:
    """A profile that begins on these weekdays at a time of day such as ``08:30``."""

    profile: int
    weekdays: tuple[str, ...]
    time: str
    ends_another: bool = False


@dataclass(frozen=True, slots=True)
class Holds:
    """A profile applies on these weekdays from ``start`` to ``end``. Equal times: a whole day."""

    profile: int
    weekdays: tuple[str, ...]
    start: str
    end: str


def week(begins: Sequence[Begins]) -> list[Holds]:
    """The intervals of the profiles, in their order. At other times the default one applies."""
    spans: dict[tuple[int, str, str], list[str]] = {}
    for profile, day, start, end in _spans(begins):
        spans.setdefault((profile, start, end), []).append(day)
    held = [Holds(n, _in_order(days), start, end) for (n, start, end), days in spans.items()]
    return sorted(held, key=lambda each: each.profile)


def _spans(begins: Iterable[Begins]) -> Iterator[tuple[int, str, str, str]]:
    """Yield profile, weekday, start and end of intervals of at most a day."""
    moments = sorted(_moments(begins))
    for at, (minute, _, profile) in enumerate(moments):
        after = moments[(at + 1) % len(moments)][0]
        minutes = (after - minute) % WEEK_MINUTES if len(moments) > 1 else WEEK_MINUTES
        while profile is not None and minutes > 0:
            part = min(minutes, DAY_MINUTES)
            day = WEEKDAYS[minute // DAY_MINUTES % 7]
            yield profile, day, _clock(minute), _clock(minute + part)
            minute, minutes = minute + part, minutes - part  # noqa: PLW2901  advances through the days


def _moments(begins: Iterable[Begins]) -> Iterator[tuple[int, bool, int | None]]:
    """Minute of the week, and profile. At the same minute, an end sorts before a beginning."""
    for each in begins:
        hours, minutes = map(int, each.time.split(":"))
        for day in each.weekdays:
            minute = WEEKDAYS.index(day) * DAY_MINUTES + hours * 60 + minutes
            yield minute, not each.ends_another, None if each.ends_another else each.profile


def _clock(minute: int) -> str:
    return f"{minute // 60 % 24:02}:{minute % 60:02}"


def _in_order(days: Iterable[str]) -> tuple[str, ...]:
    chosen = set(days)
    return tuple(day for day in WEEKDAYS if day in chosen)
