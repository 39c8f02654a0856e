"""unfallen: how often a queue with working instances is reported as a backlog that does not fall.

The bundled days, sampled every 15 s as in production. Instances start three minutes after they are
ordered. In half of the runs, Resource Manager shows the ordered capacity at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import product

import numpy as np

from backtest.arena import Arena, Plan, Queue, usual_rate
from backtest.replay import TIMING, App, Minute, in_arena
from backtest.workload import Workload, load_workload
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
from shared.autoscaling.acting.actions import Settlement
from shared.autoscaling.deciding.decide import EntryKind
from shared.autoscaling.learning.backlogs import unfallen
from shared.values.measurements import CAPACITY_METRIC, MetricValue

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
    """Replay with samples every 15 s, at the volume that ``rate`` needs."""
    arena = Arena(rate / TICKS, dead_time_minutes=3 * TICKS)
    app, queue, random = App(resource, Plan(arena), TIMING), Queue(arena), np.random.default_rng(1)
    scale = rate / usual_rate(workload.arrivals)
    reported = False
    for minute in range(minutes):
        arrivals = round(workload.listed[minute] * scale)
        parts = random.multinomial(arrivals, [1 / TICKS] * TICKS)
        for part in range(TICKS):
            tick = minute * TICKS + part
            now = workload.starts[minute] + timedelta(minutes=(part + 1) / TICKS)
            changed, before = app.plan.begin(tick), app.plan.ordered
            shown = app.plan.ordered if at_once else app.plan.capacity
            if changed and not at_once:
                app.arrived(now)
            backlog = queue.serve(float(parts[part]), app.plan.capacity)
            ordered = _sampled(app, tick, now, backlog, shown, at_once)
            reports = shown < resource.limits.maximum and bool(unfallen(resource, app.state))
            found.reports += reports and not reported
            found.samples += reports
            found.scale_outs += reports and ordered > before
            reported = reports


def _sampled(
    app: App, tick: int, now: datetime, backlog: float, capacity: int, at_once: bool
) -> int:
    """Receive the samples, and return the capacity that is then ordered."""
    read = MetricValue(now, float(capacity))
    samples = app.samples(now, Minute(backlog))
    app.receive(
        [replace(m, value=read) if m.name == CAPACITY_METRIC else m for m in samples], tick, now
    )
    desired = app.state.desired
    if at_once and desired is not None and desired.pending:
        app.settle(Settlement(EntryKind.CONFIRMED, "the capacity reads as ordered"), now)
    return app.plan.ordered
