"""Policies that may change the capacity in one direction only while a condition is met."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from shared.autoscaling.policies.checks import label, member
from shared.autoscaling.policies.combine import passed_on
from shared.autoscaling.policies.recommendations import shown
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
