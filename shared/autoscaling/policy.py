"""What a policy is given, what it answers and may offer, and the resource that it decides for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from itertools import chain
from typing import Any, Protocol

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

REASON_LENGTH_MAX = 500
"""Of what a policy says about itself; the decision log has its limits."""

CAPACITY_MAX = 10**6
"""A larger wish is a mistake, and too large a number for other arithmetic."""

FAILED = "error"
"""The name that stands for a policy that failed."""


class UnknownMetric(LookupError):
    """A policy asks for a metric that its resource does not declare."""


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
    throughput: Throughput = Throughput()
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


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The capacity that a policy wants, and why. The current capacity means: stay."""

    capacity: int
    reason: str
    rule: str = "rule"
    """The policy's name."""
    evidence: Evidence = field(default_factory=lambda: NOTHING)
    paced: bool = False
    """True where the policy has accounted for changes under way and of late; no cooldown applies.
    """
    candidates: tuple[Recommendation, ...] = ()
    """What the policies wanted that this one combines."""
    missing: str = ""
    """What the policy lacks to decide: it stays for want of this, and ``fallback`` asks another."""

    @property
    def failed(self) -> bool:
        return self.rule == FAILED


PolicyFunction = Callable[[Observation], Recommendation]
"""What a resource needs as its policy: a plain function, or a Policy."""


class Policy(Protocol):
    """A policy, and what it may offer besides its answers.

    Derive from it and override what applies. A plain function, or an object that has only some of
    these, is a policy as well: for what it lacks the defaults hold (see ``described``).
    """

    __slots__ = ()

    def __call__(self, seen: Observation, /) -> Recommendation:
        """The capacity wanted for what is seen. Depends on nothing else."""
        ...

    def problems(self) -> list[str]:
        """What is wrong with the parameters, each with its value and bound."""
        return []

    @property
    def metric_names(self) -> tuple[str, ...] | None:
        """The metrics that it reads; None where it may be any of the resource's."""
        return None

    @property
    def utilisation_names(self) -> tuple[str, ...]:
        """Those that are a share per instance: with fewer instances each has more, value·n/m."""
        return ()

    @property
    def followed_metric(self) -> str | None:
        """The metric whose course it follows: to tell what would have changed a decision, its
        newest sample alone is varied, not all of the window."""
        return None

    @property
    def step_seconds(self) -> float | None:
        """The step in which it plans, where it does: no age limit can be shorter."""
        return None

    @property
    def tunable(self) -> Mapping[str, tuple[float, float]]:
        """The fields that ``python -m backtest tune`` may fit, each with lowest and highest."""
        return NOTHING


OFFERS = frozenset(name for name in vars(Policy) if not name.startswith("_"))


class _Partial(Policy):
    """A callable that offers some of what a Policy may, or nothing, as a plain function."""

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
    """The policy with all that one may offer: by default, where it does not offer it itself."""
    return policy if Policy in type(policy).__mro__ else _Partial(policy)


def members(policy: object) -> Iterator[object]:
    """The policy and all that it holds in its fields, however deep; functions hold nothing."""
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
    """A policy that is made of others: it reads what they read."""

    __slots__ = ()

    @property
    def members(self) -> tuple[PolicyFunction, ...]:
        """The policies that it asks."""
        ...

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Of all members, each once, in order."""
        return distinct(described(member).metric_names for member in self.members)

    @property
    def utilisation_names(self) -> tuple[str, ...]:
        """Of all members, each once, in order."""
        return distinct(described(member).utilisation_names for member in self.members)


def distinct(names: Iterable[Iterable[str] | None]) -> tuple[str, ...]:
    """Each name once, in order."""
    return tuple(dict.fromkeys(chain.from_iterable(some or () for some in names)))


@dataclass(frozen=True, slots=True)
class Resource:
    """One thing to scale: where its capacity is set, what is measured, and the policy."""

    name: str
    target: CapacityTarget
    metrics: Mapping[str, MetricSource]
    policy: PolicyFunction
    limits: Limits = Limits()
    cooldown: Cooldown = Cooldown()
    window_seconds: float = 600
    history_seconds: float = 1800
    """How long samples are kept for policies that look further back than the window."""
    guards: Guards = Guards()
    goal: Goal = Goal()
    throughput: Throughput = Throughput()
    mode: Mode = Mode.ACTIVE
    on_manual_change: ManualChange = ManualChange.ADOPT


def ask(policy: PolicyFunction, seen: Observation) -> Recommendation:
    """What the policy wants; where it fails, the present capacity with its error.

    It may be the user's code: whatever it does must not stop the others.
    """
    try:
        wish = policy(seen)
        fault = _fault(wish)
    except (Exception, SystemExit) as error:
        fault = f"raised {type(error).__name__}: {error}"
    if fault is None:
        return wish
    said = f"the rule {fault}"[:REASON_LENGTH_MAX]
    return Recommendation(seen.capacity, f"{said}; holding", FAILED, {"error": said})


def _fault(wish: object) -> str | None:
    """What keeps an answer from being a recommendation that can be carried out and logged."""
    if not isinstance(wish, Recommendation) or type(wish.capacity) is not int:
        return f"answered {wish!r} instead of a Recommendation with a whole capacity"
    if not -CAPACITY_MAX <= wish.capacity <= CAPACITY_MAX:
        return f"wants more than {CAPACITY_MAX} instances either way"
    if not isinstance(wish.reason, str) or not isinstance(wish.rule, str):
        return f"gave {wish.reason!r} as reason of {wish.rule!r}: both must be text"
    if type(wish.evidence) is not dict and not isinstance(wish.evidence, Mapping):
        return f"gave {wish.evidence!r} as evidence: a mapping is needed"
    if wish.candidates != () and not _recommendations(wish.candidates):
        return f"gave {wish.candidates!r} as candidates: a tuple of Recommendation is needed"
    return None


def _recommendations(candidates: object) -> bool:
    return isinstance(candidates, tuple) and all(isinstance(c, Recommendation) for c in candidates)
