"""The declarations in scaling_rules.py: plans, limits, guards and the goal. Capacities are whole
instances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal
from warnings import warn

from shared.values.bounds import AtLeastOne, Bounds, Flag, Name, matching, name_problem
from shared.values.measurements import HISTORY_SECONDS_MAX, NOTHING
from shared.values.text import UUID

DAY_SECONDS = 86_400
PLAN_CAPACITY_MAX = 100
"""The most instances that any tier of App Service Plans has (Isolated v2)."""

RENAMED_START_UP = "dead_time_minutes of Throughput was renamed: use start_up_minutes"

UpToADay = Annotated[float, Bounds(0, DAY_SECONDS)]


def _part_of_an_id(value: object) -> str:
    return name_problem(value) or ("must be a name without slashes" if "/" in str(value) else "")


@dataclass(frozen=True, slots=True)
class AppServicePlan:
    """The App Service plan to scale. ``name`` must be the plan's full name."""

    subscription_id: Annotated[str, matching(UUID, "must be a UUID, not a name")]
    resource_group: Annotated[str, _part_of_an_id]
    name: Annotated[str, _part_of_an_id]


class Mode(StrEnum):
    """What the app does for a resource."""

    ACTIVE = "active"  # decide and change the capacity
    DRY_RUN = "dry_run"  # decide and log, but change nothing
    PAUSED = "paused"  # keep the samples, but decide nothing


class ManualChange(StrEnum):
    """How the app responds when something else has changed the capacity."""

    ADOPT = "adopt"  # accept it as the new desired capacity
    ENFORCE = "enforce"  # set the capacity back


@dataclass(frozen=True, slots=True)
class Limits:
    """The range of the capacity, in instances. Both ends are included."""

    minimum: AtLeastOne = 1
    maximum: Annotated[int, Bounds(high=PLAN_CAPACITY_MAX)] = 10


@dataclass(frozen=True, slots=True)
class Cooldown:
    """The wait from a confirmed change to the next one, for each direction of the next change."""

    scale_out_seconds: UpToADay = 600
    scale_in_seconds: UpToADay = 600
    scale_out_pierces: Flag = True
    """True if a scale-out does not wait for a cooldown after a scale-in, because too few instances
    cost more than too many."""


Then = Literal["hold", "hold_in"] | int


@dataclass(frozen=True, slots=True)
class Missing:
    """What to do once a metric has had no sample for ``after_seconds``. ``hold`` keeps the
    capacity, and ``hold_in`` prevents scale-in. So does a number, which is the capacity to fall
    back to from fewer instances."""

    after_seconds: Annotated[float, Bounds(1, DAY_SECONDS)] = 180
    then: Then = "hold_in"


@dataclass(frozen=True, slots=True)
class RateLimit:
    """The most by which the capacity may change within any period of ``period_seconds``: either
    ``instances``, or ``percent`` of the capacity at its start. A percentage above 0 allows at least
    one instance."""

    direction: Literal["out", "in"]
    period_seconds: float
    instances: Annotated[int, Bounds(0)] | None = None
    percent: Annotated[float, Bounds(0, 10_000)] | None = None


@dataclass(frozen=True, slots=True)
class Guards:
    """Rules that may change the recommended capacity, in addition to limits and cooldown, in the
    order of ``GUARDS`` in ``deciding/guards.py``."""

    missing: Missing = Missing()
    missing_by_metric: Mapping[str, Missing] = field(default_factory=lambda: NOTHING)
    breaker_metric: Name | None = None
    """A metric that is above 0 while the consumer's circuit breaker is open; it prevents scale-out.
    """
    stabilisation_out_seconds: Annotated[float, Bounds(0, HISTORY_SECONDS_MAX)] = 0
    stabilisation_in_seconds: Annotated[float, Bounds(0, HISTORY_SECONDS_MAX)] = 0
    rate_limits: tuple[RateLimit, ...] = ()
    flap_projection: Flag = True
    scale_changes_per_hour: Annotated[int, Bounds(5, 10_000)] = 20
    """The changes of a plan that Azure allows within an hour. Scale-in leaves the last four."""
    nothing_finished_seconds: UpToADay = 1800
    """How long the resource is not scaled out if counts say that nothing is finished although work
    waits, because more instances would not work either, or that those added last finish nothing
    more. 0 permits scale-out."""
    step_back: Flag = False
    """True if instances that finish nothing more are removed. It needs ``start_up_minutes``."""

    def missing_for(self, metric_name: str) -> Missing:
        return self.missing_by_metric.get(metric_name, self.missing)


@dataclass(frozen=True, slots=True)
class Goal:
    """The costs that a policy minimizes: Σ instances + ``switch_cost``·Σ|change| +
    ``late_penalty``·late work, in instance-minutes. Work is late once it has waited for longer than
    ``age_limit_minutes``."""

    age_limit_minutes: Annotated[float, Bounds(0.01, 1440)] = 5
    switch_cost: Annotated[float, Bounds(0, 1e6)] = 2
    late_penalty: Annotated[float, Bounds(0, 1e6)] = 10


@dataclass(frozen=True, slots=True, init=False)
class Throughput:
    """The rate per instance, which the app learns if it is None, and the start-up time, which is
    then assumed to be three minutes, or the wait until Azure shows new instances if longer."""

    rate_per_instance_minute: Annotated[float, Bounds(1e-6, 1e12)] | None = None
    """The items that one busy instance finishes per minute."""
    start_up_minutes: Annotated[float, Bounds(0, 120)] | None = None
    """The start-up time: from the request for more instances until they work."""
    completed_metric: Name | None = None
    """The metric that counts the items completed since its previous sample, from which the rate is
    learned. Decisions do not use it, so its samples may arrive minutes late."""
    incoming_metric: Name | None = None
    """Instead of ``completed_metric``: the metric that counts the items that arrived since its
    previous sample."""
    trust_rate: Flag = False
    """True if decisions use ``rate_per_instance_minute`` even if what is seen contradicts it."""

    def __init__(
        self,
        rate_per_instance_minute: float | None = None,
        start_up_minutes: float | None = None,
        completed_metric: str | None = None,
        incoming_metric: str | None = None,
        *,
        trust_rate: bool = False,
        dead_time_minutes: float | None = None,
    ) -> None:
        """``dead_time_minutes`` is the earlier name of ``start_up_minutes``."""
        if dead_time_minutes is not None:
            if start_up_minutes is not None:
                raise TypeError(f"{RENAMED_START_UP}: give one of them")
            warn(RENAMED_START_UP, DeprecationWarning, stacklevel=2)
            start_up_minutes = dead_time_minutes
        object.__setattr__(self, "rate_per_instance_minute", rate_per_instance_minute)
        object.__setattr__(self, "start_up_minutes", start_up_minutes)
        object.__setattr__(self, "completed_metric", completed_metric)
        object.__setattr__(self, "incoming_metric", incoming_metric)
        object.__setattr__(self, "trust_rate", trust_rate)

    @property
    def rate_trusted(self) -> bool:
        """True if a rate is set by hand and used whatever is seen."""
        return self.trust_rate and self.rate_per_instance_minute is not None

    @property
    def dead_time_minutes(self) -> float | None:
        warn(RENAMED_START_UP, DeprecationWarning, stacklevel=2)
        return self.start_up_minutes

    @property
    def counted_metric(self) -> str | None:
        """The metric that the rate per instance is learned from."""
        return self.completed_metric or self.incoming_metric
