"""Policies that ask other ones: combinations of several, and conditions under which one may change
the capacity. If a member fails, it recommends the current capacity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

from shared.autoscaling.policies.checks import label, member
from shared.autoscaling.policies.recommendations import HOLDING, shown, stay
from shared.autoscaling.policy import (
    Composite,
    Observation,
    PolicyFunction,
    Recommendation,
    ask,
)
from shared.values.bounds import Name, Number, name_problem, problems_of
from shared.values.calls import error_text
from shared.values.measurements import Evidence
from shared.values.text import quoted


def any_of(*policies: PolicyFunction) -> Combination:
    """Scales out if any policy recommends it, and scales in only if all do. The highest of the
    recommended capacities applies.

    Source: Azure Monitor, "Autoscale with multiple rules".
    """
    return Combination("any_of", policies)


def all_of(*policies: PolicyFunction) -> Combination:
    """Changes the capacity only if all policies recommend the same direction. The smallest of the
    recommended changes applies."""
    return Combination("all_of", policies)


def highest(*policies: PolicyFunction) -> Combination:
    """Recommends the highest of the recommended capacities, as the Horizontal Pod Autoscaler of
    Kubernetes does."""
    return Combination("highest", policies)


@dataclass(frozen=True, slots=True)
class Combination(Composite):
    """The policy that ``any_of``, ``all_of`` and ``highest`` return. The ``candidates`` of its
    recommendation are those of its members; their order affects only the texts."""

    kind: str
    policies: tuple[PolicyFunction, ...]

    def problems(self) -> list[str]:
        """The problems of all members. Each begins with the index of the member."""
        if not self.policies:
            return [f"{self.kind}(): at least one policy is required"]
        numbered = enumerate(self.policies)
        return [p for i, policy in numbered for p in member(f"{self.kind}[{i}]", policy)]

    def __call__(self, seen: Observation) -> Recommendation:
        recommended = [ask(policy, seen) for policy in self.policies]
        if not recommended:
            return stay(seen, self.kind, f"{self.kind} combines no policies")
        wanted = [each.capacity for each in recommended]
        choice = self._choice(wanted, seen.capacity)
        capacity = seen.capacity if choice is None else choice
        lacking = self._lacking(recommended, seen.capacity)
        chosen = _chosen(recommended, capacity, lacking=bool(lacking))
        wishes = ", ".join(map(str, wanted))
        combined = f"{self.kind} with the recommended capacities {wishes}"
        holding = ": holding" if choice is None else ""
        return replace(
            chosen,
            capacity=capacity,
            reason=f"{chosen.reason} ({combined}{holding})",
            rule=self.kind,
            evidence={**chosen.evidence, "rule": chosen.rule, "wishes": wishes},
            paced=choice is not None and chosen.paced and not lacking,
            candidates=flattened(recommended),
            missing=lacking,
        )

    def _choice(self, wanted: Sequence[int], capacity: int) -> int | None:
        """The recommended capacity that applies; None to hold."""
        if self.kind == "all_of":
            return _all(wanted, capacity)
        return None if self.kind == "any_of" and max(wanted) == capacity else max(wanted)

    def _lacking(self, recommended: Sequence[Recommendation], capacity: int) -> str:
        """What members lack; empty if the others are enough: one that scales out for ``any_of`` and
        ``highest``, and for ``all_of`` one that holds, or two that recommend opposite
        directions."""
        known = [each.capacity for each in recommended if not each.lacking]
        if self.kind == "all_of":
            enough = bool(known) and _all(known, capacity) is None
        else:
            enough = max(known, default=capacity) > capacity
        return "" if enough else ", ".join(sorted({e.lacking for e in recommended if e.lacking}))


def flattened(recommended: Sequence[Recommendation]) -> tuple[Recommendation, ...]:
    """Each recommendation, followed by its candidates, in order."""
    return tuple(chain.from_iterable((each, *each.candidates) for each in recommended))


def passed_on(
    asked: Recommendation, capacity: int, reason: str, rule: str, evidence: Evidence
) -> Recommendation:
    """The recommendation of a policy that asked another one and may have changed its capacity."""
    return replace(
        asked,
        capacity=capacity,
        reason=reason,
        rule=rule,
        evidence={**asked.evidence, **evidence},
        paced=asked.paced and capacity == asked.capacity,
        candidates=flattened([asked]),
        missing=asked.lacking,
    )


def _chosen(
    recommended: Sequence[Recommendation], capacity: int, *, lacking: bool
) -> Recommendation:
    """The recommendation of this capacity that explains it best: one that lacks an input if the
    combination does, and preferably a paced one. If there is none, the policies disagree."""
    same = [each for each in recommended if each.capacity == capacity]
    if not same:
        return Recommendation(capacity, "the policies recommend opposite directions")
    return max(same, key=lambda each: (bool(each.lacking) is lacking, each.paced))


def _all(wanted: Sequence[int], capacity: int) -> int | None:
    if min(wanted) > capacity:
        return min(wanted)
    return max(wanted) if max(wanted) < capacity else None


def fallback(policy: PolicyFunction, otherwise: PolicyFunction) -> Fallback:
    """Asks ``policy``. If ``policy`` fails or lacks an input, asks ``otherwise`` instead."""
    return Fallback(policy, otherwise)


@dataclass(frozen=True, slots=True)
class Fallback(Composite):
    """The policy that ``fallback`` returns. A policy lacks an input if ``missing`` of its
    recommendation is not empty. Some policies hold until the rate per instance is known. It is
    learned from the backlog only by changes of the capacity, so another policy must make the first
    ones."""

    policy: PolicyFunction
    otherwise: PolicyFunction

    def problems(self) -> list[str]:
        """The problems of both policies. Each begins with the name of the policy."""
        return member("fallback.policy", self.policy) + member("fallback.otherwise", self.otherwise)

    def __call__(self, seen: Observation) -> Recommendation:
        first = ask(self.policy, seen)
        if not first.lacking:
            return first
        second = ask(self.otherwise, seen)
        cause = first.reason.removeprefix(HOLDING)
        return replace(
            second,
            reason=f"{second.reason} (fallback: {cause})",
            candidates=flattened([first, second]),
        )


Predicate = Callable[[Observation], bool]


def every(*metric_names: str, below: float = 1) -> Every:
    """The condition that all samples in the windows of these metrics are below ``below``. It is not
    met if a metric has no samples, because an unknown value may be high."""
    return Every(metric_names, below)


@dataclass(frozen=True, slots=True)
class Every:
    """The condition that ``every`` returns."""

    metric_names: tuple[str, ...]
    below: Number = 1

    @property
    def name(self) -> str:
        return f"every sample of {', '.join(self.metric_names)} is below {shown(self.below)}"

    def problems(self) -> list[str]:
        """The invalid parameters, each with its value and bound."""
        if not self.metric_names:
            return ["every(): at least one metric is required", *problems_of(self)]
        named = [(name, name_problem(name)) for name in self.metric_names]
        wrong = [f"metric = {quoted(name)}: {must}" for name, must in named if must]
        return wrong + problems_of(self)

    def __call__(self, seen: Observation) -> bool:
        return self.unmet(seen) is None

    def unmet(self, seen: Observation) -> str | None:
        """Why the condition is not met; None if it is met."""
        for name in self.metric_names:
            maximum = seen.window(name).maximum
            if maximum is None:
                return f"there are no samples of {name}"
            if not maximum < self.below:
                return f"the maximum {name} is {shown(maximum)}"
        return None


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition with a predicate of your own. If it is not met, the reason quotes its name."""

    name: Name
    predicate: Predicate

    def problems(self) -> list[str]:
        """The invalid parameters, each with its value and bound."""
        return problems_of(self) + member("predicate", self.predicate)

    def __call__(self, seen: Observation) -> bool:
        return bool(self.predicate(seen))


