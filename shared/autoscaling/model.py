"""The nouns of autoscaling.

Frozen values without behaviour beyond what they can say of themselves. Times are aware UTC
datetimes; capacities are whole instances; other units stand at the end of the name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Literal

from shared.quick import quick

CAPACITY_METRIC = "capacity"
"""Reserved metric name: the capacity that the target itself reports."""

CAPACITY_SANE_MAX = 1000
"""No target has more instances; a larger number is a mistake of the sender."""

EPOCH_MAX = 10**9 - 1
"""Of an order: one a second for 31 years. The keys of the decision log have digits for no more."""

EvidenceValue = float | int | str | bool | None
Evidence = Mapping[str, EvidenceValue]
NOTHING: Mapping[str, Any] = MappingProxyType({})


# --- samples ----------------------------------------------------------------------------------


@quick
@dataclass(frozen=True, slots=True)
class MetricValue:
    """One sample: what a source answered, at the time of the source's own clock."""

    time: datetime
    value: float


@quick
@dataclass(frozen=True, slots=True)
class Metric:
    """One sample of one named metric, addressed to the resource whose rules want it."""

    resource_name: str
    name: str
    value: MetricValue


# --- what the user declares -------------------------------------------------------------------

Count = Literal["active", "dead_letter", "scheduled"]


@dataclass(frozen=True, slots=True)
class ServiceBusSubscription:
    """Messages that wait in a topic's subscription.

    Scheduled messages wait in the topic, not in its subscriptions: ``count="scheduled"`` reads
    the topic's count.
    """

    topic: str
    subscription: str
    count: Count = "active"
    connection: str = "ServiceBusConnection"


@dataclass(frozen=True, slots=True)
class ServiceBusQueue:
    """Messages that wait in a Service Bus queue."""

    queue: str
    count: Count = "active"
    connection: str = "ServiceBusConnection"


@dataclass(frozen=True, slots=True)
class StorageQueue:
    """Approximate number of messages in a Storage queue, invisible ones included."""

    queue: str
    connection: str = "AzureWebJobsStorage"


@dataclass(frozen=True, slots=True)
class AppServicePlan:
    """The App Service Plan to scale, named exactly: never by a part of its name."""

    subscription_id: str
    resource_group: str
    name: str


@dataclass(frozen=True, slots=True)
class PlanCapacity:
    """The instances that a plan is set to; collected for every resource by itself."""

    plan: AppServicePlan


@dataclass(frozen=True, slots=True)
class HubMetric:
    """A metric that somebody sends to the event hub, as the JSON of the queue ``metrics``."""


@dataclass(frozen=True, slots=True)
class IngestionBreaker:
    """The circuit breaker around the event hub: 0 while it is closed, 1 while it is not."""


Aggregation = Literal["average", "total", "minimum", "maximum", "count"]


@dataclass(frozen=True, slots=True)
class AzureMonitorMetric:
    """A platform metric that a diagnostic setting of ``resource_id`` streams to the event hub.

    Records that differ by dimensions only are summed up. ``time_grain`` is an ISO 8601 duration.
    """

    resource_id: str
    metric: str
    aggregation: Aggregation = "average"
    time_grain: str = "PT1M"


PushedMetric = HubMetric | AzureMonitorMetric
"""Metrics that come by themselves."""
ReadMetric = (
    ServiceBusSubscription | ServiceBusQueue | StorageQueue | PlanCapacity | IngestionBreaker
)
MetricSource = ReadMetric | PushedMetric
CapacityTarget = AppServicePlan


class Mode(StrEnum):
    """What the autoscaler may do to a resource."""

    ACTIVE = "active"
    DRY_RUN = "dry_run"  # decide and log, change nothing
    PAUSED = "paused"  # keep the samples, decide nothing


class ManualChange(StrEnum):
    """What to do when somebody else changed the capacity."""

    ADOPT = "adopt"  # take it as the new desired capacity and go on from there
    ENFORCE = "enforce"  # set it back


@dataclass(frozen=True, slots=True)
class Limits:
    """Capacity never leaves minimum..maximum, both included."""

    minimum: int = 1
    maximum: int = 10


@dataclass(frozen=True, slots=True)
class Cooldown:
    """Seconds after a confirmed change before the next one, by the direction of the next one."""

    scale_out_seconds: float = 600
    scale_in_seconds: float = 600
    scale_out_pierces: bool = True
    """After a scale-in, a scale-out need not wait: too few instances cost more than too many."""


Then = Literal["hold", "hold_in"] | int


