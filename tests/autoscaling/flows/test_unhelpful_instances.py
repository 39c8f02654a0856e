"""Instances that help nobody, because the limit lies behind them: what the app says and does.

The queue, its workers and the database that they wait for are a model. The collector's readings,
the state and the decisions are those of the app.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from html import unescape
from typing import Any

import pytest

from local.twins.autoscaling import MemoryStateStore
from shared.autoscaling import (
    Guards,
    HubMetric,
    Limits,
    QueueAge,
    Recommendation,
    Resource,
    ServiceBusQueue,
    Throughput,
)
from shared.autoscaling.acting.actions import confirm
from shared.autoscaling.deciding.validation import problems
from shared.autoscaling.flows import scaling_logic
from shared.autoscaling.flows.message_counts import MessageCounts
from shared.autoscaling.flows.notify import collect_news
from shared.autoscaling.flows.status import read_one
from shared.autoscaling.learning.counts import ABANDONED, COMPLETED, with_counts
from shared.autoscaling.messages import Samples
from shared.autoscaling.state import BusyIntervals, Learned, ScalingState
from shared.autoscaling.store.rows import state_of, state_row
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue
from shared.values.news import NewsKind
from shared.web.board import Board
from shared.web.http import Request
from shared.web.page import dashboard
from tests.builders import NOW, resource

MINUTE = timedelta(minutes=1)
RATE, ARRIVALS, ENOUGH = 50.0, 180.0, 2
NAMESPACE = (
    "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/group-1/providers"
    "/Microsoft.ServiceBus/namespaces/bus-1"
)
JOBS, DEAD = ServiceBusQueue("jobs"), ServiceBusQueue("jobs", "dead_letter")


def counted(**changes: Any) -> Resource:
    """Workers whose completed messages Azure Monitor counts."""
    policy = QueueAge("backlog", lambda seen: Recommendation(seen.capacity + 1, "one more"))
    throughput = Throughput(None, 1)
    fields = {"metrics": {"backlog": JOBS}, "throughput": throughput, "limits": Limits(1, 20)}
    declared = resource(policy=policy, **{**fields, **changes})
    return with_counts(declared, {"ServiceBusConnection": NAMESPACE})


@dataclass
class World:
    """More arrives each minute than the database lets ``passes`` through, so that two instances
    finish as much as any number. Of what the others take, the share ``failing`` is abandoned and
    ``dying`` is dead-lettered. The rate per instance is known."""

    declared: Resource
    passes: float = 100
    failing: float = 0
    dying: float = 0
    capacity: int = 2
    backlog: float = 100
    dead: float = 0
    minute: int = 0
    late_minutes: int = 2
    counts: MessageCounts = field(default_factory=MessageCounts)
    course: list[int] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    published: list[tuple[str, MetricValue]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.now = NOW
        self.store = MemoryStateStore(lambda: self.now)

    async def run(self, minutes: int) -> ScalingState:
        if not self.minute:
            work = BusyIntervals(NOW, ((100.0, 2.0),) * 12)
            start = await self.store.load("plan-1")
            await self.store.commit(start, replace(start.state, learned=Learned(work=work)))
        for _ in range(minutes):
            await self._next()
        return (await self.store.load("plan-1")).state

    async def _next(self) -> None:
        self.minute, self.now = self.minute + 1, self.now + MINUTE
        able = RATE * self.capacity
        done = min(self.backlog + ARRIVALS, able, self.passes)
        stuck = min(max(able - done, 0.0), self.backlog)
        self.dead += stuck * self.dying
        self.backlog = max(self.backlog + ARRIVALS - done - stuck * self.dying, 0.0)
        counts = {COMPLETED: done, ABANDONED: stuck * self.failing, "arrived": ARRIVALS}
        self.published += [(name, MetricValue(self.now, each)) for name, each in counts.items()]
        await self._decide(self._read())

    def _read(self) -> Sequence[Metric]:
        values = {CAPACITY_METRIC: self.capacity, "backlog": self.backlog, "dead": self.dead}
        due = self.now - self.late_minutes * MINUTE
        read = [(name, MetricValue(self.now, value)) for name, value in values.items()]
        read += [each for each in self.published if each[1].time == due]
        names = {CAPACITY_METRIC, ABANDONED, *self.declared.metrics}
        metrics = [Metric("plan-1", name, value) for name, value in read if name in names]
        return list(self.counts.adjusted(self.declared, metrics))

    async def _decide(self, metrics: Sequence[Metric]) -> None:
        resources = {"plan-1": self.declared}
        samples = Samples("plan-1", tuple(metrics))
        action = await scaling_logic.process_samples(samples, resources, self.store)
        snapshot = await self.store.load("plan-1")
        if action is not None and snapshot.state.desired is not None:
            self.capacity = action.target
            confirmed = confirm(snapshot.state.desired, self.now)
            await self.store.commit(snapshot, snapshot.state.with_desired(confirmed))
        self.course.append(self.capacity)
        self.reasons.append(snapshot.decided.reason if snapshot.decided else "")

    @property
    def holding(self) -> str:
        return next((each for each in reversed(self.reasons) if "finished nothing" in each), "")


async def test_page_status_reason_and_notification_say_how_many_instances_helped_nobody() -> None:
    world = World(counted())
    await world.run(35)
    most = max(world.course)
    text = f"{most - ENOUGH} more instances finished nothing more"
    assert f"{text}: no scale-out above {most}" in world.reasons[-1]
    assert world.course[-20:] == [most] * 20
    news = await collect_news([world.declared], world.store, NOW, world.now, 30)
    (one,) = [each for each in news.conditions if each.kind is NewsKind.SCALING_UNHELPFUL]
    assert one.what == f"plan-1: {text}"
    assert one.to_json() in (await read_one(world.declared, world.store, 30))["conditions"]
    board = Board({"plan-1": world.declared}, world.store, 30)
    assert one.what in unescape((await dashboard(Request(), board)).body)


async def test_instances_that_help_are_not_held() -> None:
    world = World(counted(), passes=math.inf)
    await world.run(90)
    assert world.course[-1] >= 4
    assert not world.holding


@pytest.mark.parametrize("failing", [0.5, 1.0])
async def test_deliveries_that_are_abandoned_in_proportion_to_the_instances_hold_as_well(
    failing: float,
) -> None:
    world = World(counted(), failing=failing)
    await world.run(38)
    assert "finished nothing more: no scale-out above" in world.reasons[-1]
    assert max(world.course) <= 6
    unheld = World(counted(guards=Guards(nothing_finished_seconds=0)), failing=failing)
    await unheld.run(38)
    assert unheld.course[-1] > max(world.course)


@pytest.mark.parametrize("declares", [True, False])
async def test_dead_letters_in_proportion_to_the_instances_hold_where_arrivals_are_counted(
    declares: bool,
) -> None:
    """A message that is dead-lettered has left the backlog, as one that is completed."""
    metrics = {"backlog": JOBS, "arrived": HubMetric(), **({"dead": DEAD} if declares else {})}
    throughput = Throughput(None, 1, incoming_metric="arrived")
    world = World(counted(metrics=metrics, throughput=throughput), dying=0.4)
    await world.run(60)
    assert bool(world.holding) is declares


async def test_dead_letters_are_not_completed_messages() -> None:
    world = World(counted(), dying=0.4)
    await world.run(60)
    assert world.holding


async def test_stepping_back_removes_the_instances_and_adds_none_for_about_half_an_hour() -> None:
    world = World(counted(guards=Guards(step_back=True)))
    await world.run(240)
    most = max(world.course[:20])
    for more in ("1 more instance", "18 more instances"):
        assert f"{more} finished nothing more: back to {ENOUGH}" in " ".join(world.reasons)
    down = world.course.index(ENOUGH, world.course.index(most))
    again = next(at for at in range(down, 240) if world.course[at] > ENOUGH)
    assert 20 <= again - down <= 35
    tried = sum(each > ENOUGH for each in world.course[down:])
    assert tried < (240 - down) / 3, "each trial ends as soon as it is counted"
    changes = sum(a != b for a, b in zip(world.course, world.course[1:], strict=False))
    assert changes <= 20


async def test_the_capacity_is_held_only_while_counts_come() -> None:
    world = World(counted())
    held = await world.run(35)
    world.late_minutes = 10**6
    await world.run(26)
    assert world.course[-1] == world.course[34]
    await world.run(10)
    assert "no scale-out above" not in world.reasons[-1]
    assert held.learned.work.until is not None


async def test_what_is_learned_is_read_back() -> None:
    held = await World(counted(), failing=0.5).run(60)
    assert any(len(each) == 4 and each[2] < each[0] for each in held.learned.work.recent)
    assert state_of([state_row("plan-1", "learned", held.learned)])[0].learned == held.learned
    row = state_row("plan-1", "learned", held.learned)
    assert sum(len(str(value)) for value in row.values()) < 8_000


def test_stepping_back_needs_the_start_up_time() -> None:
    declared = counted(guards=Guards(step_back=True))
    assert problems([declared]) == []
    unknown = replace(declared, throughput=replace(declared.throughput, start_up_minutes=None))
    (one,) = problems([unknown])
    assert "guards.step_back = True: throughput.start_up_minutes must be set" in one
