"""The state of a resource, which is committed as a whole, and the rows that a commit changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from shared.autoscaling.declaring import Mode
from shared.autoscaling.plan_facts import PlanFacts
from shared.values.measurements import NO_SAMPLES, NOTHING, WeekProfile, Window

EPOCH_MAX = 10**9 - 1
"""The highest epoch: 31 years of an action a second. Keys of the log have as many digits."""


@dataclass(frozen=True, slots=True)
class ScaleAction:
    """An instruction to set the resource to ``target`` instances. The target is absolute, so
    carrying it out twice changes nothing. ``epoch`` increases with every decision, and older ones
    are ignored."""

    resource_name: str
    target: int
    epoch: int
    reason: str
    requested_at: datetime


class ActionStatus(StrEnum):
    PENDING = "pending"
    CONFIRMED = "confirmed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Desired:
    """The most recently decided capacity, and the progress of its action."""

    target: int
    epoch: int
    reason: str
    requested_at: datetime
    previous: int
    superseded: tuple[int, ...] = ()
    """The targets of actions that were replaced before they were confirmed."""
    status: ActionStatus = ActionStatus.PENDING
    sent_at: datetime | None = None
    changed_at: datetime | None = None
    """The time of the last confirmed change. It is kept while a new action is pending."""
    changed_out: bool | None = None
    """True if that change was a scale-out."""
    changed_by_hand: bool = False
    """True if that change was a manual one."""
    retry_at: datetime | None = None
    attempts: int = 0
    last_error: str = ""
    changes: tuple[int, ...] = ()
    """The times of the app's changes within the last hour, in seconds since 1970."""
    reached: int | None = None
    """The capacity between ``previous`` and ``target`` that the plan was last seen to have."""
    progressed_at: datetime | None = None
    """The time at which ``reached`` was seen first."""
    given_up: int | None = None
    """The requested capacity that the app no longer waits for, although the plan may get there."""

    @property
    def pending(self) -> bool:
        """True until the action is confirmed or has failed."""
        return self.status is ActionStatus.PENDING

    @property
    def capacity(self) -> int:
        """The capacity that the plan has according to this state."""
        if self.status is ActionStatus.CONFIRMED:
            return self.target
        return self.previous if self.reached is None else self.reached

    @property
    def requested(self) -> int:
        """The capacity that was asked for, also if the app no longer waits for all of it."""
        return self.target if self.given_up is None else self.given_up

    @property
    def waiting_since(self) -> datetime:
        """The time of the request, or of the last progress after it."""
        return max(self.requested_at, self.progressed_at or self.requested_at)


@dataclass(frozen=True, slots=True)
class Override:
    """An operator's override of the policy and the mode. A field that is None overrides nothing."""

    mode: Mode | None = None
    reason: str = ""
    expires_at: datetime | None = None
    freeze_scale_in: bool = False
    floor: int | None = None
    exact: int | None = None


@dataclass(frozen=True, slots=True)
class BacklogTrend:
    """What the app has learned about the rate from the backlog. See backlog_rate.py."""

    until: datetime | None = None
    """The time of the last sample that was used."""
    busy: float = 0
    """The number of minutes in which all instances were busy."""
    gap: float = 0
    """The number of minutes since the last of them."""
    growth: float = 0
    """The moving average of the backlog's growth, in items per minute."""
    instances: float = 0
    """The moving average of the capacity, in instances."""
    variance: float = 0
    """The variance of the noise in the growth."""
    information: float = 0
    """The information of the regression: 1 / variance of its throughput."""
    weighted_rate: float = 0
    """The rate of the regression, multiplied by the information."""
    drained: float = 0
    """The lower bound of the rate that follows from decreases of the backlog."""
    needed: float = 0
    """The lower bound of the rate that follows if the plan is large enough for its load."""
    against: float = 0
    """What the growth says against a rate that is set by hand. See claims.py."""


@dataclass(frozen=True, slots=True)
class BusyIntervals:
    """The last intervals in which all instances were busy. See throughput.py."""

    until: datetime | None = None
    """The end of the last interval that was evaluated."""
    recent: tuple[tuple[float, ...], ...] = ()
    """For each interval, the deliveries that ended and the instance-minutes; and if they differ,
    those that did not fail, and those of instances that surely worked."""
    since_empty: int = 0
    """How many of them have ended since the queue was empty."""
    minutes: float = 0
    """The usual length of an interval; 0 if none was evaluated since this is stored."""


