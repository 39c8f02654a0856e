"""Random calls on CapacityControl, in memory and with a stand-in of Azure Resource Manager."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from local.azure_apis import arm_errors
from local.azure_apis.arm import ArmStandIn
from local.azure_apis.loopback_server import Fault as HttpFault
from local.azure_apis.plans import P1V3, Plan, PlanId
from local.twins.autoscaling import MemoryCapacityControl
from shared import settings
from shared.autoscaling.declaring import AppServicePlan
from shared.autoscaling.errors import CapacityDelayed, CapacityRefused
from shared.autoscaling.plans.app_service import AppServiceControl
from tests.autoscaling.services.test_azure_adapters import ID
from tests.builders import plan, set_capacity
from tests.storage.faulty_network import FAULTS, NO_FAULT, TIMEOUT, Fault, Network
from tests.storage.stateful import Answer, SideBySide, run_machine

PLANS = ("plan-1", "plan-2")
NAMES = st.sampled_from((*PLANS, *PLANS, "plan", "plan-1 2"))
CAPACITIES = st.sampled_from((1, 2, 5, 30, 31, 0, -1, 10**6))
CAPACITY_MAX = 30
PUT = frozenset({"PUT"})


def plan_id(name: str) -> PlanId:
    return replace(ID, name=name)


def on_put(fault: HttpFault) -> HttpFault:
    return HttpFault(fault.reply, methods=PUT)


REFUSALS = st.sampled_from(
    (
        (on_put(arm_errors.FORBIDDEN), CapacityRefused, False),
        (arm_errors.ANOTHER_OPERATION, CapacityDelayed, False),
        (arm_errors.NO_INSTANCES, CapacityDelayed, False),
        (on_put(arm_errors.throttled(17)), CapacityDelayed, False),
        (on_put(arm_errors.SERVER_ERROR), CapacityDelayed, True),
    )
)
"""Faults of the service: its response, the expected error, and whether the change may have been
made."""


class CapacityMachine(SideBySide):
    errors = (CapacityDelayed, CapacityRefused)

    def __init__(
        self, runner: asyncio.Runner, network: Network, arm: ArmStandIn, real: AppServiceControl
    ) -> None:
        super().__init__(runner, network)
        self.memory = MemoryCapacityControl(
            lambda: network.now, dict.fromkeys(PLANS, 2), CAPACITY_MAX
        )
        self.arm, self.real = arm, real

    @initialize()
    def plans_have_two_instances(self) -> None:
        self.arm.operation_seconds = 0.0
        for name in PLANS:
            self.arm.set_capacity_by_hand(plan_id(name), 2)

    @rule(name=NAMES)
    def read(self, name: str) -> None:
        target = plan(name)
        self.both(
            lambda: self.memory.read(target),
            lambda: self.real.read(target),
            shown=lambda reading: (reading.time, reading.value),
        )

    @rule(name=NAMES, capacity=CAPACITIES, fault=FAULTS, seconds=st.sampled_from((0, 0, 3)))
    def change(self, name: str, capacity: int, fault: Fault, seconds: float) -> None:
        """The client does not wait for an operation of three seconds."""
        target = plan(name)
        self.arm.operation_seconds = seconds
        if fault is NO_FAULT:
            self.both(
                lambda: set_capacity(self.memory, target, capacity),
                lambda: set_capacity(self.real, target, capacity),
                shown=lambda reached: reached == capacity or reached is None,
            )
            self.later(seconds)
            return
        self.network.arm(fault)
        found = self.failing(target, capacity)
        struck = self.network.disarm()
        if struck:
            assert (found.error, found.value) == (CapacityDelayed, True), found
        if fault is not TIMEOUT or not struck:
            expected = self.run(
                lambda: self._answer(lambda: set_capacity(self.memory, target, capacity))
            )
            assert struck or found.error is expected.error is CapacityRefused, (found, expected)
        self.later(seconds)

    @rule(name=st.sampled_from(PLANS), capacity=st.integers(1, 30), refusal=REFUSALS)
    def change_refused(
        self, name: str, capacity: int, refusal: tuple[HttpFault, type[Exception], bool]
    ) -> None:
        fault, error, maybe_done = refusal
        self.arm.fail_next(fault)
        found = self.failing(plan(name), capacity)
        self.arm.stop_failing()
        assert (found.error, found.value) == (error, maybe_done)

    @rule(name=st.sampled_from(PLANS), capacity=st.integers(1, 30), then=st.integers(1, 30))
    def another_operation_is_running(self, name: str, capacity: int, then: int) -> None:
        """A change is refused while another operation runs. Then that operation completes."""
        self.arm.operation_seconds = 3600
        other = AppServiceControl(self.real._settings)
        self.run(lambda: self._answer(lambda: set_capacity(other, plan(name), capacity)))
        self.run(other.close)
        found = self.failing(plan(name), then)
        assert (found.error, found.value) == (CapacityDelayed, False)
        self.later(3600)
        self.memory.capacities[name] = capacity

    @rule(name=st.sampled_from(PLANS), capacity=st.integers(1, 30))
    def an_operator_changes_it_in_the_portal(self, name: str, capacity: int) -> None:
        self.arm.set_capacity_by_hand(plan_id(name), capacity)
        self.memory.capacities[name] = capacity

    def failing(self, target: AppServicePlan, capacity: int) -> Answer:
        """The error, and its ``maybe_done``: whether the change may have been made."""

        try:
            self.run(lambda: set_capacity(self.real, target, capacity))
        except (CapacityDelayed, CapacityRefused) as error:
            return Answer(getattr(error, "maybe_done", False), type(error))
        return Answer()

    @invariant()
    def both_have_the_same_capacities(self) -> None:
        for name in PLANS:
            assert self.arm.plan(plan_id(name)).capacity == self.memory.capacities[name]


def test_capacity_control_behaves_like_the_in_memory_adapter_under_faults() -> None:
    network = Network()
    with asyncio.Runner() as runner, network.installed():
        arm = ArmStandIn(
            [Plan(plan_id(name), capacity=2, sku=P1V3) for name in PLANS],
            clock=lambda: network.now,
            retry_after_seconds=0,
        )
        runner.run(arm.__aenter__())
        loaded = settings.load({"ArmEndpoint": arm.base_url})
        real = AppServiceControl(loaded)
        network.per_request = timedelta(seconds=1)
        try:
            run_machine(lambda: CapacityMachine(runner, network, arm, real), examples=10, steps=20)
        finally:
            runner.run(real.close())
            runner.run(arm.__aexit__())
