"""Clocks that were set: times in the future, and clocks of sources and store that differ."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from local.twins.autoscaling import MemoryStateStore
from shared.autoscaling import Limits
from shared.autoscaling.acting.actions import as_of, reconcile
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.deciding.samples import FUTURE_TOLERANCE_SECONDS
from shared.autoscaling.errors import BadMessage
from shared.autoscaling.flows import scaling_logic, status
from shared.autoscaling.operating.conditions import conditions
from shared.autoscaling.state import ActionStatus, Desired, ScalingState
from shared.autoscaling.transition import advance
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue, Window
from tests.builders import (
    NOW,
    TIMING,
    ago,
    as_message,
    confirmed,
    desired,
    metric,
    resource,
    sample,
)

TEN_MINUTES = 600.0
WITHIN, BEYOND = -FUTURE_TOLERANCE_SECONDS, -FUTURE_TOLERANCE_SECONDS - 1


ACTION = desired(requested_at=ago(30), sent_at=ago(30))
AHEAD: dict[str, Any] = {"requested_at": ago(-TEN_MINUTES), "sent_at": ago(-TEN_MINUTES)}
FAILED = desired(status=ActionStatus.FAILED, requested_at=ago(-TEN_MINUTES), sent_at=ago(30))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (confirmed(-TEN_MINUTES), {"changed_at": NOW, "requested_at": NOW}),
        (replace(ACTION, requested_at=ago(WITHIN)), None),
        (replace(ACTION, sent_at=ago(WITHIN)), None),
        (confirmed(WITHIN), None),
        (confirmed(BEYOND), {"changed_at": NOW}),
        (
            replace(ACTION, requested_at=ago(-TEN_MINUTES), changed_at=ago(90)),
            {"requested_at": NOW, "sent_at": ago(30), "changed_at": ago(90), "retry_at": NOW},
        ),
        (replace(ACTION, sent_at=ago(-TEN_MINUTES)), {"requested_at": ago(30), "sent_at": NOW}),
        (replace(FAILED, retry_at=ago(-TEN_MINUTES - 60)), {"retry_at": NOW}),
        (replace(FAILED, retry_at=ago(30)), {"retry_at": ago(30)}),
        (FAILED, {"retry_at": None}),
    ],
)
def test_only_the_times_of_an_action_in_the_future_are_moved_to_now(
    before: Desired, after: dict[str, datetime | None] | None
) -> None:
    """The clocks of two services differ, so times within the tolerance stay."""
    state = ScalingState(desired=before)
    moved = as_of(state, NOW)
    assert (moved is state) is (after is None)
    assert moved.desired is not None
    for name, time in (after or {}).items():
        assert getattr(moved.desired, name) == time


def test_samples_and_recommendations_from_the_future_are_dropped_and_older_ones_stay() -> None:
    kept, ahead = Window((sample(50, 5), sample(4, WITHIN))), sample(5, BEYOND)
    histories = {"backlog": Window((*kept.samples, ahead)), CAPACITY_METRIC: Window((ahead,))}
    recommended = Window((sample(3, 1), sample(3, 0), sample(9, -1)))
    state = as_of(ScalingState(histories, recommendations=recommended), NOW)
    assert state.histories == {"backlog": kept, CAPACITY_METRIC: Window(())}
    assert state.recommendations.samples == recommended.samples[:2]
    assert as_of(state, NOW) is state


@pytest.mark.parametrize("retry_at", [None, ago(-TEN_MINUTES - 15)])
def test_an_action_from_the_future_is_sent_again_and_given_up_after_its_usual_deadline(
    retry_at: datetime | None,
) -> None:
    action = replace(ACTION, **AHEAD, retry_at=retry_at)
    state = ScalingState(desired=action)
    resent = reconcile(resource(), state, action.previous, NOW, TIMING)
    assert resent.action is not None
    assert resent.desired is not None
    assert (resent.desired.sent_at, resent.desired.retry_at) == (NOW, None)
    late = NOW + timedelta(seconds=TIMING.deadline_seconds + 1)
    state = ScalingState(desired=resent.desired)
    ended = reconcile(resource(), state, action.previous, late, TIMING)
    assert ended.desired is not None
    assert ended.desired.status is ActionStatus.FAILED


def test_after_a_clock_was_set_back_a_decision_uses_the_capacity_that_is_not_from_the_future() -> (
    None
):
    """Otherwise the app would decide from an outdated one until the clock has caught up."""
    capacities = Window((sample(4, 5), sample(2, -TEN_MINUTES)))
    pending = ScalingState(
        {CAPACITY_METRIC: capacities}, Desired(9, 1, "why", ago(-TEN_MINUTES), 2)
    )
    step = advance(resource(limits=Limits(1, 20)), pending, [metric(500, 1)], NOW)
    assert step.confirmed is False  # moving times back is no confirmation
    held = replace(pending, desired=confirmed(TEN_MINUTES * 2, target=4))
    step = advance(resource(), held, [metric(500, 1)], NOW)
    assert step.decision is not None
    assert step.decision.current == 4
    newer = Metric("plan-1", CAPACITY_METRIC, sample(5, 1))
    new = advance(resource(), held, [newer], NOW).state
    assert new.histories[CAPACITY_METRIC].samples[-1] == sample(5, 1)


# --- clocks that differ ---


class Clocks:
    """A busy plan of two instances that is read every 15 s, and the clocks of store and sources."""

    def __init__(self) -> None:
        self.true, self.store_ahead, self.sources_ahead = NOW, 0.0, 0.0
        self.store = MemoryStateStore(lambda: self.true + timedelta(seconds=self.store_ahead))
        self.resources = {"plan-1": resource()}
        self.decided_at: list[datetime] = []
        self.lines: list[LogEntry] = []

    def read(self) -> list[Metric]:
        time = self.true + timedelta(seconds=self.sources_ahead)
        named = ((CAPACITY_METRIC, 2.0), ("backlog", 500.0))
        return [Metric("plan-1", name, MetricValue(time, value)) for name, value in named]

    async def deliver(self, metrics: list[Metric]) -> None:
        for each in metrics:
            before = {(e.time, e.entry_id) for e in await self.store.log("plan-1", 10_000)}
            with suppress(BadMessage):
                await scaling_logic.process_samples(as_message(each), self.resources, self.store)
            log = await self.store.log("plan-1", 10_000)
            new = [e for e in log if (e.time, e.entry_id) not in before]
            self.decided_at += [self.true for e in new if e.kind is EntryKind.DECISION]
            self.lines += new

    async def minutes(self, minutes: float) -> list[Metric]:
        read: list[Metric] = []
        for _ in range(round(minutes * 4)):
            self.true += timedelta(seconds=15)
            read = self.read()
            await self.deliver(read)
        return read

    async def told(self) -> str:
        """The condition that the clocks differ; empty if there is none."""
        snapshot = await self.store.load("plan-1")
        found = conditions(self.resources["plan-1"], snapshot, 30)
        return next((each.what for each in found if each.subject == "plan-1/clock"), "")


@pytest.mark.parametrize("seconds", [600, -150, -7200])
@pytest.mark.parametrize("stepped", ["store", "sources", "both"])
async def test_decisions_go_on_within_two_minutes_after_a_clock_was_set(
    stepped: str, seconds: float
) -> None:
    world = Clocks()
    await world.minutes(20)
    for ahead in (seconds, 0.0):
        if stepped in ("store", "both"):
            world.store_ahead = ahead
        if stepped in ("sources", "both"):
            world.sources_ahead = ahead
        set_at = world.true
        await world.minutes(20)
        times = [set_at, *[at for at in world.decided_at if at > set_at], world.true]
        assert max(b - a for a, b in pairwise(times)) <= timedelta(minutes=2)
        reason = world.lines[-1].reason
        if not ahead or stepped == "both":
            assert await world.told() == ""
            assert "clock" not in reason
        else:
            behind = (seconds < 0) is (stepped == "store")
            where = "behind" if behind else "ahead of"
            differ = rf"the clock of the storage account is \d+ s {where} that of the plan"
            assert re.search(differ, reason)
            assert re.search(differ, await world.told())
            assert "mean backlog is 500" in reason  # the samples count as present
            assert "no sample" not in reason


async def test_a_source_whose_clock_is_that_of_the_store_keeps_its_times() -> None:
    """Such as a storage queue, although the clock of the plan's readings differs."""
    world = Clocks()
    world.store_ahead = 600
    for _ in range(20):
        world.true += timedelta(seconds=15)
        capacity, backlog = world.read()
        time = world.true + timedelta(seconds=598)
        await world.deliver([capacity, replace(backlog, value=MetricValue(time, 500))])
    assert await world.told()
    kept = (await world.store.load("plan-1")).state.histories["backlog"].samples
    assert kept[-1].time == world.true + timedelta(seconds=598)
    assert len(kept) == 20