@dataclass(frozen=True, slots=True)
class RateClaim:
    """The doubt about a rate that is set by hand. See claims.py."""

    told: float
    """The rate that is set, in items per minute."""
    doubt: float = 0
    since: datetime | None = None
    """The time since which it is doubted; None if it is not."""
    refuted_at: datetime | None = None
    """The time at which it was refuted; None if it is not."""
    shown: bool = False
    """True if it was shown since then that more instances help."""


@dataclass(frozen=True, slots=True)
class Stall:
    """A time in which items wait in a backlog, and none is seen to be finished. See backlogs.py."""

    metric: str
    since: datetime
    """The last time at which the backlog was empty or fell, or at which a finished item was
    counted. If there is none, the time of the first sample."""
    oldest_at: datetime | None = None
    """All waiting items have arrived since this time; None if this is not known."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What the app has learned about a resource's instances and backlogs. See learning/."""

    epoch: int = 0
    """The epoch of the last change whose start-up time was measured."""
    dead_times: int = 0
    dead_time_minutes: float = 0
    work: BusyIntervals = BusyIntervals()
    trend: BacklogTrend = BacklogTrend()
    stalls: tuple[Stall, ...] = ()
    """The present stalls that have lasted for more than one sample."""
    claim: RateClaim | None = None
    """The doubt about the rate that is set by hand; None if none is set."""


@dataclass(frozen=True, slots=True)
class RulesInForce:
    """The version of the rules that decides. See activation.py."""

    version: str
    activated_at: datetime
    replaced: tuple[str, ...] = ()
    """The versions that were in force before, the last one at the end."""
    waiting_since: datetime | None = None
    """The time of the first sample since the last decision of this version that a copy with
    another version stored. It is None if there is no such sample."""
    other: str = ""
    """The other version that stored a sample last."""
    other_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ScalingState:
    """All that is stored about one resource, except the decision log."""

    histories: Mapping[str, Window] = field(default_factory=lambda: NOTHING)
    desired: Desired | None = None
    override: Override | None = None
    recommendations: Window = NO_SAMPLES
    """The capacities that the policy recently recommended, if a stabilization window needs them."""
    learned: Learned = Learned()
    profile: WeekProfile | None = None
    rules: RulesInForce | None = None
    plan: PlanFacts | None = None
    """What Azure last said about the plan; None if it is not known yet."""

    def with_history(self, name: str, history: Window) -> ScalingState:
        return replace(self, histories={**self.histories, name: history})

    def with_desired(self, desired: Desired) -> ScalingState:
        return replace(self, desired=desired)

    def with_rules(self, rules: RulesInForce | None) -> ScalingState:
        """The state with this version in force; the same state if ``rules`` is None."""
        return self if rules is None else replace(self, rules=rules)

    def with_plan(self, plan: PlanFacts | None) -> ScalingState:
        """The state with these facts; the same state if they are None or known. Autoscale settings
        that cannot be listed now are those that were known."""
        if plan and plan.unlisted and self.plan:
            plan = replace(plan, autoscale=self.plan.autoscale)
        return self if plan in (None, self.plan) else replace(self, plan=plan)


DESIRED_ROW = "desired"
LEARNED_ROW = "learned"
METRIC_PREFIX = "metric|"
OVERRIDE_ROW = "override"
PLAN_ROW = "plan"
PROFILE_ROW = "profile"
RECOMMENDATIONS_ROW = "wishes"
RULES_ROW = "rules"

RowValue = Window | Desired | Learned | RulesInForce | PlanFacts


def changed_rows(old: ScalingState, new: ScalingState) -> Iterator[tuple[str, RowValue]]:
    """The row key and the value of each row that differs. That of the rules is also written with
    each change of the desired state, which so fails if another version was activated meanwhile.
    Overrides and profiles have other writers."""
    for name, history in new.histories.items():
        if old.histories.get(name) != history:
            yield METRIC_PREFIX + name, history
    if new.desired is not None and old.desired != new.desired:
        yield DESIRED_ROW, new.desired
    if old.recommendations != new.recommendations:
        yield RECOMMENDATIONS_ROW, new.recommendations
    if old.learned != new.learned:
        yield LEARNED_ROW, new.learned
    if new.plan is not None and old.plan != new.plan:
        yield PLAN_ROW, new.plan
    if new.rules is not None and (old.rules, old.desired) != (new.rules, new.desired):
        yield RULES_ROW, new.rules