@dataclass(frozen=True, slots=True)
class Missing:
    """What to do once a metric has had no sample for ``after_seconds``.

    ``hold``: stay; ``hold_in``: do not scale in; a number: go to that many instances.
    """

    after_seconds: float = 180
    then: Then = "hold_in"


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most so many instances, or percent of those at its start, within any such period."""

    direction: Literal["out", "in"]
    period_seconds: float
    instances: int | None = None
    percent: float | None = None


@dataclass(frozen=True, slots=True)
class Guards:
    """What may change a rule's wish, besides limits and cooldown. The order is that of GUARDS."""

    missing: Missing = Missing()
    missing_by_metric: Mapping[str, Missing] = field(default_factory=lambda: NOTHING)
    breaker_metric: str | None = None
    """While its newest value is above 0 the consumer is broken, and its backlog no reason to
    scale out."""
    stabilisation_out_seconds: float = 0
    stabilisation_in_seconds: float = 0
    rate_limits: tuple[RateLimit, ...] = ()
    flap_projection: bool = True

    def missing_for(self, metric_name: str) -> Missing:
        return self.missing_by_metric.get(metric_name, self.missing)


@dataclass(frozen=True, slots=True)
class Goal:
    """What good scaling is worth; policies that optimise weigh their choices by it.

    The cost of a while is Σ instances + ``switch_cost``·Σ|change| + ``late_penalty``·late work,
    in instance-minutes. Work is late while it waits for longer than ``age_limit_minutes``.
    """

    age_limit_minutes: float = 5
    switch_cost: float = 2
    late_penalty: float = 10


@dataclass(frozen=True, slots=True)
class Service:
    """How fast instances work and how fast they come; None where that is to be learned."""

    rate_per_instance_minute: float | None = None
    """Items that one busy instance finishes in a minute."""
    dead_time_minutes: float | None = None
    """From the order of more instances until they work."""
    relative_error: float = 0
    """Of a rate that was learned; one that is fixed by hand is taken at its word."""
    completed_metric: str | None = None
    """The metric that counts the items finished since its last sample: the rate is learned from
    it. Nothing is decided on it, and it may be minutes late."""
    incoming_metric: str | None = None
    """Instead: the metric that counts the items that came since its last sample."""

    @property
    def counted_metric(self) -> str | None:
        return self.completed_metric or self.incoming_metric


@dataclass(frozen=True, slots=True)
class WeekProfile:
    """The load to expect: items per minute for each hour of the week, Monday 0:00 first.

    Hours are those of ``time_zone``; one that no week supports is None. Written by the nightly job,
    read by SeasonalFloor.
    """

    items_per_minute: tuple[float | None, ...]
    time_zone: str = "UTC"
    weeks: tuple[int, ...] = ()
    """How many weeks support each hour; empty where that is not told."""
    absent: str = ""
    """Why there is no profile, in place of the hours."""


# --- what a policy sees and says --------------------------------------------------------------


class UnknownMetric(LookupError):
    """A rule asks for a metric that its resource does not declare."""


@quick
@dataclass(frozen=True, slots=True)
class Window:
    """The samples of one metric that count, oldest first."""

    samples: tuple[MetricValue, ...] = ()

    @property
    def gaps_seconds(self) -> tuple[float, ...]:
        """Before each sample the time since the one before it; of the first nobody asks."""
        times = [sample.time for sample in self.samples]
        return (0.0, *[(b - a).total_seconds() for a, b in pairwise(times)]) if times else ()

    @property
    def count(self) -> int:
        return len(self.samples)

    @property
    def latest(self) -> MetricValue | None:
        return self.samples[-1] if self.samples else None

    @property
    def mean(self) -> float | None:
        """None without samples: a missing value is never zero."""
        return sum([s.value for s in self.samples]) / self.count if self.samples else None

    @property
    def maximum(self) -> float | None:
        return max([s.value for s in self.samples]) if self.samples else None


NO_SAMPLES = Window()


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


# --- decisions --------------------------------------------------------------------------------


@quick
@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided, and everything that led to it.

    ``desired == current`` means hold. ``limited_by`` names the guards that changed what the rule
    wanted, in the order in which they did.
    """

    resource_name: str
    time: datetime
    current: int | None
    desired: int | None
    reason: str
    candidates: tuple[Recommendation, ...] = ()
    limited_by: tuple[str, ...] = ()
    evidence: Evidence = field(default_factory=lambda: NOTHING)
    counterfactual: str = ""
    """The nearest thing that would have led to another decision."""
    applies: bool = False
    """True where the desired capacity is to be ordered now."""


@quick
@dataclass(frozen=True, slots=True)
class ScaleAction:
    """Set the resource to ``target`` instances. Absolute, so doing it twice changes nothing.

    ``epoch`` grows with every decision; an action of an older epoch than the state's is void.
    """

    resource_name: str
    target: int
    epoch: int
    reason: str
    requested_at: datetime


# --- state ------------------------------------------------------------------------------------


class ActionStatus(StrEnum):
    PENDING = "pending"
    CONFIRMED = "confirmed"
    FAILED = "failed"


@quick
@dataclass(frozen=True, slots=True)
class Desired:
    """The capacity that was decided last and how far it got."""

    target: int
    epoch: int
    reason: str
    requested_at: datetime
    previous: int
    superseded: tuple[int, ...] = ()
    """What orders since the last confirmation were about to set when others replaced them."""
    status: ActionStatus = ActionStatus.PENDING
    sent_at: datetime | None = None
    changed_at: datetime | None = None
    """When the capacity last became what had been asked for; kept while a new action is pending."""
    changed_out: bool | None = None
    """Whether it became more then."""
    changed_by_hand: bool = False
    """Whether a person made that change."""
    retry_at: datetime | None = None
    attempts: int = 0
    last_error: str = ""

    @property
    def pending(self) -> bool:
        return self.status is ActionStatus.PENDING


@dataclass(frozen=True, slots=True)
class Override:
    """A person's word over the rules, until it expires. None means: as declared."""

    mode: Mode | None = None
    reason: str = ""
    expires_at: datetime | None = None
    freeze_scale_in: bool = False
    floor: int | None = None
    exact: int | None = None


