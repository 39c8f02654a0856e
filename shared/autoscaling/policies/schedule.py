"""Profiles by the clock: which limits and which policy hold when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from shared.autoscaling.declaring import Limits
from shared.autoscaling.policies.checks import member, text, whole
from shared.autoscaling.policies.combine import flattened
from shared.autoscaling.policy import Composite, Observation, PolicyFunction, Recommendation, ask

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
WORKDAYS = WEEKDAYS[:5]
WEEKEND = WEEKDAYS[5:]
DAYS_AHEAD = 8
"""How far the end of a profile is looked for."""

MIDNIGHT = time()
DAY = timedelta(days=1)
Days = date | tuple[date, date]


@dataclass(frozen=True, slots=True)
class Profile:
    """Limits and policy for some time; without a policy of its own the schedule's holds."""

    name: str
    minimum: int = 1
    maximum: int | None = None
    policy: PolicyFunction | None = None

    def problems(self) -> list[str]:
        """What is wrong with the parameters, each with its value and bound."""
        problems = text("name", self.name) + whole("minimum", self.minimum, 1)
        if self.maximum is not None:
            problems += whole("maximum", self.maximum, 1)
        if not problems and self.maximum is not None and self.maximum < self.minimum:
            problems.append(f"maximum = {self.maximum}: must be at least minimum = {self.minimum}")
        return problems + ([] if self.policy is None else member("policy", self.policy))


@dataclass(frozen=True, slots=True)
class Rule:
    """When a profile holds: from ``start`` to before ``end`` by the wall clock of the time zone.

    ``weekdays`` and ``dates`` (days, or first and last day) say on which days it starts; empty
    means on any. ``end`` not after ``start`` means the next day; both equal is a whole day. A
    wall time means its first occurrence where clocks are put back, and the end of the gap where
    they are put forward, so that rules which meet never leave a hole and never overlap.
    """

    profile: Profile
    weekdays: tuple[str, ...] = ()
    start: time = MIDNIGHT
    end: time = MIDNIGHT
    dates: tuple[Days, ...] = ()
    time_zone: str | None = None
    """The schedule's, unless given."""

    def problems(self) -> list[str]:
        """What is wrong with the parameters, each with its value and bound."""
        if not isinstance(self.profile, Profile):
            return [f"profile = {self.profile!r}: must be a Profile"]
        problems = [f"profile {self.profile.name!r}: {p}" for p in self.profile.problems()]
        for day in _listed(self.weekdays):
            if day not in WEEKDAYS:
                problems.append(f"weekdays: {day!r} must be one of {', '.join(WEEKDAYS)}")
        for name in ("start", "end"):
            value = getattr(self, name)
            if not isinstance(value, time) or value.tzinfo is not None:
                problems.append(f"{name} = {value!r}: must be a time of day without time zone")
        problems += [
            f"dates: {days!r} must be a date, or first and last date"
            for days in _listed(self.dates)
            if not _sound(days)
        ]
        return problems + ([] if self.time_zone is None else _zone_problems(self.time_zone))

    def starts_on(self, day: date) -> bool:
        """Whether the rule holds from ``start`` of this local day."""
        if self.weekdays and WEEKDAYS[day.weekday()] not in self.weekdays:
            return False
        return not self.dates or any(_within(day, days) for days in self.dates)

    def span(self, day: date, default_zone: str) -> tuple[datetime, datetime]:
        """First instant and end, in UTC, of the interval that starts on this local day."""
        zone = self.time_zone or default_zone
        last = day + DAY if self.end <= self.start else day
        return instant(day, self.start, zone), instant(last, self.end, zone)

    def spans(self, now: datetime, default_zone: str) -> Iterator[tuple[datetime, datetime]]:
        """The intervals around and after now."""
        today = now.astimezone(ZoneInfo(self.time_zone or default_zone)).date()
        for ahead in range(-1, DAYS_AHEAD + 1):
            day = today + ahead * DAY
            if self.starts_on(day):
                yield self.span(day, default_zone)

    def holds(self, now: datetime, default_zone: str) -> bool:
        today = now.astimezone(ZoneInfo(self.time_zone or default_zone)).date()
        for day in (today, today - DAY):
            if self.starts_on(day):
                start, end = self.span(day, default_zone)
                if start <= now < end:
                    return True
        return False


