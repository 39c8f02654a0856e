"""The interface of policies: their input and result, and the resource for which they decide."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from itertools import chain
from typing import Annotated, Any, Protocol, TypeVar

from shared.autoscaling.declaring import (
    AppServicePlan,
    Cooldown,
    Goal,
    Guards,
    Limits,
    ManualChange,
    Mode,
    Throughput,
)
from shared.autoscaling.sources import NO_SOURCE, Source, Stated
from shared.autoscaling.state import Desired
from shared.values.bounds import Bounds, Name, matching, problems_of
from shared.values.calls import error_text
from shared.values.measurements import (
    HISTORY_SECONDS_MAX,
    NO_SAMPLES,
    NOTHING,
    Evidence,
    EvidenceValue,
    WeekProfile,
    Window,
    span,
)
from shared.values.text import NAME, quoted

T = TypeVar("T")

REASON_LENGTH_MAX = 500
"""Longer reasons of a policy are cut, because the rows of the decision log are limited."""

CAPACITY_MAX = 10**6
"""A recommendation of a higher capacity counts as a failure of the policy."""

FAILED = "error"
"""If a policy fails, the app recommends the current capacity under this rule name."""


RATE_ERROR_MAX = 0.25
"""A learned rate with a larger relative error is not sure enough to rely on."""


class RateSource(StrEnum):
    SETTINGS = "settings"
    DOUBTED = "doubted"
    COUNTED = "counted"
    BACKLOG = "backlog"


RATE_SOURCES = {
    RateSource.SETTINGS: "given in settings",
    RateSource.DOUBTED: "lower than given in settings, because that is in doubt",
    RateSource.COUNTED: "counted",
    RateSource.BACKLOG: "estimated from the backlog",
}


@dataclass(frozen=True, slots=True)
class Unhelpful:
    """So many ``more`` instances than ``enough`` finished nothing more, counted ``until`` then."""

    enough: int
    more: int
    until: datetime | None = None

    def lasts(self, seconds: float, now: datetime) -> bool:
        """Whether the counts are not older than that."""
        return self.until is not None and now < self.until + span(seconds)

    def __str__(self) -> str:
        return f"{self.more} more instance{'s'[: self.more - 1]} finished nothing more"


@dataclass(frozen=True, slots=True)
class RateEstimate:
    """The rate per instance in items a minute, where it comes from, and how sure it is."""

    source: RateSource
    likely: float
    low: float
    """The value to plan with: below the likely one if the rate per instance is estimated."""
    relative_error: float
    """The standard error, relative to the likely value; 0 for a rate given in settings."""
    told: float | None = None
    """The rate that is set by hand, if what is seen has refuted it."""
    chance: float = 0.0
    """The part of the relative error that is that of the mean, not that of the next hour."""
    unhelpful: Unhelpful | None = None
    """The instances that helped nobody, because the limit lies behind them."""

    @property
    def limited(self) -> bool:
        return self.unhelpful is not None

    @property
    def high(self) -> float:
        """As far above the likely value, as a factor, as the low value is below it."""
        return self.likely * (self.likely / self.low)

    @property
    def sure(self) -> bool:
        """Whether the rate per instance counts as known."""
        return self.relative_error <= RATE_ERROR_MAX

    @property
    def certainty(self) -> str:
        """The source and the error in words."""
        percent = "under 1%" if self.relative_error < 0.01 else f"{self.relative_error:.0%}"
        error = f" ± {percent}" if self.relative_error else ""
        unsure = "" if self.sure else ", not sure yet"
        return f"{RATE_SOURCES[self.source]}{error}{unsure}"

    def __str__(self) -> str:
        likely = float(f"{self.likely:.4g}")
        return f"rate per instance {likely:,.12g} a minute, {self.certainty}"


class UnknownMetric(LookupError):
    """A policy reads a metric that its resource does not declare."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The input of a policy. ``metrics`` holds the samples that belong to the current capacity:
    those inside the window and since the last confirmed change. ``histories`` holds all that are
    kept."""

    resource_name: str
    now: datetime
    capacity: int
    limits: Limits
    metrics: Mapping[str, Window]
    changed_at: datetime | None = None
    histories: Mapping[str, Window] = field(default_factory=lambda: NOTHING)
    capacities: Window = NO_SAMPLES
    """The observed capacities: of a run of equal ones, the first and the last."""
    pending: Desired | None = None
    """The change that has been requested and is not confirmed yet."""
    goal: Goal = Goal()
    throughput: Throughput = Throughput()
    """The declared or learned throughput. A field is None while no reliable value is known."""
    profile: WeekProfile | None = None
    estimate: RateEstimate | None = None
    """The rate per instance, even if it is not sure; None before any work was seen."""
    working: Window = NO_SAMPLES
    """The instances that can work, from each of these times on, which may lie ahead. Without
    samples, those of ``capacities`` work."""

    def window(self, name: str) -> Window:
        """The metric's samples in ``metrics``. Raises UnknownMetric if it is not declared."""
        return declared(self.metrics, name)

    def history(self, name: str) -> Window:
        """The metric's samples in ``histories``. Raises UnknownMetric if it is not declared."""
        return declared(self.histories, name)