@quick
@dataclass(frozen=True, slots=True)
class History(Window):
    """All samples of one metric that are kept."""

    known_gaps: tuple[float, ...] | None = field(default=None, compare=False, repr=False)
    """The gaps, where whoever appended a sample has appended its gap, as in a replay."""

    @property
    def gaps_seconds(self) -> tuple[float, ...]:
        known = self.known_gaps
        return Window(self.samples).gaps_seconds if known is None else known


@dataclass(frozen=True, slots=True)
class Lessons:
    """Changes of one direction: ``dn`` instances bent the backlog's slope by ``ds``.

    Sums over all but the last few, which stand beside them as pairs ``(ds, dn)``: outliers.py.
    """

    changes: float = 0
    """Their number; older ones weigh less."""
    dn_dn: float = 0
    ds_dn: float = 0
    ds_ds: float = 0
    recent: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Work:
    """Intervals in which all instances were busy. See busy_rate.py.

    ``done`` are items, ``busy`` instance-minutes; older intervals weigh less. Sums over all but
    the last few, which stand beside them as pairs ``(done, busy)``: outliers.py.
    """

    until: datetime | None = None
    """The end of the last interval that was looked at."""
    intervals: float = 0
    done: float = 0
    busy: float = 0
    done_done: float = 0
    done_busy: float = 0
    busy_busy: float = 0
    recent: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Learned:
    """What was learned about a resource's instances. See learning.py."""

    epoch: int = 0
    """Of the last change that was looked at."""
    out: Lessons = Lessons()
    into: Lessons = Lessons()
    """Of scale-ins."""
    dead_times: int = 0
    dead_time_minutes: float = 0
    work: Work = Work()


@quick
@dataclass(frozen=True, slots=True)
class ScalingState:
    """What is remembered of one resource."""

    histories: Mapping[str, History] = field(default_factory=lambda: NOTHING)
    desired: Desired | None = None
    override: Override | None = None
    wishes: History = History()
    """What the rule wanted of late, where a stabilisation window needs it."""
    learned: Learned = Learned()
    profile: WeekProfile | None = None

    def with_history(self, name: str, history: History) -> ScalingState:
        return ScalingState(
            {**self.histories, name: history},
            self.desired,
            self.override,
            self.wishes,
            self.learned,
            self.profile,
        )

    def with_desired(self, desired: Desired) -> ScalingState:
        return ScalingState(
            self.histories,
            desired,
            self.override,
            self.wishes,
            self.learned,
            self.profile,
        )


class EntryKind(StrEnum):
    """What a line of the decision log tells."""

    DECISION = "decision"
    CONFIRMED = "confirmed"
    DEFERRED = "deferred"
    FAILED = "failed"
    IGNORED = "ignored"
    RESENT = "resent"
    REOPENED = "reopened"
    MANUAL_CHANGE = "manual_change"
    OVERRIDE = "override"
    POISON = "poison"
    UNREADABLE = "unreadable"
    """Stands in for a row of the log that this version cannot read; never written."""


@quick
@dataclass(frozen=True, slots=True)
class LogEntry:
    """One line of the decision log.

    ``entry_id`` makes writing it twice write it once, at one time and epoch.
    """

    resource_name: str
    time: datetime
    kind: EntryKind
    entry_id: str
    reason: str
    current: int | None = None
    desired: int | None = None
    epoch: int | None = None
    applies: bool = False
    limited_by: tuple[str, ...] = ()
    candidates: tuple[Recommendation, ...] = ()
    evidence: Evidence = field(default_factory=lambda: NOTHING)
    counterfactual: str = ""
    metric: str = ""
    """Name and value of the sample that led to a decision."""
    value: float | None = None
    body: str = ""
    """The whole message, where the entry tells of a message that could not be processed."""
