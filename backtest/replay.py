"""Replay a trace through one resource's policy, in the app's own pure code.

Nothing is decided here. Samples go through ``advance`` and orders through the life of ``actions``,
step by step, just as in the flows of ``shared.autoscaling`` but without their storage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random
from typing import Literal

from backtest.arena import Arena, Plan, Schedule, as_schedule
from backtest.cpu import is_cpu
from backtest.progress import ignore
from backtest.workload import Workload
from backtest.world import Queue, world_of
from shared.autoscaling import AzureMonitorMetric, Limits, Resource
from shared.autoscaling.acting.actions import (
    ActionTiming,
    Settlement,
    action_of,
    asked,
    reason_to_ignore,
    reconcile,
    settle,
)
from shared.autoscaling.deciding.decide import Decision, EntryKind
from shared.autoscaling.declaring import Goal, Mode, Throughput
from shared.autoscaling.errors import CapacityDelayed
from shared.autoscaling.sources import Source
from shared.autoscaling.state import ScaleAction, ScalingState
from shared.autoscaling.transition import advance
from shared.values.measurements import CAPACITY_METRIC, NOTHING, Metric, MetricValue

Feed = Literal["backlog", "finished", "incoming", "cpu", "0"]


@dataclass(slots=True)
class Seen:
    """Items: left at the end of a step or minute, finished in it, come in it. CPU in percent."""

    backlog: float
    finished: float = 0.0
    incoming: float = 0.0
    cpu: float = 0.0

    def of(self, feed: Feed) -> float:
        return 0.0 if feed == "0" else float(getattr(self, feed))

    def then(self, later: Seen) -> Seen:
        """Both as one. The CPU is summed."""
        finished, incoming = self.finished + later.finished, self.incoming + later.incoming
        return Seen(later.backlog, finished, incoming, self.cpu + later.cpu)


def feeds(resource: Resource, arena: Arena) -> Mapping[str, Feed]:
    """By metric. All that count waiting items see the whole backlog, or only the one named."""
    return {name: _feed(resource, name, arena) for name in resource.metrics}


def _feed(resource: Resource, name: str, arena: Arena) -> Feed:
    if arena.cpu:
        return "cpu" if is_cpu(resource.metrics[name], resource) else "0"
    if arena.cpu_percent and is_cpu(resource.metrics[name], resource):
        return "cpu"
    if name == resource.throughput.completed_metric:
        return "finished"
    if name == resource.throughput.incoming_metric:
        return "incoming"
    if arena.backlog_metric is not None:
        return "backlog" if name == arena.backlog_metric else "0"
    return "backlog" if resource.source(name).counts_backlog else "0"


def not_in_a_trace(resource: Resource, arena: Arena) -> list[str]:
    """The metrics of which the trace has no data, such as CPU in a trace of arrivals.

    That there are neither dead letters nor scheduled messages is true of a trace of arrivals.
    """

    def is_known(source: Source) -> bool:
        if arena.cpu:
            return source.at_rest is not None and not source.service
        return source.at_rest is not None or source.counts_backlog

    return [
        name
        for name, feed in feeds(resource, arena).items()
        if feed == "0" and not is_known(resource.source(name))
    ]


TIMING = ActionTiming(
    resend_seconds=60, retry_seconds=15, failure_hold_seconds=60, deadline_seconds=600
)
"""The settings' defaults."""


COUNTS = AzureMonitorMetric(
    "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/backtest/providers"
    "/Microsoft.ServiceBus/namespaces/backtest",
    "CompleteMessage",
    "total",
)
COUNTED = ("finished", "incoming")
LATE_MINUTES = (1, 4)
"""How late Azure Monitor publishes a minute, at least and at most."""


@dataclass(frozen=True, slots=True)
class Order:
    """A decision that was applied, for plots and for the curious."""

    minute: int
    decision: Decision


