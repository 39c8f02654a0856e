"""What a policy is asked and what it answers, and the resource that it decides for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from shared.autoscaling.declaring import (
    CapacityTarget,
    Cooldown,
    Goal,
    Guards,
    Limits,
    ManualChange,
    MetricSource,
    Mode,
    Service,
)
from shared.autoscaling.desired import Desired
from shared.autoscaling.measurements import NO_SAMPLES, NOTHING, Evidence, WeekProfile, Window
from shared.quick import quick


class UnknownMetric(LookupError):
    """A rule asks for a metric that its resource does not declare."""


@quick
@dataclass(frozen=True, slots=True)
class Observation:
    """All that a policy may look at.

    ``metrics`` holds what belongs to the present capacity: samples since the last confirmed
    change, inside the window. ``histories`` holds all that is kept, changes or not.
    """

    resource_name: str
    now: datetime
    capacity: int
    limits: Limits
    metrics: Mapping[str, Window]
    changed_at: datetime | None = None
    histories: Mapping[str, Window] = field(default_factory=lambda: NOTHING)
    capacities: Window = NO_SAMPLES
    """When which capacity was seen; of a run of equal ones only the first and the newest."""
    pending: Desired | None = None
    """The change that was ordered and is not confirmed yet."""
    goal: Goal = Goal()
    service: Service = Service()
    """As fixed by hand or else as learned; None where neither is known well enough."""
    profile: WeekProfile | None = None

    def window(self, name: str) -> Window:
        """Raises UnknownMetric where the resource does not declare it."""
        return _declared(self.metrics, name)

    def history(self, name: str) -> Window:
        """Raises UnknownMetric where the resource does not declare it."""
        return _declared(self.histories, name)


def _declared(windows: Mapping[str, Window], name: str) -> Window:
    try:
        return windows[name]
    except KeyError:
        known = ", ".join(sorted(windows)) or "none"
        message = f"{name!r} is not one of the resource's metrics ({known})"
        raise UnknownMetric(message) from None


@quick
@dataclass(frozen=True, slots=True)
class Recommendation:
    """The capacity that a rule wants, and why. The current capacity means: stay."""

    capacity: int
    reason: str
    rule: str = "rule"
    evidence: Evidence = field(default_factory=lambda: NOTHING)
    counterfactual: str = ""
    """What would have led to another wish, such as "out at mean backlog > 100"."""
    paced: bool = False
    """True where the rule has accounted for changes under way and of late; no cooldown applies."""
    candidates: tuple[Recommendation, ...] = ()
    """What the rules wanted that this one combines."""


Policy = Callable[[Observation], Recommendation]


@dataclass(frozen=True, slots=True)
class Resource:
    """One thing to scale: where its capacity is set, what is measured, and the rule."""

    name: str
    target: CapacityTarget
    metrics: Mapping[str, MetricSource]
    policy: Policy
    limits: Limits = Limits()
    cooldown: Cooldown = Cooldown()
    window_seconds: float = 600
    history_seconds: float = 1800
    """How long samples are kept for policies that look further back than the window."""
    guards: Guards = Guards()
    goal: Goal = Goal()
    service: Service = Service()
    mode: Mode = Mode.ACTIVE
    on_manual_change: ManualChange = ManualChange.ADOPT
