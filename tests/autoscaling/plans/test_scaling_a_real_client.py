"""The scaler and the reconciler with the real ARM client: one decision leads to one change.

That holds under faults of Azure Resource Manager.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from logging import WARNING
from typing import Any

import pytest

from local.azure_apis import arm_errors
from local.azure_apis.arm import ArmStandIn
from local.azure_apis.loopback_server import HANG, LOST_REPLY, Fault, Reply
from local.azure_apis.plans import P1V3, Pieces, Plan
from local.twins.autoscaling import MemoryStateStore
from shared.autoscaling import Limits, ManualChange
from shared.autoscaling.acting.actions import action_of
from shared.autoscaling.deciding.decide import EntryKind
from shared.autoscaling.flows import scaling_logic
from shared.autoscaling.flows.reconciler import Reconciler
from shared.autoscaling.flows.scaler import Scaler
from shared.autoscaling.plans.app_service import AppServiceControl
from shared.autoscaling.policy import Resource
from shared.autoscaling.state import ActionStatus, Desired, ScaleAction
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue
from tests.autoscaling.services.test_azure_adapters import ID, loaded
from tests.builders import TIMING, as_message, desired, resource

RESOURCES = {"plan-1": resource()}
START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class Scene:
    """A resource with two instances, for which a decision asks for three, and a clock."""

    def __init__(
        self, arm: ArmStandIn, control: AppServiceControl, resources: dict[str, Resource]
    ) -> None:
        self.arm, self.control, self.now = arm, control, START
        self.store = MemoryStateStore(lambda: self.now)
        self.resources = resources

    async def order(self, target: int, **changes: Any) -> EntryKind | None:
        """Let a decision ask for ``target``, and carry it out."""
        order = desired(target=target, requested_at=self.now, sent_at=self.now, **changes)
        snapshot = await self.store.load("plan-1")
        await self.store.commit(snapshot, snapshot.state.with_desired(order))
        return await self.scale(action_of("plan-1", order))

    async def passes(self, seconds: float) -> list[EntryKind]:
        """Let the reconciler run each minute, and carry out what it sends. Returns the kinds of the
        new log entries, oldest first."""
        before = len(await self.store.log("plan-1", 1000))
        for _ in range(int(seconds / 60)):
            for action in await self.reconcile():
                await self.scale(action)
        log = await self.store.log("plan-1", 1000)
        return [line.kind for line in log[: len(log) - before]][::-1]

    async def desired(self) -> Desired:
        found = (await self.store.load("plan-1")).state.desired
        assert found is not None
        return found

    async def decide(self) -> ScaleAction:
        action = None
        for name, value in ((CAPACITY_METRIC, 2.0), *[("backlog", 500.0)] * 5):
            self.now += timedelta(seconds=15)
            sample = Metric("plan-1", name, MetricValue(self.now, value))
            action = await scaling_logic.process_samples(
                as_message(sample), self.resources, self.store
            )
        assert action is not None
        return action

    async def message(self) -> EntryKind:
        """Handle a message 15 s later. Returns the kind of the newest log entry about an action, or
        of the decision if there is none."""
        self.now += timedelta(seconds=15)
        sample = Metric("plan-1", "backlog", MetricValue(self.now, 500.0))
        due = list[Resource]()
        await scaling_logic.process_samples(as_message(sample), self.resources, self.store, due=due)
        await Reconciler(self.store, self.control, TIMING, 10).reconcile_all(due)
        written = [line.kind for line in await self.store.log("plan-1", since=self.now)]
        return next((kind for kind in written if kind is not EntryKind.DECISION), written[0])

    async def scale(self, action: ScaleAction) -> EntryKind | None:
        return await Scaler(self.resources, self.store, self.control, TIMING).execute(action)

    async def reconcile(self) -> list[ScaleAction]:
        self.now += timedelta(seconds=60)
        return await Reconciler(self.store, self.control, TIMING, 10).reconcile_all(
            self.resources.values()
        )

    @property
    def accepted(self) -> list[int | None]:
        return [put.capacity for put in self.arm.puts if put.accepted]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with ArmStandIn([Plan(ID, capacity=2, sku=P1V3)], retry_after_seconds=0) as arm:
        control = AppServiceControl(loaded(ArmEndpoint=arm.base_url, ArmTimeoutSeconds="1"))
        yield Scene(arm, control, RESOURCES)
        await control.close()


@pytest.mark.parametrize(
    "fault",
    [
        arm_errors.ANOTHER_OPERATION,
        arm_errors.NO_INSTANCES,
        arm_errors.throttled(30),
        arm_errors.SERVER_ERROR,
        HANG,
        LOST_REPLY,
    ],
)
async def test_a_transient_fault_is_retried_and_the_plan_scales_once(
    scene: Scene, fault: Fault
) -> None:
    action = await scene.decide()
    scene.arm.fail_next(fault)
    assert await scene.scale(action) is EntryKind.DEFERRED
    for again in await scene.reconcile():
        assert again == action
        assert await scene.scale(again) is EntryKind.CONFIRMED
    assert scene.accepted == [3]
    desired = (await scene.store.load("plan-1")).state.desired
    assert desired is not None
    assert desired.status is ActionStatus.CONFIRMED


@pytest.mark.parametrize("fault", [arm_errors.FORBIDDEN, arm_errors.NOT_FOUND])
async def test_a_permanent_fault_is_reported_and_frees_the_resource(
    scene: Scene, fault: Fault
) -> None:
    action = await scene.decide()
    scene.arm.fail_next(fault)
    assert await scene.scale(action) is EntryKind.FAILED
    assert await scene.reconcile() == []
    line = (await scene.store.log("plan-1"))[0]
    assert "plan-1: 40" in line.reason
    assert scene.accepted == []


async def test_a_redelivered_action_changes_nothing(scene: Scene) -> None:
    action = await scene.decide()
    assert await scene.scale(action) is EntryKind.CONFIRMED
    assert await scene.scale(action) is EntryKind.IGNORED
    assert scene.accepted == [3]


async def test_an_order_is_one_read_and_one_change_and_is_confirmed_by_the_next_message(
    scene: Scene,
) -> None:
    scene.arm.clock, scene.arm.operation_seconds = lambda: scene.now, 20
    action = await scene.decide()
    assert await scene.scale(action) is None
    assert [request.method for request in scene.arm.requests] == ["GET", "PUT"]
    waiting = await scene.desired()
    assert (waiting.pending, waiting.last_error, waiting.attempts) == (True, "", 0)
    assert (await scene.store.log("plan-1"))[0].kind is EntryKind.DECISION, "no outcome is known"
    kinds = [await scene.message() for _ in range(2)]
    assert kinds == [EntryKind.DECISION, EntryKind.CONFIRMED]
    assert scene.accepted == [3]


FAILED = {"provisioningState": "Failed", "error": {"code": "NoCapacity", "message": "no workers"}}


async def test_a_change_that_fails_later_is_recognized_by_a_reading_and_tried_again(
    scene: Scene,
) -> None:
    scene.arm.clock, scene.arm.operation_seconds = lambda: scene.now, 3600
    action = await scene.decide()
    failed = {**scene.arm.plan(ID).to_json(), "properties": FAILED}
    scene.arm.fail_next(Fault(Reply(200, json.dumps(failed))))
    assert await scene.message() is EntryKind.DECISION, "nothing was asked for yet"
    scene.arm.stop_failing()
    await scene.scale(action)
    scene.arm.set_capacity_by_hand(ID, 2)  # which ends the operation
    scene.arm.fail_next(Fault(Reply(200, json.dumps(failed))), times=2)
    kinds = [await scene.message(), await scene.message()]
    assert kinds == [EntryKind.DEFERRED, EntryKind.RESENT]
    (resent, deferred) = [line for line in await scene.store.log("plan-1") if line.kind in kinds]
    for line in (resent, deferred):
        assert "did not complete: provisioningState Failed: NoCapacity: no workers" in line.reason
    scene.arm.operation_seconds = 0
    assert await scene.scale(action) is EntryKind.CONFIRMED
    assert scene.accepted == [3, 3]


# --- capacity in pieces, and too few instances ---

PROGRESS, CONFIRMED, DEFERRED = EntryKind.PROGRESS, EntryKind.CONFIRMED, EntryKind.DEFERRED
RESENT, MANUAL_CHANGE = EntryKind.RESENT, EntryKind.MANUAL_CHANGE
ASYNC: dict[str, Any] = {"asyncScalingEnabled": True}


@asynccontextmanager
async def large(
    capacity: int = 3,
    pieces: Pieces | None = None,
    properties: dict[str, Any] | None = None,
    **changes: Any,
) -> AsyncIterator[Scene]:
    """A plan of at most 20 instances that fills in pieces, and whose clock is that of the scene.

    No client waits for an operation, which lasts longer than a request may.
    """
    found = Plan(ID, capacity, P1V3, properties=ASYNC if properties is None else properties)
    async with ArmStandIn([found], retry_after_seconds=0) as arm:
        arm.pieces = pieces or Pieces(3, 60)
        control = AppServiceControl(loaded(ArmEndpoint=arm.base_url, ArmTimeoutSeconds="1"))
        scene = Scene(arm, control, {"plan-1": resource(limits=Limits(1, 20), **changes)})
        arm.clock = lambda: scene.now
        try:
            yield scene
        finally:
            await control.close()


@pytest.mark.parametrize(
    ("start", "target", "forms", "on_manual_change"),
    [
        (3, 15, {}, ManualChange.ADOPT),
        (3, 15, {}, ManualChange.ENFORCE),
        (15, 3, {}, ManualChange.ADOPT),
        (15, 3, {}, ManualChange.ENFORCE),
        (3, 15, {"shows_ordered": True}, ManualChange.ADOPT),
        (15, 3, {"shows_ordered": True}, ManualChange.ADOPT),
        (3, 15, {"keeps_target": True}, ManualChange.ADOPT),
    ],
)
async def test_a_plan_that_fills_in_pieces_is_followed_until_it_is_full(
    start: int, target: int, forms: dict[str, bool], on_manual_change: ManualChange
) -> None:
    pieces = Pieces(3, 60, **forms)
    async with large(start, pieces, on_manual_change=on_manual_change) as scene:
        assert await scene.order(target, previous=start) is None
        assert await scene.passes(300) == [PROGRESS, PROGRESS, PROGRESS, CONFIRMED]
        last = await scene.desired()
        assert (last.target, last.epoch, last.changed_out) == (target, 7, target > start)
        assert scene.accepted == [target]


@pytest.mark.parametrize("keeps_target", [False, True])
@pytest.mark.parametrize("target", [5, 9, 12])
async def test_a_scale_in_cancels_the_operation_that_fills_the_plan(
    target: int, keeps_target: bool
) -> None:
    """Nine instances are there when a decision wants fewer than the fifteen that are ordered."""
    async with large(pieces=Pieces(3, 60, keeps_target=keeps_target)) as scene:
        await scene.order(15, previous=3)
        await scene.passes(120)
        assert (await scene.desired()).reached == 9
        await scene.order(target, epoch=8, previous=9, superseded=(15,))
        assert MANUAL_CHANGE not in await scene.passes(900)
        last = await scene.desired()
        assert (last.target, last.status) == (target, ActionStatus.CONFIRMED)
        assert scene.arm.plan(ID).capacity == target


@pytest.mark.parametrize(
    ("properties", "sent"),
    [
        ({**ASYNC, "targetWorkerCount": 15}, 5),
        ({**ASYNC, "targetWorkerCount": 0}, 5),
        ({"targetWorkerCount": 15}, 5),
        ({}, 0),  # the plan does not fill in pieces, so nothing is cancelled
    ],
)
async def test_a_change_never_repeats_the_target_of_an_earlier_one(
    properties: dict[str, Any], sent: int
) -> None:
    async with large(9, Pieces(9, 1), properties=properties) as scene:
        await scene.order(5, previous=9)
        await scene.passes(60)
        assert scene.arm.plan(ID).capacity == 5
        (put,) = [json.loads(each.body) for each in scene.arm.requests if each.method == "PUT"]
        assert (put["sku"]["capacity"], put["properties"]["targetWorkerCount"]) == (5, sent)
        assert "numberOfWorkers" not in put["properties"]


@pytest.mark.parametrize(
    ("by_hand", "kinds", "status"),
    [
        (2, [MANUAL_CHANGE], ActionStatus.CONFIRMED),
        (3, [MANUAL_CHANGE], ActionStatus.CONFIRMED),
        (7, [MANUAL_CHANGE], ActionStatus.CONFIRMED),
        (16, [MANUAL_CHANGE], ActionStatus.CONFIRMED),
        (12, [PROGRESS], ActionStatus.PENDING),
    ],
)
async def test_a_manual_change_while_a_plan_fills_is_adopted_unless_it_counts_as_progress(
    by_hand: int, kinds: list[EntryKind], status: ActionStatus
) -> None:
    async with large() as scene:
        await scene.order(15, previous=3)
        assert await scene.passes(120) == [PROGRESS, PROGRESS]
        scene.arm.set_capacity_by_hand(ID, by_hand)
        assert await scene.passes(60) == kinds
        assert (await scene.desired()).status is status


@pytest.mark.parametrize("ends_short", [False, True])
async def test_a_plan_that_stands_still_is_confirmed_in_part_and_may_still_fill(
    ends_short: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with large(pieces=Pieces(3, 60, most=2, ends_short=ends_short)) as scene:
        await scene.order(15, previous=3)
        kinds = await scene.passes(1020) if not ends_short else await scene.passes(120)
        assert MANUAL_CHANGE not in kinds
        assert kinds.count(PROGRESS) == 2
        if ends_short:  # the next attempt orders the rest
            assert MANUAL_CHANGE not in await scene.passes(900)
            assert scene.arm.plan(ID).capacity == 15
            return
        last = await scene.desired()
        assert (last.target, last.given_up, last.status) == (9, 15, ActionStatus.CONFIRMED)
        warned = [line.message for line in caplog.records if line.levelno == WARNING]
        assert any("[reconciled_resent] plan-1: epoch 7 is not confirmed" in w for w in warned)
        assert any("[reconciled_confirmed] plan-1: epoch 7 reached 9 of 15" in w for w in warned)
        assert not any("progress" in w for w in warned)
        assert EntryKind.FAILED not in kinds
        for by_hand, kind in ((12, CONFIRMED), (15, CONFIRMED), (9, MANUAL_CHANGE)):
            scene.arm.set_capacity_by_hand(ID, by_hand)
            assert await scene.passes(60) == [kind]
            assert (await scene.desired()).target == by_hand


async def test_the_instances_that_are_free_are_taken_and_the_rest_is_asked_for_later() -> None:
    async with large(properties={}) as scene:
        scene.arm.free = 4
        assert await scene.order(15, previous=3) is PROGRESS
        last, line = await scene.desired(), (await scene.store.log("plan-1"))[0]
        assert (last.target, last.epoch, last.reached, last.pending) == (15, 7, 7, True)
        assert "reads 7 after the change to 7 of 15, because no more instances" in line.reason
        assert "Currently 4 instances are available" in line.reason
        scene.arm.free = 0
        assert MANUAL_CHANGE not in await scene.passes(420)
        refused = [put.time for put in scene.arm.puts if not put.accepted]
        waits = [(later - earlier).total_seconds() for earlier, later in pairwise(refused)]
        assert waits == [60, 60, 60, 120], "a wait of 15, 30, 60 and 120 s, and the next minute"
        assert scene.accepted == [7]
        scene.arm.free = 5
        assert PROGRESS in await scene.passes(240)
        assert scene.accepted == [7, 12]
        scene.arm.free = None
        assert (await scene.passes(300))[-1] is CONFIRMED
        assert scene.accepted == [7, 12, 15]
        last = await scene.desired()
        assert (last.epoch, len(last.changes)) == (7, 3), "Azure counts each step"


async def test_without_a_free_instance_the_action_is_deferred() -> None:
    async with large(properties={}) as scene:
        scene.arm.free = 0
        assert await scene.order(15, previous=3) is DEFERRED
        assert scene.accepted == []
        assert (await scene.desired()).reached is None


async def test_too_few_instances_never_lead_beyond_the_limits() -> None:
    async with large(properties={}) as scene:
        scene.resources["plan-1"] = resource(limits=Limits(8, 20))
        scene.arm.free = 4
        assert await scene.order(15, previous=3) is DEFERRED
        assert scene.accepted == []
