"""SeasonalFloor: at least the instances that the load expected from past weeks requires."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from math import ceil
from typing import Annotated
from zoneinfo import ZoneInfo

from shared.autoscaling.policies.checks import member
from shared.autoscaling.policies.combine import passed_on
from shared.autoscaling.policies.recommendations import (
    RATE_UNKNOWN,
    instances,
    instances_text,
    shown,
)
from shared.autoscaling.policy import Composite, Observation, PolicyFunction, Recommendation, ask
from shared.values.bounds import Bounds, Positive, problems_of
from shared.values.measurements import HOURS_OF_A_WEEK, EvidenceValue, WeekProfile

LEAD_MINUTES_MAX = 1440
"""The policy looks ahead by at most one day."""


@dataclass(frozen=True, slots=True)
class SeasonalFloor(Composite):
    """Raises the recommendation of ``policy`` to the instances that the expected load requires.

    The floor is ⌈``headroom``·λ / μ⌉ instances. λ is the highest load in items per minute that the
    weekly profile expects from now until ``lead_minutes`` later, by default until the start-up time
    later. μ is the rate per busy instance, in items per minute: ``rate_per_instance_minute``, or
    else that of the resource. The floor never lowers a recommendation. Without a rate or a known
    hour, the recommendation of ``policy`` applies, and the reason says what is missing.

    Source: Gandhi et al., "AutoScale" and "Hybrid resource provisioning".
    """

    policy: PolicyFunction
    headroom: Positive = 1.0
    lead_minutes: Annotated[float, Bounds(0, LEAD_MINUTES_MAX)] | None = None
    rate_per_instance_minute: Positive | None = None

    def problems(self) -> list[str]:
        """The invalid parameters, each with its value and bound."""
        return member("policy", self.policy) + problems_of(self)

    def __call__(self, seen: Observation) -> Recommendation:
        recommended = ask(self.policy, seen)
        rate = self.rate_per_instance_minute or seen.throughput.rate_per_instance_minute
        if seen.profile is None:
            return _without(recommended, "there is no weekly profile yet")
        if seen.profile.absent:
            return _without(recommended, f"there is no weekly profile: {seen.profile.absent}")
        if not rate:
            return _without(recommended, RATE_UNKNOWN)
        try:
            load, weeks = self._busiest(seen, seen.profile)
        except (IndexError, KeyError, ValueError, OSError) as error:
            return _without(recommended, f"the weekly profile is unusable ({error})")
        if load is None:
            return _without(recommended, "the weekly profile has no data for this hour")
        floor = instances(self.headroom * load / rate)
        evidence: dict[str, EvidenceValue] = {"floor": floor, "expected_per_minute": load}
        if weeks is not None:
            evidence["weeks"] = weeks
        reason, wish = self._reason(load, weeks, rate, floor), recommended.capacity
        if floor <= wish:
            reason = f"{recommended.reason}; {reason}"
            evidence = {**recommended.evidence, **evidence}
            return replace(recommended, reason=reason, evidence=evidence)
        reason = f"{reason}, above the recommended {wish}: {recommended.reason}"
        return passed_on(recommended, floor, reason, "seasonal_floor", {**evidence, "wish": wish})

    def _reason(self, load: float, weeks: int | None, rate: float, floor: int) -> str:
        known = "" if weeks is None else f" (from {weeks} week{'s' if weeks != 1 else ''})"
        headroom = "" if self.headroom == 1 else f" and a headroom of {shown(self.headroom)}"
        return (
            f"the weekly profile expects {shown(load)} arrivals/min{known}; at {shown(rate)} "
            f"items/min per instance{headroom}, the floor is {instances_text(floor)}"
        )

    def _busiest(self, seen: Observation, profile: WeekProfile) -> tuple[float | None, int | None]:
        """The highest expected load of the hours ahead, in items per minute, and the number of
        weeks with data; None for what is not known."""
        loads = profile.items_per_minute
        if len(loads) != HOURS_OF_A_WEEK:
            raise ValueError(f"{len(loads)} hours instead of {HOURS_OF_A_WEEK}")
        lead = self.lead_minutes
        if lead is None:
            lead = seen.throughput.start_up_minutes or 0
        zone = ZoneInfo(profile.time_zone)
        lead = min(lead, LEAD_MINUTES_MAX)
        steps = [*range(0, ceil(lead), 60), lead]
        times = [(seen.now + timedelta(minutes=step)).astimezone(zone) for step in steps]
        hours = [time.weekday() * 24 + time.hour for time in times]
        known = [hour for hour in hours if loads[hour] is not None]
        if not known:
            return None, None
        hour = max(known, key=lambda each: loads[each] or 0.0)
        return loads[hour], profile.weeks[hour] if profile.weeks else None


def _without(recommended: Recommendation, cause: str) -> Recommendation:
    return replace(recommended, reason=f"{recommended.reason}; no seasonal floor: {cause}")
