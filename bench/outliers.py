"""How long learning needs to recover from one measurement that is far off."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from shared.autoscaling import (
    AppServicePlan,
    HubMetric,
    Resource,
    ServiceBusQueue,
    Threshold,
    Throughput,
)
from shared.autoscaling.learning.throughput import counted_rate
from shared.autoscaling.state import ScalingState
from shared.autoscaling.transition import advance
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
RATE = 40.0
INSTANCES = 3
STEPS_MAX = 2_000
"""More than a day with one measurement a minute."""
NEAR = 0.1
"""A learned rate is right if its relative error is no larger than this."""

Readings = Callable[[int, float], list[tuple[datetime, float]]]
"""The readings reported in a step, given its usual count."""


def _times(factor: float, at: int) -> Readings:
    def reported(step: int, count: float) -> list[tuple[datetime, float]]:
        return [(START + MINUTE * step, count * factor if step == at else count)]

    return reported


def nothing_far_off(step: int, count: float) -> list[tuple[datetime, float]]:
    return [(START + MINUTE * step, count)]


def _early(at: int) -> Readings:
    """A report five seconds after another one, in step ``at``."""

    def reported(step: int, count: float) -> list[tuple[datetime, float]]:
        time = START + MINUTE * step
        if step == at:
            return [(time, count), (time + timedelta(seconds=5), count / 12)]
        return [(time, count * 11 / 12 if step == at + 1 else count)]

    return reported


@dataclass(frozen=True, slots=True)
class Outlier:
    """What is reported, with something far off in step ``at``."""

    at: int
    reported: Readings

    @property
    def steps_until_learned_again(self) -> int:
        """0 if the outlier did no harm."""
        return max(steps_until_learned(self.reported)[1] - self.at, 0)


STEPS_AT = (1, 2, 30)
FACTORS = (4, 20, 1e3, 1e10, 1e12)
OUTLIERS: Mapping[str, Outlier] = {
    **{f"{f:g} times at step {at}": Outlier(at, _times(f, at)) for at in STEPS_AT for f in FACTORS},
    **{f"early at step {at}": Outlier(at, _early(at)) for at in STEPS_AT},
}


def steps_until_learned(readings: Readings, seed: int = 1) -> tuple[int, int]:
    """The first step with a known rate, and the step after which the rate stayed right."""
    chance = random.Random(seed)
    state, first_known, last_wrong = ScalingState(), 0, 0
    for step in range(STEPS_MAX):
        count = RATE * INSTANCES * chance.gauss(1, 0.1)
        for name, time, value in [
            (CAPACITY_METRIC, START + MINUTE * step, float(INSTANCES)),
            *[("finished", *each) for each in readings(step, count)],
            ("backlog", START + MINUTE * step + timedelta(seconds=10), 500.0),
        ]:
            metric = Metric("plan", name, MetricValue(time, value))
            state = advance(RESOURCE, state, [metric], max(time, START + MINUTE * step)).state
        estimate = counted_rate(state.learned.work)
        rate = estimate.likely if estimate and estimate.sure else None
        if rate is not None and not first_known:
            first_known = step
        if rate is None or abs(rate / RATE - 1) > NEAR:
            last_wrong = step
        elif step - last_wrong > 200:
            break
    return first_known, last_wrong + 1


RESOURCE = Resource(
    name="plan",
    target=AppServicePlan("00000000-0000-0000-0000-000000000001", "bench", "plan"),
    metrics={"backlog": ServiceBusQueue("orders"), "finished": HubMetric()},
    policy=Threshold("backlog", upper=1000, lower=10),
    throughput=Throughput(completed_metric="finished"),
)
