"""CapacityThresholds: thresholds that depend on the capacity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shared.autoscaling.policies.recommendations import instances_text
from shared.autoscaling.policies.threshold import Threshold
from shared.autoscaling.policy import Observation, Policy, Recommendation
from shared.values.bounds import AtLeastOne, Bounds, Name, problems_of
from shared.values.text import quoted

Level = tuple[int, float, float]
"""A capacity in instances, and the upper and lower threshold that apply from this capacity on."""


@dataclass(frozen=True, slots=True)
class CapacityThresholds(Policy):
    """Works like Threshold, with thresholds that depend on the current capacity.

    Each of the ``levels`` is a tuple (from capacity, upper, lower). The last level that the current
    capacity reaches applies, or else the first one. For example, with ((1, 50, 0), (4, 200, 40))
    and four or more instances, the policy scales out if the mean is above 200, and scales in if the
    maximum is below 40. With fewer, it never scales in, because no backlog is below 0.
    """

    metric: Name
    levels: tuple[Level, ...]
    minimum_samples: AtLeastOne = 5
    step_out: AtLeastOne = 1
    step_in: AtLeastOne = 1

    @property
    def metric_names(self) -> tuple[str, ...]:
        return (self.metric,)

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