class App:
    """One resource under its rules. ``plan`` is where its orders go."""

    def __init__(
        self,
        resource: Resource,
        plan: Plan,
        timing: ActionTiming = TIMING,
    ) -> None:
        self.resource = resource
        self.plan = plan
        self.timing = timing
        self.state = ScalingState()
        self.orders: list[Order] = []
        self.rule_error = ""
        self.false_alarms = 0
        self.limited_by = Counter[str]()
        self._feeds = feeds(resource, plan.arena)
        self._late = {name for name in self._feeds if self._is_late(name)}
        self._unpublished: list[tuple[datetime, Metric]] = []
        self._delays = Random(0)  # noqa: S311  reproducible delays, not secrets

    def begin(self, step: int, now: datetime) -> None:
        """Instances that are due start, and the scaler reads the number back when it is shown."""
        changed = self.plan.begin(step)
        if changed is not None:
            self.arrived(now + timedelta(seconds=changed))

    def end(self, step: int, now: datetime, seen: Seen, whole: Seen | None) -> None:
        """The collector takes its samples; the timer of the reconciler comes round.

        ``whole`` is the minute that ends with this step, if one ends.
        """
        self.receive(self.samples(now, seen, whole), step, now)
        self.reconcile(step, now)

    def samples(self, now: datetime, seen: Seen, whole: Seen | None) -> list[Metric]:
        name = self.resource.name
        metrics = [Metric(name, CAPACITY_METRIC, MetricValue(now, float(self.plan.shown)))]
        for metric, feed in self._feeds.items():
            if metric not in self._late:
                metrics.append(Metric(name, metric, MetricValue(now, seen.of(feed))))
            elif whole is not None:
                self._publish(Metric(name, metric, MetricValue(now, whole.of(feed))), now)
        return metrics + self._published(now) if self._late else metrics

    def _is_late(self, name: str) -> bool:
        """True if Azure Monitor has the metric, as a value for each whole minute."""
        source = self.resource.source(name)
        counts = self.plan.arena.steps_per_minute > 1 and self._feeds[name] in COUNTED
        return counts or (source.series is not None and not source.pushed)

    def _publish(self, sample: Metric, now: datetime) -> None:
        late = timedelta(minutes=self._delays.randint(*LATE_MINUTES))
        self._unpublished.append((now + late, sample))

    def _published(self, now: datetime) -> list[Metric]:
        """What Azure Monitor has published since the step before."""
        due = [each for at, each in self._unpublished if at <= now]
        self._unpublished = [each for each in self._unpublished if each[0] > now]
        return due

    def receive(self, metrics: Sequence[Metric], step: int, now: datetime) -> None:
        """What the function ``scaling_logic`` does with one message."""
        after = advance(self.resource, self.state, metrics, now)
        for state in (after.decided_on, after.state):  # one message may confirm, and decide anew
            self.state = state or self.state
        if after.decision is not None:
            self.decided(after.decision)
            if after.decision.applies and after.state.desired is not None:
                self.orders.append(Order(step // self.plan.arena.steps_per_minute, after.decision))
                self.carry_out(action_of(self.resource.name, after.state.desired), step, now)

    def decided(self, decision: Decision) -> None:
        """Look at a decision; a policy that raises is held, and must not stay unseen here."""
        self.limited_by.update(decision.limited_by)
        if not self.rule_error and decision.candidates and decision.candidates[0].failed:
            self.rule_error = f"{decision.reason} (first at {decision.time:%Y-%m-%d %H:%M})"

    def carry_out(self, action: ScaleAction, step: int, now: datetime) -> None:
        """What the function ``scaler`` does up to waiting for the plan."""
        desired = self.state.desired
        if desired is None or reason_to_ignore(self.resource, self.state, action, now) is not None:
            return
        try:
            self.plan.order(action.target, step)
        except CapacityDelayed as error:
            wait = error.retry_after_seconds
            deferred = Settlement(EntryKind.DEFERRED, str(error), retry_after_seconds=wait)
            self.settle(deferred, now)
        else:
            self.state = self.state.with_desired(asked(desired, now))

    def arrived(self, now: datetime) -> None:
        """What the function ``scaler`` does when the plan has done what was asked for."""
        desired = self.state.desired
        if desired is not None and self.plan.shown == desired.target:
            self.settle(Settlement(EntryKind.CONFIRMED, "capacity changed"), now)

    def settle(self, settlement: Settlement, now: datetime) -> None:
        if self.state.desired is None:
            return
        settled = settle(self.state.desired, settlement, now, self.timing)
        if settled is not None:
            self.state = self.state.with_desired(settled)

    def reconcile(self, step: int, now: datetime) -> None:
        """What the function ``reconciler`` does."""
        if self.state.desired is None:
            return
        outcome = reconcile(self.resource, self.state, self.plan.shown, now, self.timing)
        if outcome.desired is not None:
            self.state = self.state.with_desired(outcome.desired)
        if outcome.entry is not None and outcome.entry.kind is EntryKind.MANUAL_CHANGE:
            self.false_alarms += 1  # nobody but the app changes the plan here
        if outcome.action is not None:
            self.carry_out(outcome.action, step, now)


PROGRESS_MINUTES = 1440
FINISHED = "finished"
"""The metric that counts finished items where the rules declare none, and it was asked for."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What the rules did: working instances in each step, and every order with its reason."""

    capacity: Schedule
    orders: Sequence[Order]
    rule_error: str = ""
    """What a policy that raised said of itself; each such decision held."""
    false_alarms: int = 0
    """How often the app took its own change of capacity for one made by hand."""
    ordered: Schedule = field(default_factory=lambda: as_schedule(()))
    """The instances in each step that work or start, which are those that are paid for."""
    limited_by: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    """How many decisions each guard changed."""


def in_arena(resource: Resource, arena: Arena) -> Resource:
    """The resource with what the arena knows: rules optimise what they are judged by."""
    if arena.finished_counted and resource.throughput.counted_metric is None:
        resource = replace(
            resource,
            metrics={**resource.metrics, FINISHED: COUNTS},
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
        start_up_minutes=arena.dead_time_minutes,
    )


def replay(
    arena: Arena,
    workload: Workload,
    resource: Resource,
    timing: ActionTiming = TIMING,
    progress: Callable[[int], None] = ignore,
) -> Replay:
    """From the minimum of instances on, one decision per sample."""
    app = App(in_arena(resource, arena), Plan(arena), timing)
    return replay_workload(app, arena, workload, progress)


def replay_workload(
    app: App, arena: Arena, workload: Workload, progress: Callable[[int], None]
) -> Replay:
    steps, step = arena.steps_per_minute, timedelta(seconds=arena.sample_seconds)
    world = world_of(arena, workload.arrivals, steps)
    items, queue, plan, capacity = world.items.tolist(), Queue(world), app.plan, list[int]()
    ordered = list[int]()
    idle, busy = arena.cpu_percent or (0.0, 100.0)
    held = arena.in_hand_minutes * steps
    for minute, now in enumerate(workload.starts):
        if minute % PROGRESS_MINUTES == 0:
            progress(PROGRESS_MINUTES)
        passed = Seen(0.0)
        for at in range(minute * steps, (minute + 1) * steps):
            app.begin(at, now)
            capacity.append(plan.capacity)
            ordered.append(plan.ordered)
            backlog = queue.serve(at, plan.capacity)
            cpu = idle + (busy - idle) / 100 * queue.cpu
            seen = Seen(backlog + held * queue.finished, queue.finished, items[at], cpu)
            passed = passed.then(seen)
            now += step  # noqa: PLW2901
            app.end(at, now, seen, _whole(passed, steps) if at % steps == steps - 1 else None)
    return Replay(
        as_schedule(capacity),
        app.orders,
        app.rule_error,
        app.false_alarms,
        as_schedule(ordered),
        app.limited_by,
    )


def _whole(minute: Seen, steps: int) -> Seen:
    return replace(minute, cpu=minute.cpu / steps)
