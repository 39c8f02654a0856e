"""Thresholds that depend on how many instances there are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shared.autoscaling.policies.checks import text, whole
from shared.autoscaling.policies.threshold import Threshold
from shared.autoscaling.policy import Observation, Policy, Recommendation

Level = tuple[int, float, float]


@dataclass(frozen=True, slots=True)
class CapacityThresholds(Policy):
    """A threshold rule whose thresholds depend on the present capacity.

    ``levels`` are steps of (from capacity, upper, lower), such as ((1, 50, 0), (4, 200, 40)): from
    four instances on, mean > 200 → out and maximum < 40 → in, below that mean > 50 → out. The
    highest step that the capacity has reached counts; below the first one, the first. Azure
    Monitor's rules cannot do this ("Best practices for autoscale": thresholds are fixed per rule).
    """

    metric: str
    levels: tuple[Level, ...]
    minimum_samples: int = 5
    step_out: int = 1
    step_in: int = 1

    @property
    def metric_names(self) -> tuple[str, ...]:
        return (self.metric,)

    def problems(self) -> list[str]:
        """What is wrong with the parameters, each with its value and bound."""
        problems = text("metric", self.metric)
        for name in ("minimum_samples", "step_out", "step_in"):
            problems += whole(name, getattr(self, name), 1)
        if not isinstance(self.levels, tuple | list) or not self.levels:
            return [*problems, f"levels = {self.levels!r}: at least one step is needed"]
        return problems + list(self._level_problems())

    def _level_problems(self) -> Iterator[str]:
        starts = []
        for position, level in enumerate(self.levels):
            key = f"levels[{position}]"
            if not isinstance(level, tuple | list) or len(level) != 3:
                yield f"{key} = {level!r}: must be (from capacity, upper, lower)"
                continue
            start, upper, lower = level
            faults = whole("capacity", start, 1) + Threshold("any", upper, lower).problems()
            yield from (f"{key}.{fault}" for fault in faults)
            starts.append(start)
        if all(type(s) is int for s in starts) and starts != sorted(set(starts)):
            yield f"levels = {self.levels!r}: capacities must ascend"

    def __call__(self, seen: Observation) -> Recommendation:
        start, upper, lower = self.level_at(seen.capacity)
        fixed = Threshold(
            self.metric, upper, lower, self.minimum_samples, self.step_out, self.step_in
        )
        wish = fixed(seen)
        return replace(
            wish,
            reason=f"{wish.reason} (thresholds from {start} instances on)",
            rule="capacity_thresholds",
            evidence={**wish.evidence, "from_capacity": start},
        )

    def level_at(self, capacity: int) -> Level:
        reached = [level for level in self.levels if level[0] <= capacity]
        return reached[-1] if reached else self.levels[0]