@dataclass(frozen=True, slots=True)
class Schedule(Composite):
    """Asks the policy of the active profile, and keeps its wish within the profile's limits.

    The first of ``rules`` that holds names the profile, else it is ``default``. As Azure Monitor's
    profiles (fixed date before recurrence before default, where the rules are in that order); here
    each may have a policy of its own, and any number of rules.
    """

    rules: tuple[Rule, ...]
    default: Profile
    policy: PolicyFunction | None = None
    time_zone: str = "UTC"

    @property
    def members(self) -> tuple[PolicyFunction, ...]:
        profiles = (*[rule.profile for rule in self.rules], self.default)
        asked = (*[profile.policy for profile in profiles], self.policy)
        return tuple(policy for policy in asked if policy is not None)

    def problems(self) -> list[str]:
        """Those of all rules and profiles, each behind its place."""
        problems = []
        for position, rule in enumerate(self.rules):
            if not isinstance(rule, Rule):
                problems.append(f"rules[{position}] = {rule!r}: must be a Rule")
            else:
                problems += [f"rules[{position}].{problem}" for problem in rule.problems()]
        if isinstance(self.default, Profile):
            problems += [f"default: {problem}" for problem in self.default.problems()]
        else:
            problems.append(f"default = {self.default!r}: must be a Profile")
        problems += [] if self.policy is None else member("policy", self.policy)
        return problems + _zone_problems(self.time_zone)

    def active(self, now: datetime) -> Profile:
        """The profile that holds at a time."""
        holding = (rule.profile for rule in self.rules if rule.holds(now, self.time_zone))
        return next(holding, self.default)

    def until(self, now: datetime) -> datetime | None:
        """When another profile follows; None where that is more than a week away."""
        active = self.active(now)
        edges = {
            edge
            for rule in self.rules
            for span in rule.spans(now, self.time_zone)
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
        limits = Limits(min(low, high), high) if low > high else Limits(low, high)
        wish = self._ask(profile, replace(seen, limits=limits))
        said = self._said(profile, seen.now)
        wanted = _clamped(wish.capacity, profile)
        if wanted != wish.capacity:
            bound = "minimum" if wanted > wish.capacity else "maximum"
            said += f", {bound} {wanted} instead of {wish.capacity}"
        return replace(
            wish,
            capacity=wanted,
            reason=f"{said}: {wish.reason}",
            rule="schedule",
            evidence={**wish.evidence, "rule": wish.rule, "profile": profile.name},
            paced=wish.paced and wanted == wish.capacity,
            candidates=flattened([wish]),
        )

    def _ask(self, profile: Profile, seen: Observation) -> Recommendation:
        policy = profile.policy or self.policy
        if policy is None:
            return Recommendation(seen.capacity, "the profile has limits only", "limits")
        return ask(policy, seen)

    def _said(self, profile: Profile, now: datetime) -> str:
        end = self.until(now)
        if end is None:
            return f"profile {profile.name} for more than a week"
        local = end.astimezone(ZoneInfo(self.time_zone))
        day = WEEKDAYS[local.weekday()]
        return f"profile {profile.name} until {day} {local:%H:%M} {self.time_zone}"


@lru_cache(maxsize=4096)
def instant(day: date, clock: time, zone_name: str) -> datetime:
    """The first instant, in UTC, at which the wall clock of the zone shows this time or a later."""
    zone = ZoneInfo(zone_name)
    wall = datetime.combine(day, clock)
    late = wall.replace(tzinfo=zone).astimezone(UTC)
    if late.astimezone(zone).replace(tzinfo=None) == wall:
        return late
    # In a gap: late lies behind it, fold=1 before it; the clock jumps at a whole second between.
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


def _listed(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


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