async def test_a_redelivered_sample_is_a_duplicate_although_the_clocks_differ() -> None:
    world = Clocks()
    world.store_ahead = 600
    last = await world.minutes(5)
    before = len(world.decided_at)
    world.true += timedelta(seconds=5)
    await world.deliver(last)
    assert len(world.decided_at) == before


async def test_late_messages_are_not_taken_for_a_difference_of_clocks() -> None:
    world = Clocks()
    await world.minutes(5)
    waiting = []
    for _ in range(50):  # the queue is not read for more than twelve minutes
        world.true += timedelta(seconds=15)
        waiting.append(world.read())
    decided = len(world.decided_at)
    for metrics in waiting[:6]:  # older than the window: dropped
        world.true += timedelta(seconds=1)
        await world.deliver(metrics)
    assert len(world.decided_at) == decided
    for metrics in waiting[6:]:  # read faster than new ones arrive
        world.true += timedelta(seconds=5)
        await world.deliver(metrics)
        assert await world.told() == ""
    await world.minutes(1)
    for _ in range(8):  # one late message, again and again
        world.true += timedelta(seconds=10)
        await world.deliver(waiting[-1])
        assert await world.told() == ""
    for metrics in waiting[::-1][::3]:  # late, out of order, between fresh ones
        await world.deliver(metrics)
        await world.minutes(0.25)
        assert await world.told() == ""


async def test_the_status_shows_the_newest_decision_of_the_clock_that_was_set_back() -> None:
    world = Clocks()
    await world.minutes(15)
    world.store_ahead = world.sources_ahead = -600
    await world.minutes(3)
    newest = (await status.read_one(world.resources["plan-1"], world.store, 30))["newest"]
    assert newest
    assert newest["id"].startswith(f"backlog-{int(world.read()[0].value.time.timestamp())}")
