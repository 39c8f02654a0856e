"""The scaler and the reconciler with the real ARM client: one decision leads to one change.

That holds under faults of Azure Resource Manager.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from local.azure_apis import arm_errors
from local.azure_apis.arm import ArmStandIn
from local.azure_apis.loopback_server import HANG, LOST_REPLY, Fault
from local.azure_apis.plans import P1V3, Plan
from local.twins.autoscaling import MemoryStateStore
from shared.autoscaling.deciding.decide import EntryKind
from shared.autoscaling.flows import scaling_logic
from shared.autoscaling.flows.reconciler import Reconciler
from shared.autoscaling.flows.scaler import Scaler
from shared.autoscaling.plans.app_service import AppServiceControl
from shared.autoscaling.state import ActionStatus, ScaleAction
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue
from tests.autoscaling.services.test_azure_adapters import ID, loaded
from tests.builders import TIMING, as_message, resource

RESOURCES = {"plan-1": resource()}
START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class Scene:
    """A resource with two instances, for which a decision asks for three, and a clock."""

    def __init__(self, arm: ArmStandIn, control: AppServiceControl) -> None:
        self.arm, self.control, self.now = arm, control, START
        self.store = MemoryStateStore(lambda: self.now)

    async def decide(self) -> ScaleAction:
        action = None
        for name, value in ((CAPACITY_METRIC, 2.0), *[("backlog", 500.0)] * 5):
            self.now += timedelta(seconds=15)
            sample = Metric("plan-1", name, MetricValue(self.now, value))
            action = await scaling_logic.process_samples(as_message(sample), RESOURCES, self.store)
        assert action is not None
        return action

    async def scale(self, action: ScaleAction) -> EntryKind:
        return await Scaler(RESOURCES, self.store, self.control, TIMING).execute(action)

    async def reconcile(self) -> list[ScaleAction]:
        self.now += timedelta(seconds=60)
        return await Reconciler(self.store, self.control, TIMING, 10).reconcile_all(
            RESOURCES.values()
        )

    @property
    def accepted(self) -> list[int | None]:
        return [put.capacity for put in self.arm.puts if put.accepted]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with ArmStandIn([Plan(ID, capacity=2, sku=P1V3)], retry_after_seconds=0) as arm:
        control = AppServiceControl(loaded(ArmEndpoint=arm.base_url, ArmTimeoutSeconds="1"))
        yield Scene(arm, control)
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
