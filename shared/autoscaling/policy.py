"""The interface of policies: their input and result, and the resource for which they decide."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from enum import StrEnum
from itertools import chain
from typing import Any, Protocol, TypeVar

from shared.autoscaling.declaring import (
    CapacityTarget,
    Cooldown,
    Goal,
    Guards,
    Limits,
    ManualChange,
    MetricSource,
    Mode,
    Throughput,
)
from shared.autoscaling.measurements import NO_SAMPLES, NOTHING, Evidence, WeekProfile, Window
from shared.autoscaling.state import Desired

T = TypeVar("T")

REASON_LENGTH_MAX = 500
"""Longer reasons of a policy are cut, because the rows of the decision log are limited."""

CAPACITY_MAX = 10**6
"""A recommendation of a higher capacity counts as a failure of the policy."""

FAILED = "error"
"""If a policy fails, the app recommends the current capacity under this rule name."""


RATE_ERROR_MAX = 0.25
"""A learned throughput with a larger relative error is not sure enough to rely on."""


class RateSource(StrEnum):
    """Where the throughput per instance comes from."""

    SETTINGS = "settings"
    COUNTED = "counted"
    BACKLOG = "backlog"


RATE_SOURCES = {
    RateSource.SETTINGS: "given in settings",
    RateSource.COUNTED: "counted",
    RateSource.BACKLOG: "estimated from the backlog",
}


@dataclass(frozen=True, slots=True)
class RateEstimate:
    """The throughput per instance in items a minute, where it comes from, and how sure it is."""

    source: RateSource
    likely: float
    low: float
    """The value to plan with: below the likely one if the throughput is estimated."""
    relative_error: float
    """The standard error, relative to the likely value; 0 for a throughput given in settings."""

    @property
    def sure(self) -> bool:
        """Whether the throughput counts as known."""
        return self.relative_error <= RATE_ERROR_MAX

    @property
    def certainty(self) -> str:
        """The source and the error in words."""
        percent = "under 1%" if self.relative_error < 0.01 else f"{self.relative_error:.0%}"
        error = f" ± {percent}" if self.relative_error else ""
        unsure = "" if self.sure else ", not sure yet"
        return f"{RATE_SOURCES[self.source]}{error}{unsure}"

    def __str__(self) -> str:
        likely = float(f"{self.likely:.3g}")
        return f"throughput {likely:,.12g} a minute, {self.certainty}"


class UnknownMetric(LookupError):
    """A policy reads a metric that its resource does not declare."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The input of a policy.

    ``metrics`` holds the samples that belong to the current capacity: those inside the window and
    since the last confirmed change. ``histories`` holds all samples that are kept.
    """

    resource_name: str
    now: datetime
    capacity: int
    limits: Limits
    metrics: Mapping[str, Window]
    changed_at: datetime | None = None
    histories: Mapping[str, Window] = field(default_factory=lambda: NOTHING)
    capacities: Window = NO_SAMPLES
    """The observed capacities. Of a run of equal capacities, only the first and the last sample are
    kept.
    """
    pending: Desired | None = None
    """The change that has been requested and is not confirmed yet."""
    goal: Goal = Goal()
    throughput: Throughput = Throughput()
    """The declared or learned throughput. A field is None while no reliable value is known."""
    profile: WeekProfile | None = None
    estimate: RateEstimate | None = None
    """The throughput per instance, even if it is not sure; None before any work was seen."""

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
    """The capacity that a policy recommends, and the reason.

    If a policy recommends the current capacity, nothing changes.
    """

    capacity: int
    reason: str
    rule: str = "rule"
    """The policy's name."""
    evidence: Evidence = field(default_factory=lambda: NOTHING)
    paced: bool = False
    """True if the policy itself accounts for pending and recent changes. The cooldown then applies
    only to a scale-in after a manual change.
    """
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
        """The input that the policy lacks, or its error; empty if the recommendation is complete.

        A policy that asks another one passes this on as ``missing``.
        """
        return self.missing or (self.reason if self.failed else "")


def held_at_maximum(
    current: int | None, candidates: Sequence[Recommendation], limits: Limits
) -> bool:
    """Whether the capacity is at the maximum, and the policy recommends no less.

    The policy may want more instances than the maximum. This is not always visible, because a
    policy that reads the limits recommends no more than the maximum. If minimum and maximum are
    equal, no recommendation can matter.
    """
    if current is None or not candidates or limits.minimum == limits.maximum:
        return False
    return current >= limits.maximum and candidates[0].capacity >= limits.maximum


PolicyFunction = Callable[[Observation], Recommendation]
"""The policy of a resource: a plain function, or a Policy."""


