"""Several policies as one. Every member is asked; one that fails counts as "stay"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from shared.autoscaling.policies.checks import member
from shared.autoscaling.policies.recommendations import stay
from shared.autoscaling.policy import (
    Composite,
    Observation,
    PolicyFunction,
    Recommendation,
    ask,
)

Choose = Callable[[Sequence[int], int], int | None]
"""From wishes and present capacity to the place of the wish that counts; None means stay."""


def any_of(*policies: PolicyFunction) -> Combination:
    """Out if any rule wants out, to the highest wish; in only if all want in, to the highest.

    Azure Monitor's semantics ("Autoscale with multiple rules": scale-out when any rule is met,
    scale-in when all are).
    """
    return Combination("any_of", policies)


def all_of(*policies: PolicyFunction) -> Combination:
    """Acts only in a direction that all rules want, by the smallest step that one wants."""
    return Combination("all_of", policies)


def highest(*policies: PolicyFunction) -> Combination:
    """The highest wish: the Horizontal Pod Autoscaler's way with several metrics."""
    return Combination("highest", policies)


@dataclass(frozen=True, slots=True)
class Combination(Composite):
    """What any_of, all_of and highest make; ``candidates`` holds what each member wants."""

    kind: str
    policies: tuple[PolicyFunction, ...]

    @property
    def members(self) -> tuple[PolicyFunction, ...]:
        return self.policies

    def problems(self) -> list[str]:
        """Those of all members, each behind its member's place."""
        if not self.policies:
            return [f"{self.kind}(): at least one policy is needed"]
        numbered = enumerate(self.policies)
        return [p for i, policy in numbered for p in member(f"{self.kind}[{i}]", policy)]

    def __call__(self, seen: Observation) -> Recommendation:
        wishes = [ask(policy, seen) for policy in self.policies]
        if not wishes:
            return stay(seen, self.kind, f"{self.kind} of no rules")
        wanted = [wish.capacity for wish in wishes]
        at = CHOICES[self.kind](wanted, seen.capacity)
        chosen = wishes[at] if at is not None else _holding(wishes, seen)
        return replace(
            chosen,
            capacity=seen.capacity if at is None else chosen.capacity,
            reason=f"{chosen.reason} ({self._said(wanted, at)})",
            rule=self.kind,
            evidence={
                **chosen.evidence,
                "rule": chosen.rule,
                "wishes": ", ".join(map(str, wanted)),
            },
            paced=at is not None and chosen.paced,
            candidates=flattened(wishes),
        )

    def _said(self, wanted: Sequence[int], at: int | None) -> str:
        said = f"{self.kind} of wishes {', '.join(map(str, wanted))}"
        return said if at is not None else f"{said}: staying"


def flattened(wishes: Sequence[Recommendation]) -> tuple[Recommendation, ...]:
    """Each wish and what it combines itself, in order."""
    return tuple(chain.from_iterable((wish, *wish.candidates) for wish in wishes))


def _holding(wishes: Sequence[Recommendation], seen: Observation) -> Recommendation:
    """The first that stays; where none does, they disagree."""
    staying = [wish for wish in wishes if wish.capacity == seen.capacity]
    return staying[0] if staying else Recommendation(seen.capacity, "the rules disagree")


def _any(wanted: Sequence[int], capacity: int) -> int | None:
    if max(wanted) > capacity or all(wish < capacity for wish in wanted):
        return _highest(wanted, capacity)
    return None


def _all(wanted: Sequence[int], capacity: int) -> int | None:
    if all(wish > capacity for wish in wanted):
        return wanted.index(min(wanted))
    return _highest(wanted, capacity) if all(wish < capacity for wish in wanted) else None


def _highest(wanted: Sequence[int], _: int) -> int | None:
    return wanted.index(max(wanted))


CHOICES: dict[str, Choose] = {"any_of": _any, "all_of": _all, "highest": _highest}


def fallback(policy: PolicyFunction, otherwise: PolicyFunction) -> Fallback:
    """``policy``, and while it does not know enough, or fails, ``otherwise``."""
    return Fallback(policy, otherwise)


@dataclass(frozen=True, slots=True)
class Fallback(Composite):
    """What fallback makes: a policy does not know enough where its answer says what is ``missing``.

    BacklogTarget and others stay until changes have taught the rate of an instance, and where
    they stay there are no changes: another rule must make the first ones.
    """

    policy: PolicyFunction
    otherwise: PolicyFunction

    @property
    def members(self) -> tuple[PolicyFunction, ...]:
        return (self.policy, self.otherwise)

    def problems(self) -> list[str]:
        """Those of both, each behind its member's place."""
        return member("fallback.policy", self.policy) + member("fallback.otherwise", self.otherwise)

    def __call__(self, seen: Observation) -> Recommendation:
        first = ask(self.policy, seen)
        if not first.failed and not first.missing:
            return first
        second = ask(self.otherwise, seen)
        return replace(
            second,
            reason=f"{second.reason} (as {first.reason})",
            candidates=flattened([first, second]),
        )
