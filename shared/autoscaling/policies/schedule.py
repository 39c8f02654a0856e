"""Schedule: limits and policies that depend on the time of day, the weekday or the date."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from shared.autoscaling.declaring import Limits
from shared.autoscaling.policies.checks import member
from shared.autoscaling.policies.combine import passed_on
from shared.autoscaling.policy import Composite, Observation, PolicyFunction, Recommendation, ask
from shared.values.bounds import AtLeastOne, Name, problems_of

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
WORKDAYS = WEEKDAYS[:5]
WEEKEND = WEEKDAYS[5:]
DAYS_AHEAD = 8
"""The end of a profile is searched for within this many days."""

MIDNIGHT = time()
DAY = timedelta(days=1)
Days = date | tuple[date, date]
"""A day, or the first and the last day of a period."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Limits, in instances, and a policy. A profile without a policy uses that of the schedule."""

    name: Name
    minimum: AtLeastOne = 1
    maximum: AtLeastOne | None = None
    policy: PolicyFunction | None = None

    def problems(self) -> list[str]:
        """The invalid parameters, each with its value and bound."""
        problems = problems_of(self)
        if not problems and self.maximum is not None and self.maximum < self.minimum:
            problems.append(f"maximum = {self.maximum}: must be at least minimum = {self.minimum}")
        return problems + ([] if self.policy is None else member("policy", self.policy))


@dataclass(frozen=True, slots=True)
class ScheduleEntry:
    """Applies a profile from ``start`` until just before ``end``, in local time of the time zone.

    ``weekdays`` and ``dates`` state the days on which the entry starts; if one of them is empty, it
    excludes no day. Two dates alone are refused, because they may be meant as a period. If ``end``
    is not later than ``start``, the entry ends on the next day.

    When clocks are changed, a time that occurs twice means its first occurrence, and a skipped time
    the end of the gap. So adjoining entries never overlap and leave no gap.
    """

    profile: Profile
    weekdays: tuple[str, ...] = ()
    start: time = MIDNIGHT
    end: time = MIDNIGHT
    dates: tuple[Days, ...] = ()
    time_zone: str | None = None
    """The time zone of the entry, such as Europe/Zurich. By default, it is that of the schedule."""

    def problems(self) -> list[str]:
        """The invalid parameters, each with its value and bound."""
        problems = problems_of(self)
        if not isinstance(self.weekdays, tuple | list):
            problems.append(f"weekdays = {self.weekdays!r}: must be a tuple such as ('Mon',)")
        else:
            known = ", ".join(WEEKDAYS)
            wrong = [day for day in self.weekdays if day not in WEEKDAYS]
            problems += [f"weekdays: {day!r} must be one of {known}" for day in wrong]
        for name in ("start", "end"):
            value = getattr(self, name)
            if not isinstance(value, time) or value.tzinfo is not None:
                problems.append(f"{name} = {value!r}: must be a time of day without time zone")
        problems += _date_problems(self.dates)
        return problems + ([] if self.time_zone is None else _zone_problems(self.time_zone))

    def starts_on(self, day: date) -> bool:
        """True if the entry applies from ``start`` on this local day."""
        if self.weekdays and WEEKDAYS[day.weekday()] not in self.weekdays:
            return False
        return not self.dates or any(_within(day, days) for days in self.dates)

    def span(self, day: date, default_zone: str) -> tuple[datetime, datetime]:
        """The interval that starts on this local day, in UTC. Its end is excluded."""
        zone = self.time_zone or default_zone
        last = day + DAY if self.end <= self.start else day
        return instant(day, self.start, zone), instant(last, self.end, zone)

    def spans(
        self, now: datetime, default_zone: str, days_ahead: int = DAYS_AHEAD
    ) -> Iterator[tuple[datetime, datetime]]:
        """The intervals that start from yesterday until ``days_ahead`` days ahead."""
        today = now.astimezone(ZoneInfo(self.time_zone or default_zone)).date()
        for ahead in range(-1, days_ahead + 1):
            day = today + ahead * DAY
            if self.starts_on(day):
                yield self.span(day, default_zone)

    def holds(self, now: datetime, default_zone: str) -> bool:
        """True if the entry applies at ``now``."""
        return any(start <= now < end for start, end in self.spans(now, default_zone, 0))


class Rule(ScheduleEntry):
    """The earlier name of ScheduleEntry, with a DeprecationWarning."""

    def __new__(cls, *given: Any, **named: Any) -> ScheduleEntry:  # type: ignore[misc]
        warnings.warn("Rule was renamed: use ScheduleEntry", DeprecationWarning, stacklevel=2)
        return ScheduleEntry(*given, **named)


