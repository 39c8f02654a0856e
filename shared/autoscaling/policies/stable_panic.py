"""As Knative's pod autoscaler does it: calm on a long window, quick on a short one."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from shared.autoscaling.measurements import Evidence, MetricValue, time_of
from shared.autoscaling.policies.checks import is_number, number, tenfold, text
from shared.autoscaling.policies.recommendations import (
    capacity_at,
    instances,
    shown,
    stay,
)
from shared.autoscaling.policy import Observation, Policy, Recommendation

RULE = "stable_panic"
SECONDS_MAX = 14_400


@dataclass(frozen=True, slots=True)
class StablePanic(Policy):
    """n = ⌈mean of the stable window / target⌉, and no fewer than the panic window asks in panic.

    Panic begins where ⌈mean of the panic window / target⌉ ≥ ``panic_threshold``·n, and ends one
    stable window after the last time that it was so; while it lasts, the capacity only grows.
    One evaluation changes it at most by ``max_scale_up_rate`` and ``max_scale_down_rate``. All
    of it is derived from the history, so keep at least both windows (``history_seconds``).
    Knative's windows are 60 s and 6 s; these suit a sample every 15 s. Source: knative/serving,
    pkg/autoscaler/scaling/autoscaler.go.
    """

    metric: str
    target_per_instance: float
    stable_seconds: float = 360
    panic_seconds: float = 60
    panic_threshold: float = 2
    max_scale_up_rate: float = 1000
    max_scale_down_rate: float = 2

    @property
    def metric_names(self) -> tuple[str, ...]:
        return (self.metric,)

    @property
    def tunable(self) -> Mapping[str, tuple[float, float]]:
        return {
            "target_per_instance": tenfold(self.target_per_instance),
            "panic_threshold": (1.1, 10.0),
        }

    def problems(self) -> list[str]:
        """What is wrong with the parameters, each with its value and bound."""
        problems = text("metric", self.metric)
        for name in ("target_per_instance", "stable_seconds", "panic_seconds"):
            most = None if name == "target_per_instance" else SECONDS_MAX
            problems += number(name, getattr(self, name), above=0, at_most=most)
        for name in ("panic_threshold", "max_scale_up_rate", "max_scale_down_rate"):
            problems += number(name, getattr(self, name), above=1)
        windows = is_number(self.panic_seconds) and is_number(self.stable_seconds)
        if windows and self.panic_seconds > self.stable_seconds:
            bound = f"must be at most stable_seconds = {self.stable_seconds}"
            problems.append(f"panic_seconds = {self.panic_seconds}: {bound}")
        return problems

    def __call__(self, seen: Observation) -> Recommendation:
        samples = seen.history(self.metric).samples
        stable = _mean(samples, seen.now, self.stable_seconds)
        panic = _mean(samples, seen.now, self.panic_seconds)
        if stable is None or panic is None:
            seconds = self.stable_seconds if stable is None else self.panic_seconds
            missing = f"samples of {self.metric} in the last {seconds:g} s"
            return stay(seen, RULE, f"no {missing}", self.metric, metric=self.metric)
        since = self._panic_since(seen, samples)
        evidence: Evidence = {
            "metric": self.metric,
            "stable_mean": stable,
            "panic_mean": panic,
            "target_per_instance": self.target_per_instance,
            "panic": since is not None,
        }
        if since is None:
            return self._calm(seen, stable, evidence)
        return self._panic(seen, max(stable, panic), since, evidence)

    def _panic_since(self, seen: Observation, samples: Sequence[MetricValue]) -> datetime | None:
        """When the panic threshold was crossed last, if that is not a stable window ago."""
        start = seen.now - timedelta(seconds=self.stable_seconds)
        if self._over(seen.capacity, _mean(samples, seen.now, self.panic_seconds)):
            return seen.now
        for sample in reversed(samples):
            if sample.time < start:
                break
            capacity = capacity_at(seen, sample.time)
            if self._over(capacity, _mean(samples, sample.time, self.panic_seconds)):
                return min(sample.time, seen.now)
        return None

    def _over(self, capacity: int, mean: float | None) -> bool:
        if mean is None:
            return False
        return instances(mean / self.target_per_instance) >= self.panic_threshold * capacity

    def _wanted(self, mean: float, capacity: int) -> int:
        """As many as the mean asks for, within what one evaluation may change."""
        most = instances(capacity * self.max_scale_up_rate)
        least = math.floor(capacity / self.max_scale_down_rate)
        return min(max(instances(mean / self.target_per_instance), least), most)

    def _calm(self, seen: Observation, stable: float, evidence: Evidence) -> Recommendation:
        wanted = self._wanted(stable, seen.capacity)
        label = f"stable mean {self.metric}"
        reason = f"{label} {shown(stable)} / {shown(self.target_per_instance)} each → {wanted}"
        return Recommendation(wanted, reason, RULE, evidence)

    def _panic(
        self, seen: Observation, highest: float, since: datetime, evidence: Evidence
    ) -> Recommendation:
        coming = seen.pending.target if seen.pending else seen.capacity
        asked = self._wanted(highest, seen.capacity)
        wanted = max(asked, seen.capacity, coming)
        until = since + timedelta(seconds=self.stable_seconds)
        reason = (
            f"panic until {until:%H:%M:%S} UTC: highest mean {self.metric} {shown(highest)} / "
            f"{shown(self.target_per_instance)} each → {asked}"
        )
        if wanted > asked:
            reason += f", no scale-in from {wanted}"
        evidence = {**evidence, "panic_from": f"{since:%H:%M:%S}"}
        return Recommendation(wanted, reason, RULE, evidence)


def _mean(samples: Sequence[MetricValue], end: datetime, seconds: float) -> float | None:
    """Over (end - seconds, end]; None without samples."""
    first = bisect_right(samples, end - timedelta(seconds=seconds), key=time_of)
    last = bisect_right(samples, end, key=time_of)
    values = [sample.value for sample in samples[first:last]]
    return sum(values) / len(values) if values else None
