"""MetricRules: the rules of an autoscale setting of Azure Monitor. Each rule reads one metric."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Annotated, Literal

from shared.autoscaling.policies.checks import each_of
from shared.autoscaling.policies.recommendations import HOLDING, covered_seconds, instances_text
from shared.autoscaling.policy import Observation, Policy, Recommendation
from shared.values.bounds import AtLeastOne, Flag, Name, Number, Positive, one_of, problems_of
from shared.values.measurements import EvidenceValue

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

    def problems(self) -> list[str]:
        """The invalid parameters, each with its value and bound."""
        return problems_of(self)

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
        return none + each_of("rules", self.rules, MetricRule)

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