def declared(by_metric: Mapping[str, T], name: str) -> T:
    """What ``by_metric`` holds for a metric of a resource. Raises UnknownMetric."""
    try:
        return by_metric[name]
    except KeyError:
        names = ", ".join(sorted(by_metric)) or "none"
        raise UnknownMetric(f"{unknown_metric(name)} ({names})") from None


def unknown_metric(name: str) -> str:
    """How the text of UnknownMetric begins."""
    return f"{name!r} is not one of the resource's metrics"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The capacity that a policy recommends, and the reason. The current one changes nothing."""

    capacity: int
    reason: str
    rule: str = "rule"
    """The policy's name."""
    evidence: Evidence = field(default_factory=lambda: NOTHING)
    paced: bool = False
    """True if the policy itself accounts for pending and recent changes. The cooldown then applies
    only to a scale-in after a manual change."""
    candidates: tuple[Recommendation, ...] = ()
    """The recommendations of the policies that this policy combines."""
    missing: str = ""
    """The input that the policy lacks. If this is not empty, ``fallback`` asks its next policy."""

    @property
    def failed(self) -> bool:
        """True if the policy raised an error or returned something invalid."""
        return self.rule == FAILED

    @property
    def lacking(self) -> str:
        """The input that the policy lacks, or its error; else empty. A policy that asks another one
        passes it on as ``missing``."""
        return self.missing or (self.reason if self.failed else "")


def held_at_maximum(
    current: int | None, candidates: Sequence[Recommendation], limits: Limits
) -> bool:
    """Whether the capacity is at the maximum, and the policy recommends no less. If minimum and
    maximum are equal, no recommendation can matter."""
    if current is None or not candidates or limits.minimum == limits.maximum:
        return False
    if candidates[0].failed:  # it is unknown what the policy would recommend
        return False
    return current >= limits.maximum and candidates[0].capacity >= limits.maximum


PolicyFunction = Callable[[Observation], Recommendation]
"""The policy of a resource: a plain function, or a Policy."""


class Policy(Protocol):
    """A policy: a callable, and optional descriptions of it. Derive from this class and override
    the members that apply. A plain function, or an object with only some of these members, is a
    policy as well: the others have their defaults (see ``described``)."""

    __slots__ = ()

    def __call__(self, seen: Observation, /) -> Recommendation:
        """Recommend a capacity. The result must depend on ``seen`` alone."""
        ...

    def problems(self) -> list[str]:
        """The invalid parameters, each with its value and bound: those that violate the bounds of
        their fields (see ``shared.values.bounds``)."""
        return problems_of(self)

    metric_names: Stated = None
    """The metrics that the policy reads; None if it may read any metric of the resource."""
    utilisation_names: Stated = ()
    """The metrics that are a share per instance, such as CPU percent. The guard ``flap_projection``
    projects them from n to m instances as value·n/m."""
    followed_metric: Stated = None
    """The metric whose course over time the policy uses. To explain a decision, the app varies only
    its newest sample, and all samples in the window of every other metric."""
    step_seconds: Stated = None
    """The time step of a policy that plans ahead. The goal's age limit must not be shorter."""
    history_seconds: Stated = 0
    """How far back the policy looks in ``histories``. The app keeps samples for as long, or for
    ``history_seconds`` of the resource if that is longer."""
    backlog_metric: Stated = None
    """The backlog whose items the instances finish, from which the rate is learned."""
    tunable: Stated = NOTHING
    """The fields that ``python -m backtest tune`` may fit, each with its lowest and highest value.
    """


