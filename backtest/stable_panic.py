"""StablePanic: follows the mean of a long window, and a short window while load rises suddenly."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

from shared.autoscaling.policies.checks import tenfold
from shared.autoscaling.policies.recommendations import (
    capacity_at,
    covered_seconds,
    full_instances,
    instances,
    needed,
    shown,
    stay,
)
from shared.autoscaling.policy import Observation, OfMetric, Recommendation
from shared.values.bounds import Bounds, Positive, is_number, problems_of
from shared.values.measurements import (
    HISTORY_SECONDS_MAX,
    Evidence,
    MetricValue,
    time_of,
)

RULE = "stable_panic"

WindowSeconds = Annotated[float, Bounds(0, HISTORY_SECONDS_MAX, above=True)]
AboveOne = Annotated[float, Bounds(1, above=True)]


@dataclass(frozen=True, slots=True)
class StablePanic(OfMetric):
    """Follows the mean of a long window, and reacts to a short window while load rises suddenly.

    The long window is the stable window of ``stable_seconds``, and the short one is the panic
    window of ``panic_seconds``. The formulas use these symbols:

    - n: the current capacity, in instances.
    - s, p: the mean of the metric in the stable window and in the panic window.
    - t: ``target_per_instance``, in the unit of the metric.

    *Stable mode.* The recommended capacity is ⌈s / t⌉ instances.

    *Panic mode.* The mode begins if ⌈p / t⌉ ≥ ``panic_threshold``·n. It ends ``stable_seconds``
    after this condition was last met. The recommended capacity is ⌈max(s, p) / t⌉ instances, but
    neither less than n nor less than the target of the pending action.

    In both modes, the quotient is limited first: to at most n·``max_scale_up_rate`` instances,
    rounded up, and to at least n / ``max_scale_down_rate`` instances, rounded down.

    The policy derives the mode from the stored samples and keeps no state of its own. To cover the
    panic windows of the whole stable window, it needs a history as long as both windows together.

    The windows of Knative are 60 s and 6 s long. The longer defaults here suit a sample every 15 s.

    Source: knative/serving, pkg/autoscaler/scaling/autoscaler.go.
    """

    target_per_instance: Positive
    stable_seconds: WindowSeconds = 360
    panic_seconds: WindowSeconds = 60
    panic_threshold: AboveOne = 2
    max_scale_up_rate: AboveOne = 1000
    max_scale_down_rate: AboveOne = 2

    @property
    def history_seconds(self) -> float:
        return self.stable_seconds + self.panic_seconds

    @property
    def tunable(self) -> Mapping[str, tuple[float, float]]:
        return {
            "target_per_instance": tenfold(self.target_per_instance),
            "panic_threshold": (1.1, 10.0),
        }

    def problems(self) -> list[str]:
        """The invalid parameters, each with its value and bound."""
        problems = problems_of(self)
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
            reason = f"there are no samples of {self.metric} in the last {seconds:g} s"
            return stay(seen, RULE, reason, self.metric, metric=self.metric)
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
        """The time at which the condition for panic mode was last met within the stable window.

        None means stable mode.
        """
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
        """True if the mean of a panic window meets the condition for panic mode."""
        if mean is None:
            return False
        return instances(mean / self.target_per_instance) >= self.panic_threshold * capacity

    def _wanted(self, mean: float, capacity: int) -> int:
        """The instances that the mean requires, within the limits of one evaluation."""
        most = instances(capacity * self.max_scale_up_rate)
        least = full_instances(capacity / self.max_scale_down_rate)
        return min(max(instances(mean / self.target_per_instance), least), most)

    def _calm(self, seen: Observation, stable: float, evidence: Evidence) -> Recommendation:
        wanted = self._wanted(stable, seen.capacity)
        mean = f"the mean {self.metric} of {self._stable_shown(seen)} is {shown(stable)}"
        return Recommendation(wanted, f"{mean}; {self._result(stable, wanted)}", RULE, evidence)

    def _panic(
        self, seen: Observation, highest: float, since: datetime, evidence: Evidence
    ) -> Recommendation:
        ordered = seen.pending.target if seen.pending else seen.capacity
        required = self._wanted(highest, seen.capacity)
        wanted = max(required, seen.capacity, ordered)
        until = since + timedelta(seconds=self.stable_seconds)
        reason = (
            f"panic mode until {until:%H:%M:%S} UTC: the higher mean {self.metric} of "
            f"{self._stable_shown(seen)} and {self.panic_seconds:g} s is {shown(highest)}; "
            f"{self._result(highest, required)}"
        )
        if wanted > required:
            reason += f", but panic mode does not scale in from {wanted}"
        evidence = {**evidence, "panic_from": f"{since:%H:%M:%S}"}
        return Recommendation(wanted, reason, RULE, evidence)

    def _stable_shown(self, seen: Observation) -> str:
        samples = seen.history(self.metric).samples
        return f"{covered_seconds(samples, seen.now, self.stable_seconds):g} s"

    def _result(self, mean: float, wanted: int) -> str:
        required = instances(mean / self.target_per_instance)
        result = f"with a target of {shown(self.target_per_instance)} per instance, "
        if wanted == required:
            return result + needed(required)
        bound = "no more than" if wanted < required else "no less than"
        return f"{result}{needed(required)}, and one evaluation allows {bound} {wanted}"


def _mean(samples: Sequence[MetricValue], end: datetime, seconds: float) -> float | None:
    """The mean of the samples in (end - seconds, end]; None without samples."""
    first = bisect_right(samples, end - timedelta(seconds=seconds), key=time_of)
    last = bisect_right(samples, end, key=time_of)
    values = [sample.value for sample in samples[first:last]]
    return sum(values) / len(values) if values else None
