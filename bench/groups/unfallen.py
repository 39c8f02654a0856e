"""unfallen: how often a queue with working instances is reported as a backlog that does not fall.

The bundled days, sampled every 15 s as in production. Instances start three minutes after they are
ordered. In half of the runs, Resource Manager shows the ordered capacity at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import product

import numpy as np

from backtest.arena import Arena, Plan, usual_rate
from backtest.progress import ignore
from backtest.replay import TIMING, App, Seen, in_arena, replay_workload
from backtest.workload import Workload, load_workload, workload_of
from bench.measurement import ROOT, Measurement
from shared.autoscaling import (
    AppServicePlan,
    Cooldown,
    Observation,
    Policy,
    QueueAge,
    Recommendation,
    Resource,
    ServiceBusQueue,
    Threshold,
)
from shared.autoscaling.learning.backlogs import unfallen

TRACE = ROOT / "local" / "data" / "nasa_http_1995-07-11_13.csv"
TICKS = 4
"""Samples in a minute."""
SCALES = (1, 100)
AGE_LIMITS = (5, 30, 60)
PLAN = AppServicePlan("00000000-0000-0000-0000-000000000000", "bench", "bench")


@dataclass
class Alarms:
    """The reports of backlogs that did not fall, below the maximum."""

    reports: int = 0
    samples: int = 0
    scale_outs: int = 0
    """Scale-outs that were decided while one lasted."""


def measure(days: float = 3) -> Iterator[Measurement]:
    """The share of samples with such a report. All reports are false, because instances work."""
    workload = load_workload(TRACE)
    minutes = min(workload.minutes, int(days * 1440))
    base = usual_rate(workload.arrivals)
    for scale, limit in product(SCALES, (*AGE_LIMITS, None)):
        found = Alarms()
        for at_once in (False, True):
            _watch(workload, minutes, _resource(base * scale, limit), base * scale, at_once, found)
        name = f"age_limit_{limit}" if limit else "thresholds_and_cooldown"
        yield Measurement(
            f"unfallen.{name}_at_{scale}_times",
            100 * found.samples / (2 * minutes * TICKS),
            "%",
            100,
            note=f"{found.reports} false reports in {2 * minutes / 1440:g} days, and "
            f"{found.scale_outs} scale-outs while they lasted; baseline: all samples",
        )


def _resource(rate: float, age_limit_minutes: int | None) -> Resource:
    def hold_until_known(_: Observation) -> Recommendation:
        raise AssertionError("the throughput is given")

    by_age: Policy = QueueAge("backlog", hold_until_known)
    policy = Threshold("backlog", 5 * rate, rate) if age_limit_minutes is None else by_age
    arena = Arena(rate, age_limit_minutes=age_limit_minutes or 5)
    declared = Resource("bench", PLAN, {"backlog": ServiceBusQueue("backlog")}, policy)
    return replace(in_arena(declared, arena), cooldown=Cooldown(600, 600))


def _watch(
    workload: Workload, minutes: int, resource: Resource, rate: float, at_once: bool, found: Alarms
) -> None:
    """Replay at the volume that ``rate`` needs."""
    scale = rate / usual_rate(workload.arrivals)
    load = workload_of("", workload.starts[0], np.round(workload.arrivals[:minutes] * scale))
    arena = Arena(rate, sample_seconds=60 // TICKS, confirm_seconds=0 if at_once else None)
    replay_workload(Watched(resource, Plan(arena), found), arena, load, ignore)


class Watched(App):
    """The app, whose reports are counted after each decision."""

    def __init__(self, resource: Resource, plan: Plan, found: Alarms) -> None:
        super().__init__(resource, plan, TIMING)
        self._found, self._reported = found, False

    def end(self, step: int, now: datetime, seen: Seen, whole: Seen | None) -> None:
        before, found = self.plan.ordered, self._found
        super().end(step, now, seen, whole)
        below = self.plan.shown < self.resource.limits.maximum
        reports = below and bool(unfallen(self.resource, self.state))
        found.reports += reports and not self._reported
        found.samples += reports
        found.scale_outs += reports and self.plan.ordered > before
        self._reported = reports
