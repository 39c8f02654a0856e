"""Threshold and CapacityThresholds, and MetricRules: the rules of an autoscale setting of Azure
Monitor, each of which reads one metric."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Annotated, Literal

from shared.autoscaling.policies.recommendations import HOLDING, covered_seconds, instances_text
from shared.autoscaling.policy import Observation, OfMetric, Policy, Recommendation
from shared.values.bounds import (
    AtLeastOne,
    Bounds,
    Flag,
    Name,
    Number,
    Positive,
    is_number,
    one_of,
    problems_of,
)
from shared.values.measurements import Evidence, EvidenceValue
from shared.values.text import quoted


@dataclass(frozen=True, slots=True)
class Threshold(OfMetric):
    """Scales out if the mean of a metric is high, and scales in if its maximum is low.

    If the window has at least ``minimum_samples`` samples, the policy recommends ``step_out`` more
    instances if their mean is above ``upper``, and ``step_in`` fewer if their maximum is below
    ``lower``. The mean rises only little with a single short peak. In the backtest, this policy is
    called ``original``.
    """

    upper: Number
    lower: Number
    minimum_samples: AtLeastOne = 5
    step_out: AtLeastOne = 1
    step_in: AtLeastOne = 1

    @property
    def tunable(self) -> Mapping[str, tuple[float, float]]:
        """The range of both thresholds: from 0 to ten times the larger of their absolute values."""
        highest = max(abs(self.upper), abs(self.lower)) * 10
        return {"upper": (0.0, highest), "lower": (0.0, highest)}

    def problems(self) -> list[str]:
        """The invalid parameters, each with its value and bound."""
        problems = problems_of(self)
        if is_number(self.upper) and is_number(self.lower) and not self.lower < self.upper:
            problems.append(f"lower = {self.lower}: must be below upper = {self.upper}")
        return problems

    def __call__(self, seen: Observation) -> Recommendation:
        window = seen.window(self.metric)
        mean, maximum = window.mean, window.maximum
        change, reason = self._change(window.count, mean, maximum)
        latest = window.latest
        evidence: Evidence = {
            "metric": self.metric,
            "samples": window.count,
            "mean": mean,
            "maximum": maximum,
            "latest": latest.value if latest else None,
            "upper": self.upper,
            "lower": self.lower,
        }
        return Recommendation(seen.capacity + change, reason, "threshold", evidence)

    def _change(self, count: int, mean: float | None, maximum: float | None) -> tuple[int, str]:
        if mean is None or maximum is None or count < self.minimum_samples:
            required = f"{self.minimum_samples} required samples of {self.metric}"
            return 0, f"{HOLDING}{count} of {required} in the window"
        high = f"the mean {self.metric} is {mean:.4g}"
        low = f"the maximum {self.metric} is {maximum:.4g}"
        if mean > self.upper:
            change = f"adding {instances_text(self.step_out)}"
            return self.step_out, f"{high}, above the upper threshold {self.upper:.4g}: {change}"
        if maximum < self.lower:
            change = f"removing {instances_text(self.step_in)}"
            return -self.step_in, f"{low}, below the lower threshold {self.lower:.4g}: {change}"
        return 0, (
            f"{HOLDING}{high}, not above the upper threshold {self.upper:.4g}, and {low}, not "
            f"below the lower threshold {self.lower:.4g}"
        )


Level = tuple[int, float, float]
"""A capacity in instances, and the upper and lower threshold that apply from this capacity on."""


@dataclass(frozen=True, slots=True)
class CapacityThresholds(OfMetric):
    """Works like Threshold, with thresholds that depend on the current capacity.

    Each of the ``levels`` is a tuple (from capacity, upper, lower). The last level that the current
    capacity reaches applies, or else the first one. For example, with ((1, 50, 0), (4, 200, 40))
    and four or more instances, the policy scales out if the mean is above 200, and scales in if the
    maximum is below 40. With fewer, it never scales in, because no backlog is below 0.
    """

    levels: tuple[Level, ...]
    minimum_samples: AtLeastOne = 5
    step_out: AtLeastOne = 1
    step_in: AtLeastOne = 1

    def problems(self) -> list[str]:
        """The invalid parameters, each with its value and bound."""
        problems = problems_of(self)
        if not isinstance(self.levels, tuple | list) or not self.levels:
            return [*problems, f"levels = {self.levels!r}: at least one level is required"]
        return problems + list(self._level_problems())

    def _level_problems(self) -> Iterator[str]:
        starts = []
        for position, level in enumerate(self.levels):
            key = f"levels[{position}]"
            if not isinstance(level, tuple | list) or len(level) != 3:
                yield f"{key} = {level!r}: must be (from capacity, upper, lower)"
                continue
            start, upper, lower = level
            if must := Bounds(1).problem(start, int):
                yield f"{key}.capacity = {quoted(start)}: {must}"
            faults = Threshold("any", upper, lower).problems()
            yield from (f"{key}.{fault}" for fault in faults)
            starts.append(start)
        if all(type(s) is int for s in starts) and starts != sorted(set(starts)):
            yield f"levels = {self.levels!r}: the capacities must increase from level to level"

    def __call__(self, seen: Observation) -> Recommendation:
        start, upper, lower = self.level_at(seen.capacity)
        fixed = Threshold(
            self.metric, upper, lower, self.minimum_samples, self.step_out, self.step_in
        )
        recommended = fixed(seen)
        return replace(
            recommended,
            reason=f"{recommended.reason} (thresholds of the level from {instances_text(start)})",
            rule="capacity_thresholds",
            evidence={**recommended.evidence, "from_capacity": start},
        )

    def level_at(self, capacity: int) -> Level:
        """The level that applies at this capacity."""
        reached = [level for level in self.levels if level[0] <= capacity]
        return reached[-1] if reached else self.levels[0]


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
    """One rule: if the aggregate of a metric passes a threshold, change the capacity.

    The rule is met if ``aggregate comparison threshold`` is true, such as 120 > 100. The aggregate
    is the ``aggregation`` of the samples of the last ``window_seconds``, with ``per_instance``
    divided by the capacity. The capacity changes by ``by`` ``instances`` or ``percent`` (rounded up
    to whole instances), or to ``exactly`` that many instances.
    """

    metric: Name
    comparison: Annotated[str, one_of(COMPARISONS)]
    threshold: Number
    direction: Literal["out", "in"]
    by: AtLeastOne = 1
    unit: Unit = "instances"
    aggregation: Annotated[str, one_of(AGGREGATIONS)] = "average"
    window_seconds: Positive = 600
    per_instance: Flag = False

    def value(self, seen: Observation) -> float | None:
        """The aggregate; None if the window of the rule has no samples."""
        start = seen.now - timedelta(seconds=self.window_seconds)
        samples = seen.history(self.metric).samples
        values = [sample.value for sample in samples if sample.time >= start]
        if not values:
            return None
        value = AGGREGATIONS[self.aggregation](values)
        return value / seen.capacity if self.per_instance else value

    def met(self, value: float) -> bool:
        """True if the comparison of the aggregate with the threshold is true."""
        return COMPARISONS[self.comparison](value, self.threshold)

    def wanted(self, capacity: int) -> int:
        """The capacity that the rule recommends if it is met, never against its direction."""
        if self.unit == "exactly":
            wanted = self.by
        else:
            percent = math.ceil(capacity * self.by / 100)
            step = self.by if self.unit == "instances" else percent
            wanted = capacity + step if self.direction == "out" else capacity - step
        return max(wanted, capacity) if self.direction == "out" else min(wanted, capacity)

    def finding(self, value: float, seen: Observation) -> str:
        """The aggregate and the required comparison, in words."""
        each = " per instance" if self.per_instance else ""
        samples = seen.history(self.metric).samples
        covered = covered_seconds(samples, seen.now, self.window_seconds)
        since = "the last " if covered < self.window_seconds else ""
        window = f"over {since}{covered / 60:.3g} min"
        required = f"required: {self.comparison} {self.threshold:.4g}"
        name = "last value" if self.aggregation == "last" else self.aggregation
        return f"the {name} of {self.metric}{each} {window} is {value:.4g} ({required})"


@dataclass(frozen=True, slots=True)
class MetricRules(Policy):
    """Evaluates several rules as Azure Monitor evaluates the rules of a profile.

    If any scale-out rule is met, the highest capacity that a met one recommends applies. Otherwise,
    if every scale-in rule is met, the highest capacity that one of them recommends applies, which
    is the smallest change. A rule whose metric has no samples is not met. The guard
    ``flap_projection`` prevents flapping, as Azure Monitor does.

    Source: learn.microsoft.com, "Understand autoscale settings".
    """

    rules: tuple[MetricRule, ...]

    @property
    def metric_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(rule.metric for rule in self.rules))

    @property
    def history_seconds(self) -> float:
        return max([rule.window_seconds for rule in self.rules], default=0)

    def problems(self) -> list[str]:
        """The problems of all rules. Each begins with the index of the rule."""
        none = [] if self.rules else ["rules: at least one MetricRule is required"]
        return none + problems_of(self)

    def __call__(self, seen: Observation) -> Recommendation:
        values = [rule.value(seen) for rule in self.rules]
        pairs = list(zip(self.rules, values, strict=True))
        evidence: dict[str, EvidenceValue] = {
            f"{rule.aggregation} {rule.metric}": value for rule, value in pairs
        }
        met = [(r, v) for r, v in pairs if v is not None and r.met(v)]
        out = [(r, v) for r, v in met if r.direction == "out"]
        scaling_in = [rule for rule in self.rules if rule.direction == "in"]
        quiet = [(r, v) for r, v in met if r.direction == "in"]
        decisive = quiet if len(quiet) == len(scaling_in) else []
        if out:
            decisive = [max(out, key=lambda pair: pair[0].wanted(seen.capacity))]
        if decisive:
            wanted = max(rule.wanted(seen.capacity) for rule, _ in decisive)
            findings = ", and ".join(rule.finding(value, seen) for rule, value in decisive)
            reason = f"{findings}: recommending {instances_text(wanted)}"
            return Recommendation(wanted, reason, "metric_rules", evidence)
        scale_in = "there is no scale-in rule"
        if scaling_in:
            scale_in = f"{len(quiet)} of {len(scaling_in)} scale-in rules are met"
        reason = f"{HOLDING}no scale-out rule is met, and {scale_in}"
        return Recommendation(seen.capacity, reason, "metric_rules", evidence)