def scale_in_only_if(policy: PolicyFunction, condition: Predicate) -> OnlyIf:
    """Recommends what ``policy`` does, but scales in only while the condition is met."""
    return OnlyIf(policy, condition, "scale-in")


def scale_out_only_if(policy: PolicyFunction, condition: Predicate) -> OnlyIf:
    """Recommends what ``policy`` does, but scales out only while the condition is met."""
    return OnlyIf(policy, condition, "scale-out")


@dataclass(frozen=True, slots=True)
class OnlyIf(Composite):
    """The policy that ``scale_in_only_if`` and ``scale_out_only_if`` return. If the condition
    raises an error, it counts as not met."""

    policy: PolicyFunction
    condition: Predicate
    direction: Literal["scale-in", "scale-out"]

    def problems(self) -> list[str]:
        """The problems of the policy and the condition. Each begins with the name of its source."""
        return member("policy", self.policy) + member("condition", self.condition)

    def __call__(self, seen: Observation) -> Recommendation:
        recommended = ask(self.policy, seen)
        unmet = self._unmet(seen)
        if unmet is None:
            return recommended
        conditional = 1 if self.direction == "scale-out" else -1
        if (recommended.capacity - seen.capacity) * conditional <= 0:
            return recommended
        name = str(getattr(self.condition, "name", label(self.condition)))
        refused = f"no {self.direction} to {recommended.capacity} without the condition {name!r}"
        reason = f"{recommended.reason}; {refused}: {unmet}"
        evidence: Evidence = {"wish": recommended.capacity, "unmet": unmet}
        return passed_on(recommended, seen.capacity, reason, "only_if", evidence)

    def _unmet(self, seen: Observation) -> str | None:
        """Why the condition is not met; None if it is met."""
        try:
            if isinstance(self.condition, Every):
                return self.condition.unmet(seen)
            return None if self.condition(seen) else "it is false"
        except BaseException as error:  # the rule author's code may raise anything
            return f"it raised {error_text(error)}"
