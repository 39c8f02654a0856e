"""Rules as Azure Monitor's autoscale settings have them, one metric each."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Literal

from shared.autoscaling.measurements import EvidenceValue
from shared.autoscaling.policies.checks import number, one_of, text, whole
from shared.autoscaling.policy import Observation, Policy, Recommendation

COMPARISONS: Mapping[str, Callable[[float, float], bool]] = MappingProxyType(
    {
        ">": operator.gt,
        ">=": operator.ge,
        "<": operator.lt,
        "<=": operator.le,
        "==": operator.eq,
        "!=": operator.ne,
    }
)
AGGREGATIONS: Mapping[str, Callable[[list[float]], float]] = MappingProxyType(
    {
        "average": lambda values: sum(values) / len(values),
        "minimum": min,
        "maximum": max,
        "total": sum,
        "count": len,
        "last": lambda values: values[-1],
    }
)
Unit = Literal["instances", "percent", "exactly"]


@dataclass(frozen=True, slots=True)
class MetricRule:
    """When the aggregate of a metric over ``window_seconds`` compares so, then change so.

    ``by`` with ``unit``: so many instances, percent of the instances there are (rounded up, one at
    least), or exactly so many. ``per_instance`` divides the aggregate by the instances.
    """

    metric: str
    comparison: str
    threshold: float
    direction: Literal["out", "in"]
    by: int = 1
    unit: Unit = "instances"
    aggregation: str = "average"
    window_seconds: float = 600
    per_instance: bool = False

    def problems(self) -> list[str]:
        """What is wrong with the parameters, each with its value and bound."""
        problems = text("metric", self.metric) + number("threshold", self.threshold)
        problems += one_of("comparison", self.comparison, tuple(COMPARISONS))
        problems += one_of("direction", self.direction, ("out", "in"))
        problems += one_of("unit", self.unit, ("instances", "percent", "exactly"))
        problems += one_of("aggregation", self.aggregation, tuple(AGGREGATIONS))
        return (
            problems
            + whole("by", self.by, 1)
            + number("window_seconds", self.window_seconds, above=0)
        )

    def value(self, seen: Observation) -> float | None:
        """The aggregate; None without samples."""
        start = seen.now - timedelta(seconds=self.window_seconds)
        samples = seen.history(self.metric).samples
        values = [sample.value for sample in samples if sample.time >= start]
        if not values:
            return None
        value = AGGREGATIONS[self.aggregation](values)
        return value / seen.capacity if self.per_instance else value

    def met(self, value: float) -> bool:
        return COMPARISONS[self.comparison](value, self.threshold)

    def wanted(self, capacity: int) -> int:
        """The capacity after this rule has acted; never against its direction."""
        if self.unit == "exactly":
            wanted = self.by
        else:
            percent = math.ceil(capacity * self.by / 100)
            step = self.by if self.unit == "instances" else percent
            wanted = capacity + step if self.direction == "out" else capacity - step
        return max(wanted, capacity) if self.direction == "out" else min(wanted, capacity)

    def said(self, value: float) -> str:
        each = " per instance" if self.per_instance else ""
        what = f"{self.aggregation} {self.metric}{each}"
        return f"{what} {value:.4g} {self.comparison} {self.threshold:.4g}"


@dataclass(frozen=True, slots=True)
class MetricRules(Policy):
    """Out as soon as any rule that scales out is met, and as far as the furthest of them; in only
    when every rule that scales in is met, and no further than the most careful of them.

    As Azure Monitor evaluates the rules of a profile (learn.microsoft.com, "Understand autoscale
    settings"). A metric without samples meets no rule. The flap projection is a guard.
    """

    rules: tuple[MetricRule, ...]

    @property
    def metric_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(rule.metric for rule in self.rules))

    def problems(self) -> list[str]:
        """Those of all rules, each behind its place."""
        problems = [] if self.rules else ["rules: at least one MetricRule is needed"]
        for position, rule in enumerate(self.rules):
            if not isinstance(rule, MetricRule):
                problems.append(f"rules[{position}] = {rule!r}: must be a MetricRule")
            else:
                problems += [f"rules[{position}].{problem}" for problem in rule.problems()]
        return problems

    def __call__(self, seen: Observation) -> Recommendation:
        values = [rule.value(seen) for rule in self.rules]
        pairs = list(zip(self.rules, values, strict=True))
        evidence: dict[str, EvidenceValue] = {
            f"{rule.aggregation} {rule.metric}": value for rule, value in pairs
        }
        met = [(r, v) for r, v in pairs if v is not None and r.met(v)]
        out = [(r, v) for r, v in met if r.direction == "out"]
        if out:
            rule, value = max(out, key=lambda pair: pair[0].wanted(seen.capacity))
            wanted = rule.wanted(seen.capacity)
            return Recommendation(wanted, rule.said(value), "metric_rules", evidence)
        scaling_in = [rule for rule in self.rules if rule.direction == "in"]
        quiet = [(r, v) for r, v in met if r.direction == "in"]
        if scaling_in and len(quiet) == len(scaling_in):
            wanted = max(rule.wanted(seen.capacity) for rule, _ in quiet)
            said = " and ".join(rule.said(value) for rule, value in quiet)
            return Recommendation(wanted, said, "metric_rules", evidence)
        reason = f"no rule out is met, and {len(quiet)} of {len(scaling_in)} rules in"
        return Recommendation(seen.capacity, reason, "metric_rules", evidence)
