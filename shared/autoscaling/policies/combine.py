"""Combinations of several policies into one.

A combination asks its members. If a member fails, its recommendation is the current capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from shared.autoscaling.policies.checks import member
from shared.autoscaling.policies.recommendations import HOLDING, stay
from shared.autoscaling.policy import (
    Composite,
    Observation,
    PolicyFunction,
    Recommendation,
    ask,
)

Choose = Callable[[Sequence[int], int], int | None]
"""Chooses one of the recommended capacities, given the current capacity. The result is the index of
the chosen one, or None to hold.
"""


def any_of(*policies: PolicyFunction) -> Combination:
    """Scales out if any policy recommends it, and scales in only if all policies recommend it.

    In both cases, the highest of the recommended capacities applies.

    Source: Azure Monitor, "Autoscale with multiple rules". There, one met rule is enough to scale
    out, but a scale-in requires that all rules are met.
    """
    return Combination("any_of", policies)


def all_of(*policies: PolicyFunction) -> Combination:
    """Changes the capacity only if all policies recommend the same direction.

    The smallest of the recommended changes applies.
    """
    return Combination("all_of", policies)


def highest(*policies: PolicyFunction) -> Combination:
    """Recommends the highest of the recommended capacities.

    The Horizontal Pod Autoscaler of Kubernetes treats several metrics in this way.
    """
    return Combination("highest", policies)


@dataclass(frozen=True, slots=True)
class Combination(Composite):
    """The policy that ``any_of``, ``all_of`` and ``highest`` return.

    The ``candidates`` of its recommendation are the recommendations of its members.
    """

    kind: str
    policies: tuple[PolicyFunction, ...]

    @property
    def members(self) -> tuple[PolicyFunction, ...]:
        return self.policies

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
        index = CHOICES[self.kind](wanted, seen.capacity)
        chosen = recommended[index] if index is not None else _holding(recommended, seen)
        return replace(
            chosen,
            capacity=seen.capacity if index is None else chosen.capacity,
            reason=f"{chosen.reason} ({self._summary(wanted, index)})",
            rule=self.kind,
            evidence={
                **chosen.evidence,
                "rule": chosen.rule,
                "wishes": ", ".join(map(str, wanted)),
            },
            paced=index is not None and chosen.paced,
            candidates=flattened(recommended),
        )

    def _summary(self, wanted: Sequence[int], index: int | None) -> str:
        summary = f"{self.kind} with the recommended capacities {', '.join(map(str, wanted))}"
        return summary if index is not None else f"{summary}: holding"


def flattened(recommended: Sequence[Recommendation]) -> tuple[Recommendation, ...]:
    """Each recommendation, followed by its candidates, in order."""
    return tuple(chain.from_iterable((each, *each.candidates) for each in recommended))


def _holding(recommended: Sequence[Recommendation], seen: Observation) -> Recommendation:
    """The first recommendation of the current capacity. If there is none, the policies disagree."""
    for each in recommended:
        if each.capacity == seen.capacity:
            return each
    return Recommendation(seen.capacity, "the policies recommend opposite directions")


def _any(wanted: Sequence[int], capacity: int) -> int | None:
    if max(wanted) > capacity or all(each < capacity for each in wanted):
        return _highest(wanted, capacity)
    return None


def _all(wanted: Sequence[int], capacity: int) -> int | None:
    if all(each > capacity for each in wanted):
        return wanted.index(min(wanted))
    return _highest(wanted, capacity) if all(each < capacity for each in wanted) else None


def _highest(wanted: Sequence[int], _: int) -> int | None:
    return wanted.index(max(wanted))


CHOICES: dict[str, Choose] = {"any_of": _any, "all_of": _all, "highest": _highest}


def fallback(policy: PolicyFunction, otherwise: PolicyFunction) -> Fallback:
    """Asks ``policy``. If ``policy`` fails or lacks an input, asks ``otherwise`` instead."""
    return Fallback(policy, otherwise)


@dataclass(frozen=True, slots=True)
class Fallback(Composite):
    """The policy that ``fallback`` returns.

    A policy lacks an input if ``missing`` of its recommendation is not empty.

    Some policies, such as BacklogTarget, hold the capacity until the throughput of an instance is
    known. To learn the throughput from the backlog, the app needs changes of the capacity. So
    another policy must make the first changes.
    """

    policy: PolicyFunction
    otherwise: PolicyFunction

    @property
    def members(self) -> tuple[PolicyFunction, ...]:
        return (self.policy, self.otherwise)

    def problems(self) -> list[str]:
        """The problems of both policies. Each begins with the name of the policy."""
        return member("fallback.policy", self.policy) + member("fallback.otherwise", self.otherwise)

    def __call__(self, seen: Observation) -> Recommendation:
        first = ask(self.policy, seen)
        if not first.failed and not first.missing:
            return first
        second = ask(self.otherwise, seen)
        cause = first.reason.removeprefix(HOLDING)
        return replace(
            second,
            reason=f"{second.reason} (fallback: {cause})",
            candidates=flattened([first, second]),
        )
