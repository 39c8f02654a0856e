"""The app counts the changes of a plan exactly as Azure does, whatever happens to their orders."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.declaring import AppServicePlan
from shared.autoscaling.errors import CapacityDelayed, CapacityRefused
from shared.autoscaling.plan_facts import PlanReading
from shared.autoscaling.ports import Snapshot
from shared.autoscaling.state import ScaleAction, ScalingState
from tests.autoscaling.flows.test_flows import Control, Store, World

ACCEPTED, DONE, LOST = "accepted", "done", "lost"
BUSY, REFUSED, CRASH = "busy", "refused", "crash"


class Crash(BaseException):
    """The process ends, and no handler runs."""


class Azure(Control):
    """Answers each order with the next of ``answers``; then it does what is asked. ``meanwhile`` is
    what others do before it answers. ``counted`` is what it counts: changes of the number."""

    answers: Sequence[str] = ()
    meanwhile: Callable[[], Awaitable[Any]] | None = None
    counted = 0

    async def change(self, target: AppServicePlan, capacity: int, read: PlanReading) -> int | None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile:
            await meanwhile()
        answer, *self.answers = self.answers or [DONE]
        if answer == BUSY:
            raise CapacityDelayed("409 another operation")
        if answer == REFUSED:
            raise CapacityRefused("403")
        self.counted += capacity != ([number for _, number in self.changes] or [2])[-1]
        if answer == ACCEPTED:
            self.changes.append((target.name, capacity))
            return None
        after = await super().change(target, capacity, read)
        if answer == CRASH:
            raise Crash
        if answer == LOST:
            raise CapacityDelayed("no answer", maybe_done=True)
        return after


class OvertakenStore(Store):
    """``before_commit`` is what others do before the next commit."""

    before_commit: Callable[[], Awaitable[Any]] | None = None

    async def commit(
        self, snapshot: Snapshot, state: ScalingState, entries: Sequence[LogEntry] = ()
    ) -> None:
        others, self.before_commit = self.before_commit, None
        if others:
            await others()
        await super().commit(snapshot, state, entries)


def scene(*answers: str) -> tuple[World, Azure]:
    world = World()
    world.control = azure = Azure(lambda: world.now, {"plan-1": 2})
    azure.answers = answers
    return world, azure


async def counted(world: World) -> int:
    return len((await world.desired()).changes)


async def replaced(world: World) -> ScaleAction:
    """The order of a newer decision, while that of an older one is under way."""
    new = await world.load([0] * 45)
    assert new is not None
    return new


async def scale_until_it_crashes(world: World, action: ScaleAction) -> None:
    with pytest.raises(Crash):
        await world.scale(action)


@pytest.mark.parametrize(
    ("answers", "count"),
    [
        ([DONE], 1),
        ([ACCEPTED, ACCEPTED, DONE], 1),
        ([LOST], 1),
        ([BUSY, BUSY, DONE], 1),
        ([BUSY, ACCEPTED, BUSY, DONE], 1),
        ([BUSY, REFUSED], 0),
        ([LOST, REFUSED], 1),
    ],
)
async def test_a_change_is_counted_once_however_often_azure_is_asked_for_it(
    answers: Sequence[str], count: int
) -> None:
    world, azure = scene(*answers)
    action: ScaleAction | None = await world.scaled_out()
    while action and azure.answers:
        await world.scale(action)
        world.now = (await world.desired()).retry_at or world.now
        action = next(iter(await world.reconcile()), None)
    assert await counted(world) == azure.counted == count


@pytest.mark.parametrize("answer", [ACCEPTED, DONE, LOST])
async def test_an_order_that_was_replaced_while_it_was_sent_is_counted(answer: str) -> None:
    world, azure = scene(answer)
    old, new = await world.scaled_out(), list[ScaleAction]()

    async def decide() -> None:
        new.append(await replaced(world))

    azure.meanwhile = decide
    assert await world.scale(old) is EntryKind.IGNORED
    assert await counted(world) == azure.counted == 1
    await world.scale(new[0])
    assert await counted(world) == azure.counted == 2


async def test_an_order_is_counted_if_its_scaler_crashed_and_a_newer_decision_replaced_it() -> None:
    world, azure = scene(CRASH)
    await scale_until_it_crashes(world, await world.scaled_out())
    azure.capacities["plan-1"] = 2  # the plan does not show it yet
    await world.scale(await replaced(world))
    assert await counted(world) == azure.counted == 2


async def test_an_order_is_counted_once_if_its_scaler_crashed_and_it_is_sent_again() -> None:
    world, azure = scene(CRASH)
    action = await world.scaled_out()
    await scale_until_it_crashes(world, action)
    assert await world.scale(action) is EntryKind.CONFIRMED
    assert await counted(world) == azure.counted == 1


async def test_an_order_that_azure_was_never_asked_for_is_not_counted() -> None:
    world, azure = scene(BUSY)
    await world.scaled_out()  # its message is lost
    new = await replaced(world)
    assert await world.scale(new) is EntryKind.DEFERRED
    assert await counted(world) == azure.counted == 0


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [(ACCEPTED, ACCEPTED, 1), (ACCEPTED, BUSY, 1), (BUSY, ACCEPTED, 1)],
)
async def test_an_order_that_is_delivered_twice_at_once_is_counted_once(
    first: str, second: str, count: int
) -> None:
    world, azure = scene(second, first)
    action = await world.scaled_out()

    async def deliver() -> None:
        await world.scale(action)

    azure.meanwhile = deliver
    await world.scale(action)
    assert await counted(world) == azure.counted == count
    await world.scale(await replaced(world))
    assert await counted(world) == azure.counted


async def test_what_one_delivery_takes_back_another_one_counts_that_is_under_way() -> None:
    world, azure = scene(BUSY, ACCEPTED)
    action = await world.scaled_out()
    sends, settled = asyncio.Event(), asyncio.Event()

    async def waits() -> None:
        sends.set()
        await settled.wait()

    async def deliver() -> None:
        azure.meanwhile = waits
        again.append(asyncio.create_task(world.scale(action)))
        await sends.wait()

    again, azure.meanwhile = list[asyncio.Task[Any]](), deliver
    assert await world.scale(action) is EntryKind.DEFERRED
    assert await counted(world) == 0
    settled.set()
    await again[0]
    assert await counted(world) == azure.counted == 1


@pytest.mark.parametrize("answers", [[], [CRASH]], ids=["first", "again"])
async def test_an_order_that_is_replaced_while_its_scaler_begins_is_not_sent(
    answers: Sequence[str],
) -> None:
    world, azure = scene(*answers)
    world.store = store = OvertakenStore(lambda: world.now)
    old = await world.scaled_out()
    for _ in answers:
        await scale_until_it_crashes(world, old)
        azure.capacities["plan-1"] = 2  # the plan does not show it yet
        world.now += timedelta(seconds=30)

    async def decide() -> None:
        await replaced(world)

    store.before_commit = decide
    assert await world.scale(old) is EntryKind.IGNORED
    assert await counted(world) == azure.counted == len(azure.changes) == len(answers)