@dataclass(frozen=True, slots=True)
class Schedule(Composite):
    """Asks the policy of the active profile, and keeps the result within the profile's limits. The
    first of the ``rules`` that applies selects the active profile, or else it is ``default``.

    In Azure Monitor, a fixed date takes precedence over a recurrence, and a recurrence over the
    default. Put the entries in this order to get the same result.
    """

    rules: tuple[ScheduleEntry, ...]
    default: Profile
    policy: PolicyFunction | None = None
    time_zone: str = "UTC"

    def problems(self) -> list[str]:
        """The problems of all entries and profiles. Each begins with the place of its source."""
        problems = [] if self.policy is None else member("policy", self.policy)
        return problems_of(self) + problems + _zone_problems(self.time_zone)

    def active(self, now: datetime) -> Profile:
        """The profile that is active at ``now``."""
        holding = (entry.profile for entry in self.rules if entry.holds(now, self.time_zone))
        return next(holding, self.default)

    def until(self, now: datetime) -> datetime | None:
        """The time at which another profile becomes active; None if it is more than a week away."""
        active = self.active(now)
        edges = {
            edge
            for entry in self.rules
            for span in entry.spans(now, self.time_zone)
            for edge in span
            if edge > now
        }
        return next((edge for edge in sorted(edges) if self.active(edge) != active), None)

    def __call__(self, seen: Observation) -> Recommendation:
        profile = self.active(seen.now)
        low = max(profile.minimum, seen.limits.minimum)
        high = seen.limits.maximum
        if profile.maximum is not None:
            high = min(profile.maximum, high)
        limits = Limits(min(low, high), high)
        recommended = self._ask(profile, replace(seen, limits=limits))
        applied = self._applied(profile, seen.now)
        wanted = _clamped(recommended.capacity, profile)
        if wanted != recommended.capacity:
            bound = "minimum" if wanted > recommended.capacity else "maximum"
            applied += f", with its {bound} of {wanted} instead of {recommended.capacity}"
        evidence = {"rule": recommended.rule, "profile": profile.name}
        reason = f"{applied}: {recommended.reason}"
        return passed_on(recommended, wanted, reason, "schedule", evidence)

    def _ask(self, profile: Profile, seen: Observation) -> Recommendation:
        policy = profile.policy or self.policy
        if policy is None:
            return Recommendation(seen.capacity, "the profile has no policy, only limits", "limits")
        return ask(policy, seen)

    def _applied(self, profile: Profile, now: datetime) -> str:
        end = self.until(now)
        if end is None:
            return f"profile {profile.name} applies for more than a week"
        local = end.astimezone(ZoneInfo(self.time_zone))
        day = WEEKDAYS[local.weekday()]
        return f"profile {profile.name} applies until {day} {local:%H:%M} {self.time_zone}"


@lru_cache(maxsize=4096)
def instant(day: date, clock: time, zone_name: str) -> datetime:
    """The first time, in UTC, at which the zone's local time is at least this time of this day."""
    zone = ZoneInfo(zone_name)
    wall = datetime.combine(day, clock)
    late = wall.replace(tzinfo=zone).astimezone(UTC)
    if late.astimezone(zone).replace(tzinfo=None) == wall:
        return late
    # The local time is skipped: fold=0 gives a time after the gap, and fold=1 a time before it.
    # Bisection finds the whole second at which the clock is set forward.
    early = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    while late - early > timedelta(seconds=1):
        middle = early + timedelta(seconds=(late - early) // timedelta(seconds=2))
        if middle.astimezone(zone).replace(tzinfo=None) < wall:
            early = middle
        else:
            late = middle
    return late


def _clamped(wanted: int, profile: Profile) -> int:
    wanted = max(wanted, profile.minimum)
    return wanted if profile.maximum is None else min(wanted, profile.maximum)


def _within(day: date, days: Days) -> bool:
    return days[0] <= day <= days[1] if isinstance(days, tuple) else day == days


def _date_problems(dates: object) -> list[str]:
    period = "dates=((first, last),) for a period"
    if not isinstance(dates, tuple | list):
        return [f"dates = {dates!r}: must be a tuple: dates=(day,) for one day, or {period}"]
    if len(dates) == 2 and all(type(day) is date for day in dates):
        days = "dates=((first, first), (last, last)) for two days"
        return [f"dates = {dates!r}: a period or two days? Write {period}, or {days}"]
    return [
        f"dates: {days!r} must be a date, or a tuple of first and last date"
        for days in dates
        if not _sound(days)
    ]


def _sound(days: object) -> bool:
    if isinstance(days, tuple):
        two = len(days) == 2 and all(type(day) is date for day in days)
        return two and days[0] <= days[1]
    return type(days) is date


def _zone_problems(name: object) -> list[str]:
    try:
        ZoneInfo(name)  # type: ignore[arg-type]
    except (KeyError, ValueError, TypeError, OSError, AttributeError):
        return [f"time_zone = {name!r}: must be the name of a time zone such as Europe/Zurich"]
    return []
