"""A policy that may act in a direction only under a condition over any metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from shared.autoscaling.policies.checks import label, member, number, text
from shared.autoscaling.policies.combine import flattened
from shared.autoscaling.policies.recommendations import shown
from shared.autoscaling.policy import (
    Composite,
    Observation,
    PolicyFunction,
    Recommendation,
    ask,
    described,
    distinct,
)

Predicate = Callable[[Observation], bool]


def every(*metric_names: str, below: float = 1) -> Every:
    """True where each metric was below ``below`` in its whole window; unknown is not below."""
    return Every(metric_names, below)


@dataclass(frozen=True, slots=True)
class Every:
    """What every makes."""

    metric_names: tuple[str, ...]
    below: float = 1

    @property
    def name(self) -> str:
        return f"every {', '.join(self.metric_names)} < {shown(self.below)}"

    def problems(self) -> list[str]:
        """What is wrong with the parameters, each with its value and bound."""
        problems = [] if self.metric_names else ["every(): at least one metric is needed"]
        for name in self.metric_names:
            problems += text("metric", name)
        return problems + number("below", self.below)

    def __call__(self, seen: Observation) -> bool:
        return self.unmet(seen) is None

    def unmet(self, seen: Observation) -> str | None:
        """What keeps it from being true."""
        for name in self.metric_names:
            maximum = seen.window(name).maximum
            if maximum is None:
                return f"no samples of {name}"
            if not maximum < self.below:
                return f"maximum {name} {shown(maximum)} ≥ {shown(self.below)}"
        return None


@dataclass(frozen=True, slots=True)
class Condition:
    """Any Python predicate of the Observation, with the name to say where it does not hold."""

    name: str
    predicate: Predicate

    def problems(self) -> list[str]:
        """What is wrong with the parameters, each with its value and bound."""
        return text("name", self.name) + member("predicate", self.predicate)

    def __call__(self, seen: Observation) -> bool:
        return bool(self.predicate(seen))


def scale_in_only_if(policy: PolicyFunction, condition: Predicate) -> OnlyIf:
    """The policy; its wish to scale in counts only while the condition is true."""
    return OnlyIf(policy, condition, "scale-in")


def scale_out_only_if(policy: PolicyFunction, condition: Predicate) -> OnlyIf:
    """The policy; its wish to scale out counts only while the condition is true."""
    return OnlyIf(policy, condition, "scale-out")


@dataclass(frozen=True, slots=True)
class OnlyIf(Composite):
    """What scale_in_only_if and scale_out_only_if make; a condition that fails is not true."""

    policy: PolicyFunction
    condition: Predicate
    direction: Literal["scale-in", "scale-out"]

    @property
    def members(self) -> tuple[PolicyFunction, ...]:
        return (self.policy,)

    @property
    def metric_names(self) -> tuple[str, ...]:
        both = (self.policy, self.condition)
        return distinct(described(each).metric_names for each in both)

    def problems(self) -> list[str]:
        """Those of policy and condition, each behind its place."""
        return member("policy", self.policy) + member("condition", self.condition)

    def __call__(self, seen: Observation) -> Recommendation:
        wish = ask(self.policy, seen)
        unmet = self._unmet(seen)
        if unmet is None:
            return wish
        barred = 1 if self.direction == "scale-out" else -1
        if (wish.capacity - seen.capacity) * barred <= 0:
            return wish
        name = str(getattr(self.condition, "name", label(self.condition)))
        return replace(
            wish,
            capacity=seen.capacity,
            reason=f"{wish.reason}; no {self.direction}, only if {name}: {unmet}",
            rule="only_if",
            evidence={**wish.evidence, "wish": wish.capacity, "unmet": unmet},
            paced=False,
            candidates=flattened([wish]),
        )

    def _unmet(self, seen: Observation) -> str | None:
        try:
            if isinstance(self.condition, Every):
                return self.condition.unmet(seen)
            return None if self.condition(seen) else "not so"
        except Exception as error:  # the user's code, as a policy may be
            return f"raised {type(error).__name__}: {error}"
