"""Replay a trace through one resource's rules, in the app's own code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from backtest.app import PATIENCE, App, Order
from backtest.arena import Arena, Plan, Queue, Schedule, as_schedule
from backtest.feeds import Minute
from backtest.progress import ignore
from backtest.workload import Workload
from shared.autoscaling import HubMetric, Limits, Resource
from shared.autoscaling.actions import ActionTiming
from shared.autoscaling.declaring import Goal, Mode, Throughput

PROGRESS_MINUTES = 1440
FINISHED = "finished"
"""The metric that counts finished items where the rules declare none, and it was asked for."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What the rules did: instances in each minute, and every order with its reason."""

    capacity: Schedule
    orders: Sequence[Order]
    rule_error: str = ""
    """What a rule that raised said of itself; each such decision held."""
    false_alarms: int = 0
    """How often the app took its own change of capacity for one made by hand."""


def in_arena(resource: Resource, arena: Arena) -> Resource:
    """The resource with what the arena knows: rules optimise what they are judged by."""
    if arena.finished_counted and resource.throughput.counted_metric is None:
        resource = replace(
            resource,
            metrics={**resource.metrics, FINISHED: HubMetric()},
            throughput=replace(resource.throughput, completed_metric=FINISHED),
        )
    return replace(
        resource,
        limits=Limits(arena.min_instances, arena.max_instances),
        goal=Goal(arena.age_limit_minutes, arena.switch_cost, arena.late_penalty),
        throughput=_throughput(resource, arena),
        mode=Mode.ACTIVE,
    )


def _throughput(resource: Resource, arena: Arena) -> Throughput:
    if arena.service_learned:
        return resource.throughput
    return replace(
        resource.throughput,
        rate_per_instance_minute=arena.instance_rate,
        dead_time_minutes=arena.dead_time_minutes,
    )


def replay(
    arena: Arena,
    workload: Workload,
    resource: Resource,
    timing: ActionTiming = PATIENCE,
    progress: Callable[[int], None] = ignore,
) -> Replay:
    """From the minimum of instances on, one decision per minute and metric."""
    app = App(in_arena(resource, arena), Plan(arena), timing, arena.backlog_metric)
    return run(app, arena, workload, progress)


def run(app: App, arena: Arena, workload: Workload, progress: Callable[[int], None]) -> Replay:
    queue, plan = Queue(arena), app.plan
    capacity: list[int] = []
    began: datetime = workload.starts[0]
    for minute, (arrivals, ends) in enumerate(zip(workload.listed, workload.ends, strict=True)):
        app.begin(minute, began)
        capacity.append(plan.capacity)
        backlog = queue.serve(arrivals, plan.capacity)
        app.end(minute, ends, Minute(backlog, queue.finished, arrivals))
        began = ends
        if minute % PROGRESS_MINUTES == 0:
            progress(PROGRESS_MINUTES)
    return Replay(as_schedule(capacity), app.orders, app.rule_error, app.false_alarms)
