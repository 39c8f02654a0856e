"""What Azure says about a plan besides its capacity, and how it narrows the limits. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shared.autoscaling.declaring import PLAN_CAPACITY_MAX, Limits
from shared.values.measurements import CAPACITY_SANE_MAX, MetricValue
from shared.values.row_values import value_of
from shared.values.text import quoted


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """Facts about a plan. A field that Azure did not state has its default, which limits nothing.
    ``minimum`` and ``maximum`` are the capacities that Azure allows."""

    tier: str = ""
    minimum: int = 1
    maximum: int = PLAN_CAPACITY_MAX
    unscalable: str = ""
    """Why the app must not scale the plan; empty if it may."""
    per_app: bool = False
    """True if each app may have a number of instances of its own."""
    environment: str = ""
    """The resource ID of the App Service Environment; empty if there is none."""
    autoscale: str = ""
    """Which autoscale settings of Azure Monitor scale the plan too; empty if none is known."""
    unlisted: str = ""
    """Why the settings cannot be listed."""

    def limits(self, declared: Limits) -> Limits:
        """The declared limits, as far as the plan can have such capacities."""
        low = min(max(declared.minimum, self.minimum), self.maximum)
        high = max(min(declared.maximum, self.maximum), low)
        same = (low, high) == (declared.minimum, declared.maximum)
        return declared if same else Limits(low, high)

    def narrowed(self, declared: Limits) -> dict[int, str]:
        """The limits that are not the declared ones, each with the reason."""
        limits, told = self.limits(declared), {}
        if declared.maximum > self.maximum:
            tier = f" in tier {self.tier}" if self.tier else ""
            told[limits.maximum] = (
                f"Azure allows this plan at most {self.maximum} instances{tier}, "
                f"fewer than the declared maximum of {declared.maximum}"
            )
        if declared.minimum < self.minimum:
            told[limits.minimum] = (
                f"Azure allows this plan no fewer than {self.minimum} instances because it is "
                f"zone-redundant, more than the declared minimum of {declared.minimum}"
            )
        return told

    def notes(self, declared: Limits) -> Iterator[str]:
        """What limits the app besides, and what an operator should know of it."""
        yield from self.narrowed(declared).values()
        if self.per_app:
            yield (
                "per-app scaling is on, so new instances do nothing for an app that has a number "
                "of instances of its own"
            )


@dataclass(frozen=True, slots=True)
class PlanReading(MetricValue):
    """The capacity of a plan, with the facts that the same answer states."""

    facts: PlanFacts = PlanFacts()
    failure: str = ""
    """Why the last change of the plan did not complete; empty if it did, or is still under way."""
    plan: Any = field(default=None, compare=False, repr=False)
    """The plan in the form of the adapter that has read it, from which it makes a change."""


def of_fields(given: object) -> PlanFacts:
    """The facts of a JSON object or a row. Unknown fields are ignored. Raises ValueError."""
    if not isinstance(given, Mapping):
        raise ValueError(f"{quoted(given)} must be a JSON object")
    try:
        facts = value_of(PlanFacts, given)
    except TypeError as error:
        raise ValueError(str(error)) from error
    if not 1 <= facts.minimum <= facts.maximum <= CAPACITY_SANE_MAX:
        raise ValueError(f"{facts.minimum} to {facts.maximum} instances is no range of capacities")
    return facts
