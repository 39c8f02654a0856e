"""No fewer instances than the load to expect needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from shared.autoscaling.measurements import WeekProfile
from shared.autoscaling.policies.checks import member, number, number_or_none
from shared.autoscaling.policies.combine import flattened
from shared.autoscaling.policies.recommendations import instances, shown
from shared.autoscaling.policy import Composite, Observation, PolicyFunction, Recommendation, ask

HOURS_OF_A_WEEK = 168
LEAD_MINUTES_MAX = 1440


@dataclass(frozen=True, slots=True)
class SeasonalFloor(Composite):
    """At least ⌈``headroom``·λ(hour of the week) / μ⌉ instances; never fewer than ``policy`` wants.

    λ is the highest load that ``seen.profile`` expects between now and ``lead_minutes`` later (by
    default the dead time), so that instances are there when it comes and go once it is over. Only
    raises: a forecast is no reason to scale in. Without a rate, a profile or a known hour in that
    time the policy's wish stands, and the reason says what is missing.
    Source: Gandhi et al., "AutoScale" and "Hybrid resource provisioning" (base load by forecast,
    the rest by reaction).
    """

    policy: PolicyFunction
    headroom: float = 1.0
    lead_minutes: float | None = None
    rate_per_instance_minute: float | None = None

    @property
    def members(self) -> tuple[PolicyFunction, ...]:
        return (self.policy,)

    def problems(self) -> list[str]:
        """What is wrong with the parameters, each with its value and bound."""
        lead = self.lead_minutes
        return [
            *member("policy", self.policy),
            *number("headroom", self.headroom, above=0),
            *number_or_none("lead_minutes", lead, at_least=0, at_most=LEAD_MINUTES_MAX),
            *number_or_none("rate_per_instance_minute", self.rate_per_instance_minute, above=0),
        ]

    def __call__(self, seen: Observation) -> Recommendation:
        wish = ask(self.policy, seen)
        rate = self.rate_per_instance_minute or seen.throughput.rate_per_instance_minute
        if seen.profile is None:
            return _without(wish, "no profile of the week yet")
        if seen.profile.absent:
            return _without(wish, f"no profile of the week: {seen.profile.absent}")
        if not rate:
            return _without(wish, "the rate of an instance is not known")
        try:
            hour = self._busiest(seen, seen.profile)
        except (IndexError, KeyError, ValueError, OSError) as error:
            return _without(wish, f"profile of the week is unusable ({error})")
        if hour is None:
            return _without(wish, "the profile of the week has no week for this hour")
        expected = hour.load
        floor = instances(self.headroom * expected / rate)
        evidence = {**wish.evidence, "floor": floor, "expected_per_minute": expected}
        said = f"floor {floor} for {shown(expected)} expected a minute"
        if hour.weeks is not None:
            evidence["weeks"] = hour.weeks
            said = f"{said} from {hour.weeks} week{'s' if hour.weeks != 1 else ''}"
        if floor <= wish.capacity:
            return replace(wish, reason=f"{wish.reason}; {said}", evidence=evidence)
        return replace(
            wish,
            capacity=floor,
            reason=f"{said}, {shown(rate)} done by each; else {wish.capacity}: {wish.reason}",
            rule="seasonal_floor",
            evidence={**evidence, "wish": wish.capacity},
            paced=False,
            candidates=flattened([wish]),
        )

    def _busiest(self, seen: Observation, profile: WeekProfile) -> _Hour | None:
        """Of the hours that are known; None where none of them is."""
        lead = self.lead_minutes
        if lead is None:
            lead = seen.throughput.dead_time_minutes or 0
        zone = ZoneInfo(profile.time_zone)
        lead = min(lead, LEAD_MINUTES_MAX)
        steps = [*range(0, int(lead), 60), lead]
        times = [(seen.now + timedelta(minutes=step)).astimezone(zone) for step in steps]
        hours = [_hour(profile, time) for time in times]
        return max([hour for hour in hours if hour], key=lambda hour: hour.load, default=None)


@dataclass(frozen=True, slots=True)
class _Hour:
    """``weeks`` is None where the profile does not tell them."""

    load: float
    weeks: int | None


def _hour(profile: WeekProfile, time: datetime) -> _Hour | None:
    if len(profile.items_per_minute) != HOURS_OF_A_WEEK:
        raise ValueError(f"{len(profile.items_per_minute)} hours instead of {HOURS_OF_A_WEEK}")
    hour = time.weekday() * 24 + time.hour
    load = profile.items_per_minute[hour]
    if load is None:
        return None
    return _Hour(load, profile.weeks[hour] if profile.weeks else None)


def _without(wish: Recommendation, why: str) -> Recommendation:
    return replace(wish, reason=f"{wish.reason}; no floor: {why}")
