"""Many plans of one subscription: the real client against a stand-in that limits as Azure does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from local.azure_apis import arm_errors
from local.azure_apis.arm import ArmStandIn, RoleScope
from local.azure_apis.loopback_server import HANG, Fault
from local.azure_apis.plans import P1V3, Plan, PlanId
from local.twins.autoscaling import MemoryReader, MemoryStateStore
from shared.autoscaling.declaring import AppServicePlan
from shared.autoscaling.errors import CapacityPostponed, CapacityRefused
from shared.autoscaling.flows.check_connections import check_all
from shared.autoscaling.flows.metric_collector import Collection, collect
from shared.autoscaling.flows.reading import PlanReadings
from shared.autoscaling.plan_facts import PlanReading
from shared.autoscaling.plans.app_service import AppServiceControl
from shared.autoscaling.plans.lists import PlanLists
from shared.autoscaling.plans.permissions import ArmPermissions
from shared.azure.budget import ArmBudget
from shared.values.urgency import urgent
from tests.autoscaling.services.test_azure_adapters import loaded
from tests.azure.test_budget import Clock
from tests.builders import resource

SUBSCRIPTION = "00000000-0000-0000-0000-000000000001"
START = datetime(2026, 11, 26, tzinfo=UTC)


def declared(number: int, group: str = "fleet") -> AppServicePlan:
    return AppServicePlan(SUBSCRIPTION, group, f"plan-{number:04d}")


class Fleet:
    """Plans in the stand-in, and the app. Waits for the budget move the clock of both."""

    def __init__(self, arm: ArmStandIn, budget: Clock) -> None:
        self.arm, self.clock, self.timer = arm, budget, 0.0
        arm.clock = self.now
        self.control = AppServiceControl(
            loaded(ArmEndpoint=arm.base_url), ArmBudget(budget, budget.sleep)
        )
        self.lists = self.control._lists = PlanLists(self.control._pages, budget)
        self.reader, self.readings = MemoryReader(self.now, {}, self.control), PlanReadings()

    def now(self) -> datetime:
        return START + timedelta(seconds=self.clock.now)

    def holds(self, count: int, groups: int = 1) -> list[AppServicePlan]:
        plans = [declared(n, f"fleet-{n % groups}") for n in range(count)]
        ids = [PlanId(each.subscription_id, each.resource_group, each.name) for each in plans]
        self.arm._plans = {each.key: Plan(each, capacity=2, sku=P1V3) for each in ids}
        return plans

    async def collect(self, plans: list[AppServicePlan]) -> Collection:
        """One run of the collector, each 15 s."""
        self.clock.now, self.timer = max(self.clock.now, self.timer), self.timer + 15
        resources = [resource(each.name, target=each, metrics={}) for each in plans]
        return await collect(resources, self.reader, 10, readings=self.readings)

    async def read(self, *plans: AppServicePlan) -> list[str]:
        """Reads of the plans at the same time. Returns what was asked of the plans, in short."""
        before = len(self.arm.requests)
        self.found = await asyncio.gather(*map(self.control.describe, plans))
        asked = [each.path.rpartition("/")[2] for each in list(self.arm.requests)[before:]]
        return sorted(each for each in asked if each != "autoscalesettings")

    @property
    def refused(self) -> int:
        return sum(count for (_, status), count in self.arm.answered.items() if status == 429)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with ArmStandIn([], retry_after_seconds=0) as arm:
        found = Fleet(arm, Clock())
        yield found
        await found.control.close()


async def test_plans_that_are_due_at_once_are_all_read_within_two_runs(fleet: Fleet) -> None:
    fleet.arm.role_scope = RoleScope.PLAN
    plans, read = fleet.holds(350), set[str]()
    for run in (1, 2):
        collection = await fleet.collect(plans)
        read |= {each.resource_name for each in collection.metrics}
        assert collection.failures == ()
        assert (len(read) == 350) is (run == 2)
    assert fleet.refused == 0


@pytest.mark.parametrize(
    ("scope", "reads_max"), [(RoleScope.PLAN, 20), (RoleScope.SUBSCRIPTION, 2)]
)
async def test_a_thousand_plans_in_quiet_stay_below_the_limit_and_none_is_starved(
    fleet: Fleet, scope: RoleScope, reads_max: float
) -> None:
    fleet.arm.role_scope = scope
    plans, last, ages = fleet.holds(1000, groups=12), dict[str, float](), list[float]()
    for run in range(10):
        if run == 4:
            began, before = fleet.timer, fleet.arm.answered.total()
        for each in (await fleet.collect(plans)).metrics:
            ages.append(fleet.timer - last.get(each.resource_name, fleet.timer))
            last[each.resource_name] = fleet.timer
    rate = (fleet.arm.answered.total() - before) / (fleet.timer - began)
    assert rate <= reads_max
    assert max(ages) <= 75
    assert (len(last), fleet.refused) == (1000, 0)


async def test_orders_pass_while_routine_reads_wait(fleet: Fleet) -> None:
    fleet.arm.role_scope = RoleScope.PLAN
    plans = fleet.holds(400)
    routine = asyncio.create_task(fleet.collect(plans))
    while not fleet.clock.now:  # noqa: ASYNC110  the clock has no event
        await asyncio.sleep(0.001)

    async def order(plan: AppServicePlan) -> None:
        await fleet.control.change(plan, 3, await fleet.control.read(plan))

    with urgent():
        await asyncio.gather(*map(order, plans[-5:]))
    assert not routine.done()
    assert [put.status for put in fleet.arm.puts] == [200] * 5
    await routine


async def test_an_order_that_the_subscription_refuses_is_sent_again_with_the_same_body(
    fleet: Fleet,
) -> None:
    (plan,) = fleet.holds(1)
    with urgent():
        fleet.arm.fail_next(arm_errors.throttled(20))
        read = await fleet.control.read(plan)
        fleet.arm.fail_next(arm_errors.throttled(20))
        await fleet.control.change(plan, 3, read)
    assert fleet.clock.now >= 40
    assert fleet.refused == 2
    assert (await fleet.control.read(plan)).value == 3


async def test_an_order_that_cannot_be_sent_in_time_says_how_long_to_wait(fleet: Fleet) -> None:
    (plan,) = fleet.holds(1)
    fleet.arm.fail_next(arm_errors.throttled(120))
    with urgent():
        for _ in range(2):
            with pytest.raises(CapacityPostponed) as postponed:
                await fleet.control.read(plan)
            assert postponed.value.retry_after_seconds == 120
            assert not postponed.value.maybe_done
    assert (fleet.clock.now, fleet.refused) == (0, 1)


async def test_a_refusal_delays_all_plans_and_is_no_failure(fleet: Fleet) -> None:
    fleet.arm.role_scope = RoleScope.PLAN
    plans = fleet.holds(3)
    fleet.arm.fail_next(arm_errors.throttled(10))
    first = await fleet.collect(plans)
    asked = fleet.arm.answered.total()
    assert (await fleet.collect(plans)).failures == first.failures == ()
    assert fleet.clock.now >= 15
    names = {each.resource_name for each in first.metrics}
    assert len(names) < 3
    third = await fleet.collect(plans)
    assert fleet.arm.answered.total() > asked
    assert not names & {each.resource_name for each in third.metrics}


async def test_plans_of_one_group_are_read_with_one_list_in_any_case_of_their_names(
    fleet: Fleet,
) -> None:
    plans = fleet.holds(3)
    other = replace(plans[1], name=plans[1].name.upper(), resource_group="FLEET-0")
    assert await fleet.read(plans[0], other) == ["serverfarms"]
    listed, (single,) = fleet.found, [await fleet.control.describe(plans[0])]
    assert isinstance(listed[0], PlanReading)
    assert listed[0].facts == single.facts != PlanReading(START, 2).facts
    assert await fleet.read(plans[0]) == ["plan-0000"], "a list saves nothing"


async def test_a_plan_that_the_list_leaves_out_or_describes_in_part_is_read_singly(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = fleet.holds(4)
    fleet.arm.left_out_of_lists = {PlanId(SUBSCRIPTION, "fleet-0", plans[0].name)}

    shown = fleet.arm._shown

    def in_part(plan: PlanId) -> dict[str, object]:
        found = shown(plan)
        if plan.name == plans[1].name:
            del found["properties"]["zoneRedundant"]
        return found

    monkeypatch.setattr(fleet.arm, "_shown", in_part)
    assert await fleet.read(*plans) == ["plan-0000", "plan-0001", "serverfarms"]
    fleet.arm._plans.clear()
    with pytest.raises(CapacityRefused, match="a plan of exactly this name"):
        await fleet.read(*plans)


@pytest.mark.parametrize(
    ("scope", "fault", "again_seconds"),
    [
        (RoleScope.PLAN, None, 3600),
        (RoleScope.SUBSCRIPTION, arm_errors.SERVER_ERROR, 300),
    ],
)
async def test_plans_are_read_singly_while_the_list_is_denied_or_fails(
    fleet: Fleet, scope: RoleScope, fault: Fault | None, again_seconds: float
) -> None:
    plans, fleet.arm.role_scope = fleet.holds(2), scope
    if fault is not None:
        fleet.arm.fail_next(fault)
    singly = [each.name for each in plans]
    assert await fleet.read(*plans) == [*singly, "serverfarms"]
    fleet.clock.now = again_seconds - 1
    fleet.arm.role_scope = RoleScope.RESOURCE_GROUP
    assert await fleet.read(*plans) == singly
    fleet.clock.now = again_seconds + 1
    assert await fleet.read(*plans) == ["serverfarms"]


async def test_plans_whose_list_alone_is_throttled_are_read_singly_in_that_run(
    fleet: Fleet,
) -> None:
    plans = fleet.holds(2)
    code = "ResourceRequestsThrottled"
    fleet.arm.fail_next(Fault(arm_errors.front_door_error(429, code, "too many")))
    assert await fleet.read(*plans) == ["plan-0000", "plan-0001", "serverfarms"]
    assert await fleet.read(*plans) == ["serverfarms"]


async def test_a_list_that_hangs_delays_no_reading_beyond_its_time_limit(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.autoscaling.plans.lists.PAGES_SECONDS_MAX", 0.05)
    plans = fleet.holds(2)
    fleet.arm.fail_next(HANG)
    assert await fleet.read(*plans) == ["plan-0000", "plan-0001", "serverfarms"]


async def test_a_long_list_is_not_read_for_few_plans(fleet: Fleet) -> None:
    plans = fleet.holds(500)
    first = await fleet.read(plans[0], plans[499])
    assert first == ["plan-0499", "serverfarms", "serverfarms"]
    assert await fleet.read(plans[0], plans[499]) == ["plan-0000", "plan-0499"]
    assert await fleet.read(*plans) == ["serverfarms"] * 5


@pytest.mark.parametrize(
    ("count", "scope", "told"),
    [
        (9, RoleScope.PLAN, None),
        (12, RoleScope.PLAN, "the role Reader on 2 resource group(s) (fleet-0, fleet-1), or any "
         "other with Microsoft.Web/serverfarms/read, would replace 12 requests a minute by 2"),
        (12, RoleScope.RESOURCE_GROUP, "2 resource group(s) have several plans, which are read "
         "with one list"),
    ],
)  # fmt: skip
async def test_the_check_says_which_role_would_save_requests(
    fleet: Fleet, count: int, scope: RoleScope, told: str | None
) -> None:
    plans, fleet.arm.role_scope = fleet.holds(count, groups=2), scope
    permissions = ArmPermissions(fleet.arm.base_url)
    resources = [resource(each.name, target=each, metrics={}) for each in plans]
    checks = await check_all(resources, fleet.reader, permissions, MemoryStateStore(fleet.now), 5)
    await permissions.close()
    assert all(each["ok"] for each in checks)
    assert [each["told"] for each in checks if each["what"] == "lists"] == ([told] if told else [])


async def test_the_checks_of_many_plans_do_not_give_up_because_of_each_other(fleet: Fleet) -> None:
    fleet.arm.role_scope = RoleScope.PLAN
    plans = fleet.holds(400)
    permissions = ArmPermissions(fleet.arm.base_url, fleet.control._budget)
    resources = [resource(each.name, target=each, metrics={}) for each in plans]
    checks = await check_all(resources, fleet.reader, permissions, MemoryStateStore(fleet.now), 20)
    await permissions.close()
    assert [each for each in checks if not each["ok"]] == []