class Policy(Protocol):
    """A policy: a callable, and optional descriptions of it.

    Derive from this class and override the members that apply. A plain function, or an object with
    only some of these members, is a policy as well: the missing members have their defaults (see
    ``described``).
    """

    __slots__ = ()

    def __call__(self, seen: Observation, /) -> Recommendation:
        """Recommend a capacity. The result must depend on ``seen`` alone."""
        ...

    def problems(self) -> list[str]:
        """The invalid parameters, each with its value and bound."""
        return []

    @property
    def metric_names(self) -> tuple[str, ...] | None:
        """The metrics that the policy reads; None if it may read any metric of the resource."""
        return None

    @property
    def utilisation_names(self) -> tuple[str, ...]:
        """The metrics that are a share per instance, such as CPU percent. The guard
        ``flap_projection`` projects them from n to m instances as value·n/m."""
        return ()

    @property
    def followed_metric(self) -> str | None:
        """The metric whose course over time the policy uses.

        To explain a decision, the app looks for a value of a metric that would have led to another
        decision. For the metric named here, it varies only the newest sample. For every other
        metric, it varies all samples in the window.
        """
        return None

    @property
    def step_seconds(self) -> float | None:
        """The time step of a policy that plans ahead; otherwise None. The goal's age limit must not
        be shorter than this step."""
        return None

    @property
    def tunable(self) -> Mapping[str, tuple[float, float]]:
        """The fields that ``python -m backtest tune`` may fit, each with its lowest and highest
        value."""
        return NOTHING


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


def members(policy: object) -> Iterator[object]:
    """The policy and all policies in its fields, at any depth. The closure of a function is not
    searched."""
    yield policy
    held: tuple[object, ...] = ()
    if isinstance(policy, tuple):
        held = policy
    elif is_dataclass(policy) and not isinstance(policy, type):
        held = tuple(getattr(policy, each.name) for each in fields(policy))
    for member in held:
        if isinstance(member, tuple) or is_dataclass(member):
            yield from members(member)


class Composite(Policy, Protocol):
    """A policy that combines other policies and reads the metrics that they read."""

    __slots__ = ()

    @property
    def members(self) -> tuple[PolicyFunction, ...]:
        """The combined policies."""
        ...

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The metrics of all members, each once, in order."""
        return distinct(described(member).metric_names for member in self.members)

    @property
    def utilisation_names(self) -> tuple[str, ...]:
        """The utilization metrics of all members, each once, in order."""
        return distinct(described(member).utilisation_names for member in self.members)


def distinct(names: Iterable[Iterable[str] | None]) -> tuple[str, ...]:
    """Each name once, in order."""
    return tuple(dict.fromkeys(chain.from_iterable(some or () for some in names)))


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource to scale: its target, its metrics, its policy and its limits."""

    name: str
    target: CapacityTarget
    metrics: Mapping[str, MetricSource]
    policy: PolicyFunction
    limits: Limits = Limits()
    cooldown: Cooldown = Cooldown()
    window_seconds: float = 600
    history_seconds: float = 1800
    """How long samples are kept, for policies that look back further than the window."""
    guards: Guards = Guards()
    goal: Goal = Goal()
    throughput: Throughput = Throughput()
    mode: Mode = Mode.ACTIVE
    on_manual_change: ManualChange = ManualChange.ADOPT


def ask(policy: PolicyFunction, seen: Observation) -> Recommendation:
    """Ask the policy. If it fails, recommend the current capacity, with the error as the reason.

    A policy may be the rule author's own code, so its errors must not affect other resources.
    """
    try:
        recommendation = policy(seen)
        fault = _fault(recommendation)
    except (Exception, SystemExit) as error:
        fault = f"raised {type(error).__name__}: {error}"
    if fault is None:
        return recommendation
    message = f"the policy {fault}"[:REASON_LENGTH_MAX]
    return Recommendation(seen.capacity, f"{message}; holding", FAILED, {"error": message})


def _fault(value: object) -> str | None:
    """Why the value is not a valid recommendation; None if it is valid."""
    if not isinstance(value, Recommendation) or type(value.capacity) is not int:
        return f"returned {value!r} instead of a Recommendation whose capacity is a whole number"
    if not -CAPACITY_MAX <= value.capacity <= CAPACITY_MAX:
        return f"returned a capacity that is not from -{CAPACITY_MAX} to {CAPACITY_MAX}"
    if not isinstance(value.reason, str) or not isinstance(value.rule, str):
        return f"returned the reason {value.reason!r} and the rule {value.rule!r}: must be text"
    if type(value.evidence) is not dict and not isinstance(value.evidence, Mapping):
        return f"returned the evidence {value.evidence!r}: must be a mapping"
    if value.candidates != () and not _recommendations(value.candidates):
        return f"returned the candidates {value.candidates!r}: must be a tuple of Recommendation"
    return None


def _recommendations(candidates: object) -> bool:
    return isinstance(candidates, tuple) and all(isinstance(c, Recommendation) for c in candidates)