OFFERS = frozenset(name for name in vars(Policy) if not name.startswith("_"))


class _Partial(Policy):
    """Wraps a callable that has only some members of Policy, or none, such as a plain function."""

    __slots__ = ("_policy",)

    def __init__(self, policy: PolicyFunction) -> None:
        self._policy = policy

    def __call__(self, seen: Observation, /) -> Recommendation:
        return self._policy(seen)

    def __getattribute__(self, name: str) -> Any:
        offered = name in OFFERS and not isinstance(self._policy, type)
        if offered and hasattr(self._policy, name):
            return getattr(self._policy, name)
        return object.__getattribute__(self, name)


def described(policy: Any) -> Policy:
    """The policy with all members of Policy. Members that it lacks have their defaults."""
    return policy if Policy in type(policy).__mro__ else _Partial(policy)


def said(policy: object, name: str) -> Any:
    """The policy's member ``name`` of Policy; None if the rule author's code fails."""
    try:
        return getattr(described(policy), name)
    except BaseException as error:
        error_text(error)
        return None


def members(policy: object) -> Iterator[object]:
    """The policy and all policies in its fields, at any depth, but not in closures."""
    yield policy
    for member in _held(policy):
        if isinstance(member, tuple) or is_dataclass(member):
            yield from members(member)


def _held(value: object) -> Sequence[object]:
    """The elements of a tuple, or the values of a dataclass."""
    if isinstance(value, tuple):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, each.name) for each in fields(value)]
    return ()


def _asked(value: object) -> Iterator[Any]:
    """The policies and conditions that a policy asks: the callables in its fields, at any depth."""
    for each in _held(value):
        if callable(each):
            yield each
        else:
            yield from _asked(each)


def named_metrics(policy: object) -> tuple[str, ...]:
    """The metrics that the policy or its members say that they read, each once, in order."""
    read = (said(member, "metric_names") or () for member in members(policy))
    return tuple(dict.fromkeys(chain.from_iterable(read)))


class Composite(Policy, Protocol):
    """A dataclass of policies, and of conditions under which they apply, whose metrics it reads."""

    __slots__ = ()

    @property
    def metric_names(self) -> tuple[str, ...] | None:
        """Each once, in order; None if a member may read any metric."""
        return distinct(described(member).metric_names for member in _asked(self))

    @property
    def utilisation_names(self) -> tuple[str, ...]:
        return distinct(described(member).utilisation_names for member in _asked(self)) or ()

    @property
    def history_seconds(self) -> float:
        return max([described(member).history_seconds for member in _asked(self)], default=0)


@dataclass(frozen=True, slots=True)
class OfMetric(Policy):
    """A policy that reads one metric, that of its first field."""

    metric: Name

    @property
    def metric_names(self) -> tuple[str, ...]:
        return (self.metric,)


def distinct(names: Iterable[Iterable[str] | None]) -> tuple[str, ...] | None:
    """Each name once, in order; None if the names of any part are not known."""
    known = list(names)
    if None in known:
        return None
    return tuple(dict.fromkeys(chain.from_iterable(some or () for some in known)))


@dataclass(frozen=True)
class Resource:
    """A resource to scale: its target, its metrics, its policy and its limits."""

    name: Annotated[str, matching(NAME)]
    target: AppServicePlan
    metrics: Mapping[str, Source]
    policy: PolicyFunction
    limits: Limits = Limits()
    cooldown: Cooldown = Cooldown()
    window_seconds: Annotated[float, Bounds(1, HISTORY_SECONDS_MAX)] = 600
    history_seconds: Annotated[float, Bounds(0, HISTORY_SECONDS_MAX)] = 1800
    """How long samples are kept at least. See ``kept_history_seconds``."""
    guards: Guards = Guards()
    goal: Goal = Goal()
    throughput: Throughput = Throughput()
    mode: Mode = Mode.ACTIVE
    on_manual_change: ManualChange = ManualChange.ADOPT

    def source(self, name: str | None) -> Source:
        """The source of a metric; one that says nothing if the metric is not declared."""
        return self.metrics.get(name or "", NO_SOURCE)

    @cached_property
    def kept_history_seconds(self) -> float:
        """How long samples are kept: as long as this, the window or the policy needs them."""
        needed = said(self.policy, "history_seconds") or 0
        return max(self.history_seconds, self.window_seconds, needed)

    @cached_property
    def backlog_metric(self) -> str | None:
        """The backlog from which the rate is learned; None unless there is exactly one. It is the
        ``backlog_metric`` of the policies, or else the one that they read, or else that of the
        resource."""
        backlogs = [said(member, "backlog_metric") for member in members(self.policy)]
        named = tuple(name for name in backlogs if name is not None)
        candidates = named or named_metrics(self.policy) or tuple(self.metrics)
        names = {name for name in candidates if self.source(name).counts_backlog}
        return names.pop() if len(names) == 1 else None


def ask(policy: PolicyFunction, seen: Observation) -> Recommendation:
    """Ask the policy. If it fails, recommend the current capacity, with the error as the reason. It
    gets a copy of ``seen``, so that its changes affect neither the guards nor other policies."""
    try:
        recommendation = policy(_copied(seen))
        fault = _fault(recommendation)
    except BaseException as error:
        return failure(seen, f"the policy raised {error_text(error)}")
    return recommendation if fault is None else failure(seen, f"the policy {fault}")


def failure(seen: Observation, message: str, **evidence: EvidenceValue) -> Recommendation:
    """Recommends the current capacity, because the policy fails."""
    message = message[:REASON_LENGTH_MAX]
    reason = f"{message}; holding"
    return Recommendation(seen.capacity, reason, FAILED, {"error": message, **evidence})


def _copied(seen: Observation) -> Observation:
    return replace(
        seen,
        limits=replace(seen.limits),
        metrics={name: Window(window.samples) for name, window in seen.metrics.items()},
        histories={name: Window(window.samples) for name, window in seen.histories.items()},
        capacities=Window(seen.capacities.samples),
        pending=replace(seen.pending) if seen.pending else None,
        working=Window(seen.working.samples),
    )


def _fault(value: object) -> str | None:
    """Why the value is not a valid recommendation; None if it is valid."""
    if not isinstance(value, Recommendation) or type(value.capacity) is not int:
        shown = quoted(value)
        return f"returned {shown} instead of a Recommendation whose capacity is a whole number"
    if not -CAPACITY_MAX <= value.capacity <= CAPACITY_MAX:
        return f"returned a capacity that is not from -{CAPACITY_MAX} to {CAPACITY_MAX}"
    if not isinstance(value.reason, str) or not isinstance(value.rule, str):
        reason, rule = quoted(value.reason), quoted(value.rule)
        return f"returned the reason {reason} and the rule {rule}: must be text"
    if not isinstance(value.evidence, Mapping):
        return f"returned the evidence {quoted(value.evidence)}: must be a mapping"
    if not _recommendations(value.candidates):
        shown = quoted(value.candidates)
        return f"returned the candidates {shown}: must be a tuple of Recommendation"
    return None


def _recommendations(candidates: object) -> bool:
    return isinstance(candidates, tuple) and all(isinstance(c, Recommendation) for c in candidates)
