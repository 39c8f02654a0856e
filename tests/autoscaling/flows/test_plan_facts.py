"""What Azure says about a plan: from the reading to the decision, the page and the checks."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from local.azure_apis import arm_errors
from local.azure_apis.arm import ArmStandIn
from local.azure_apis.loopback_server import HANG, Fault, Reply
from local.azure_apis.pages import PAGE_MAX
from local.azure_apis.plans import EP1, F1, FC1, I1V2, P1V3, S1, Plan, Sku
from local.twins.autoscaling import MemoryReader, MemoryStateStore
from shared.autoscaling import Cooldown, Guards, Limits, QueueMetric, Recommendation, Resource
from shared.autoscaling.deciding.decide import EntryKind, decide
from shared.autoscaling.declaring import ManualChange
from shared.autoscaling.errors import CapacityDelayed, CapacityRefused
from shared.autoscaling.flows import check_connections, preview, scaling_logic, status
from shared.autoscaling.flows.common import declared_samples
from shared.autoscaling.flows.metric_collector import Collection, collect
from shared.autoscaling.flows.reconciler import Reconciler
from shared.autoscaling.flows.scaler import Scaler
from shared.autoscaling.messages import decode_samples
from shared.autoscaling.plan_facts import PlanFacts, of_fields
from shared.autoscaling.plans.app_service import AppServiceControl
from shared.autoscaling.plans.permissions import ArmPermissions
from shared.autoscaling.policy import Observation
from shared.autoscaling.state import ScaleAction
from tests.autoscaling.services.test_azure_adapters import ID, loaded
from tests.builders import (
    NOW,
    SOURCE,
    TIMING,
    as_message,
    confirmed,
    metric,
    resource,
    sample,
    set_capacity,
    state,
)

ENVIRONMENT = "/subscriptions/1/resourceGroups/g/providers/Microsoft.Web/hostingEnvironments/ase"
JOIN = "Microsoft.Web/hostingEnvironments/join/action"
FULL = 9_999.0


class Wants:
    """A policy that recommends the capacity that it is told, whatever it sees."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    def __call__(self, _seen: Observation) -> Recommendation:
        return Recommendation(self.capacity, "wanted", "wants")


class World:
    """A plan in the stand-in for ARM, and the app with a real client, one collection a minute."""

    def __init__(self, arm: ArmStandIn, control: AppServiceControl) -> None:
        self.arm, self.control, self.now = arm, control, datetime.now(UTC)
        self.store = MemoryStateStore(lambda: self.now)
        self.reader = MemoryReader(lambda: self.now, {SOURCE: FULL}, control)
        arm.clock = lambda: self.now

    async def restart(self) -> None:
        await self.control.close()
        self.control = AppServiceControl(
            loaded(ArmEndpoint=self.arm.base_url, ArmTimeoutSeconds="2")
        )
        self.reader = MemoryReader(lambda: self.now, {SOURCE: FULL}, self.control)

    async def tick(self, declared: Resource) -> ScaleAction | None:
        self.now += timedelta(seconds=60)
        resources, action = {declared.name: declared}, None
        for text in (await collect([declared], self.reader, 5)).messages():
            sent = await scaling_logic.process_samples(decode_samples(text), resources, self.store)
            action = sent or action
        return action

    async def minute(self, declared: Resource) -> EntryKind | None:
        """A collection with all that follows from it."""
        action = await self.tick(declared)
        resent = await Reconciler(self.store, self.control, TIMING, 5).reconcile_all([declared])
        kind = None
        for each in [*([action] if action else []), *resent]:
            scaler = Scaler({declared.name: declared}, self.store, self.control, TIMING)
            kind = await scaler.execute(each)
        return kind

    async def shown(self, declared: Resource) -> Any:
        return await status.read_one(declared, self.store, 30)

    async def checked(self, declared: Resource) -> tuple[bool, str]:
        permissions = ArmPermissions(self.arm.base_url)
        checks = await check_connections.check_all(
            [declared], self.reader, permissions, self.store, 5
        )
        await permissions.close()
        (found,) = [each for each in checks if each["what"] == "plan plan-1"]
        return found["ok"], found["told"]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with ArmStandIn([Plan(ID, capacity=2, sku=S1)], retry_after_seconds=0) as arm:
        control = AppServiceControl(loaded(ArmEndpoint=arm.base_url, ArmTimeoutSeconds="2"))
        found = World(arm, control)
        yield found
        await found.control.close()


def of(world: World, sku: Sku = S1, capacity: int = 2, **properties: Any) -> None:
    """The plan becomes another one."""
    world.arm._plans[ID.key] = Plan(ID, capacity=capacity, sku=sku, properties=properties)


def wanting(capacity: int, **changes: Any) -> Resource:
    fields = {"limits": Limits(1, 40), "cooldown": Cooldown(0, 0), **changes}
    return resource(policy=Wants(capacity), **fields)


async def test_the_first_order_goes_no_further_than_the_plan_can(world: World) -> None:
    declared = wanting(40)
    made = await preview.make_preview(declared, world.store, world.reader, 5)
    assert made["desired"] == 10
    action = await world.tick(declared)
    assert action is not None
    assert action.target == 10
    assert "at most 10 instances in tier Standard" in action.reason
    assert "the declared maximum of 40" in action.reason
    shown = await world.shown(declared)
    assert shown["limits"] == {"minimum": 1, "maximum": 10}
    assert "at most 10 instances" in shown["conditions"][0]["what"]
    assert world.arm.puts == ()


async def test_a_zone_redundant_plan_is_never_asked_for_one_instance(world: World) -> None:
    of(world, P1V3, 3, zoneRedundant=True)
    declared = wanting(1)
    assert await world.minute(declared) is EntryKind.CONFIRMED
    for _ in range(3):
        assert await world.minute(declared) is None
    assert [(put.capacity, put.status) for put in world.arm.puts] == [(2, 200)]
    newest = (await world.store.log("plan-1"))[0]
    assert "no fewer than 2 instances because it is zone-redundant" in newest.reason


@pytest.mark.parametrize(
    ("sku", "properties", "told"),
    [
        (EP1, {}, "Azure itself scales this plan"),
        (P1V3, {"elasticScaleEnabled": True}, "Azure itself scales this plan"),
        (F1, {}, "a plan of tier Free cannot be scaled"),
    ],
)
async def test_a_plan_that_the_app_must_not_scale_is_held_and_told_before_any_order(
    world: World, sku: Sku, properties: dict[str, Any], told: str
) -> None:
    of(world, sku, **properties)
    declared = wanting(5)
    assert await world.minute(declared) is None
    made = await preview.make_preview(declared, world.store, world.reader, 5)
    for reason in (made["reason"], (await world.store.log("plan-1"))[0].reason):
        assert told in reason
    condition = (await world.shown(declared))["conditions"][0]
    assert told in condition["what"]
    assert condition["kind"] == "plan.unfit"
    ok, found = await world.checked(declared)
    assert not ok
    assert told in found
    with pytest.raises(CapacityRefused, match=told):
        await set_capacity(world.control, declared.target, 5)
    assert world.arm.puts == ()


@pytest.mark.parametrize(
    "page",
    [
        *[arm_errors.proxy_refusal(status) for status in (401, 403, 404)],
        Reply(403, "\ufeff\r\n<!DOCTYPE html><p>no", "text/html"),
    ],
)
async def test_a_proxy_that_answers_a_change_leaves_its_outcome_open(
    world: World, page: Reply
) -> None:
    world.arm.fail_next(Fault(page, methods=arm_errors.PUT))
    with pytest.raises(CapacityDelayed, match="a proxy's page") as raised:
        await set_capacity(world.control, wanting(3).target, 3)
    assert raised.value.maybe_done


async def test_a_plan_without_a_capacity_is_refused_with_its_tier(world: World) -> None:
    of(world, FC1, 0)
    with pytest.raises(CapacityRefused, match=r"no capacity that can be set: .* FlexConsumption"):
        await world.control.read(wanting(5).target)


async def test_what_is_known_of_a_plan_outlives_a_restart_and_serves_all_copies(
    world: World,
) -> None:
    declared = wanting(40)
    await world.tick(declared)
    other = MemoryReader(lambda: world.now, {SOURCE: FULL}, world.control)
    made = await preview.make_preview(declared, world.store, other, 5)
    assert made["limited_by"] == ["bounds", "already_requested"]
    old_copy = as_message(
        replace(metric(FULL), value=sample(FULL, (NOW - world.now).total_seconds()))
    )
    await scaling_logic.process_samples(old_copy, {"plan-1": declared}, world.store)
    known = (await world.store.load("plan-1")).state.plan
    assert known == PlanFacts("Standard", maximum=10), "a message without facts changes nothing"


async def test_a_larger_tier_is_used_from_the_next_reading_on(world: World) -> None:
    declared = wanting(40)
    assert await world.minute(declared) is EntryKind.CONFIRMED
    of(world, P1V3, 10)
    assert await world.minute(declared) is EntryKind.CONFIRMED
    assert [put.capacity for put in world.arm.puts] == [10, 30]


async def test_a_sender_outside_the_app_cannot_say_what_a_plan_can_have(world: World) -> None:
    declared = wanting(40)
    (text,) = (await collect([declared], world.reader, 5)).messages()
    samples = decode_samples(text)
    world.now += timedelta(seconds=1)
    await scaling_logic.process_samples(samples, {"plan-1": declared}, world.store)
    forged = replace(samples, plan={"unscalable": "forged"}, metrics=())
    later = as_message(replace(metric(1.0), value=sample(1.0, (NOW - world.now).total_seconds())))
    declared = replace(declared, metrics={"backlog": QueueMetric()})
    await scaling_logic.process_samples(
        replace(forged, metrics=later.metrics), {"plan-1": declared}, world.store, sent=True
    )
    assert (await world.store.load("plan-1")).state.plan == PlanFacts("Standard", maximum=10)


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        ({"maximum": "x"}, "maximum is a str, but must be a whole number"),
        ("x", "must be a JSON object"),
    ],
)
@pytest.mark.parametrize("sent", [False, True])
async def test_facts_that_are_wrong_in_a_message_are_told_and_leave_its_samples(
    world: World, plan: object, told: str, sent: bool
) -> None:
    """A field of this name in a message from outside the app has another meaning."""
    declared = replace(wanting(3), metrics={"backlog": QueueMetric()})
    value = {"time": world.now.isoformat(), "value": 1}
    fields = {"schema_version": 1, "resource_name": "plan-1", "name": "backlog", "value": value}
    samples = decode_samples(json.dumps({**fields, "plan": plan}))
    assert declared_samples(samples, declared, sent=sent)[1] == []
    await scaling_logic.process_samples(samples, {"plan-1": declared}, world.store, sent=sent)
    state = (await world.store.load("plan-1")).state
    assert (state.plan, state.histories["backlog"].count) == (None, 1)
    reasons = [each.reason for each in await world.store.log("plan-1")]
    assert any(told in reason for reason in reasons) is not sent


async def test_a_late_message_does_not_narrow_the_limits_of_a_plan_of_another_tier(
    world: World,
) -> None:
    declared = wanting(40)
    (late,) = (await collect([declared], world.reader, 5)).messages()
    of(world, P1V3, 20)
    await world.tick(declared)
    world.now += timedelta(seconds=1)
    resources = {"plan-1": declared}
    await scaling_logic.process_samples(decode_samples(late), resources, world.store)
    state = (await world.store.load("plan-1")).state
    assert state.plan == PlanFacts("PremiumV3", maximum=30)
    assert state.desired is not None
    assert state.desired.target == 30


async def test_a_smaller_tier_is_not_asked_to_go_back_to_what_it_cannot_have(world: World) -> None:
    of(world, P1V3, 20)
    declared = wanting(21, on_manual_change=ManualChange.ENFORCE)
    assert await world.minute(declared) is EntryKind.CONFIRMED
    of(world, S1, 10)
    for _ in range(3):
        assert await world.minute(declared) is None
    assert [put.status for put in world.arm.puts] == [200]


@pytest.mark.parametrize("field", list(asdict(PlanFacts())))
def test_every_fact_travels_in_a_message(field: str) -> None:
    default = getattr(PlanFacts(), field)
    other = {str: "text", bool: True, int: 7}[type(default)]
    known = of_fields({field: other})
    (text,) = Collection((metric(1),), (), {"plan-1": known}).messages()
    assert of_fields(decode_samples(text).plan) == known


# --- autoscale settings, environments and per-app scaling, before the first order ---


def setting(name: str, target: str, **changes: Any) -> dict[str, Any]:
    return {"name": name, "properties": {"targetResourceUri": target, "enabled": True, **changes}}


async def test_another_autoscaler_of_the_plan_is_found_and_told(world: World) -> None:
    world.arm.autoscale_settings = [setting("cpu", str(ID).upper()), setting("x", f"{ID}-2")]
    declared = wanting(3)
    await world.tick(declared)
    told = "Azure Monitor scales this plan too, by its autoscale setting cpu"
    conditions = (await world.shown(declared))["conditions"]
    assert told in conditions[0]["what"]
    assert conditions[0]["kind"] == "plan.unfit"
    assert await world.checked(declared) == (False, f"CapacityRefused: {told}")
    world.arm.autoscale_settings = []
    await world.tick(declared)
    asked = [each for each in world.arm.requests if "autoscalesettings" in each.path]
    assert len(asked) == 1, "they are listed once an hour"
    await world.restart()
    world.arm.autoscale_settings = None
    await world.tick(declared)
    (kept,) = (await world.shown(declared))["conditions"][:1]
    assert told in kept["what"]
    assert "It may be gone by now" in kept["meaning"]


async def test_an_autoscale_setting_beyond_the_first_page_of_the_list_is_found(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [setting(f"other-{n}", f"{ID}-{n}") for n in range(PAGE_MAX)]
    world.arm.autoscale_settings = [*others, setting("cpu", str(ID))]
    _, told = await world.checked(wanting(3))
    assert told.endswith("by its autoscale setting cpu")
    await world.restart()
    monkeypatch.setattr("shared.azure.arm.PAGES_MAX", 1)
    _, told = await world.checked(wanting(3))
    assert "cannot tell whether an autoscale setting scales it too (no answer)" in told


async def test_the_token_is_not_sent_to_another_host_that_a_list_names(world: World) -> None:
    elsewhere = f"{world.arm.base_url.replace('127.0.0.1', 'localhost')}/autoscalesettings/2"
    first = Reply(200, json.dumps({"value": [], "nextLink": elsewhere}))
    original = world.arm.handle
    world.arm.handle = lambda request: (  # type: ignore[method-assign]
        first if "autoscalesettings" in request.path else original(request)
    )
    _, told = await world.checked(wanting(3))
    assert "cannot tell whether an autoscale setting scales it too (no answer)" in told
    assert len([each for each in world.arm.requests if "autoscalesettings" in each.path]) == 1


async def test_settings_that_may_not_be_listed_are_told_as_unknown(world: World) -> None:
    world.arm.autoscale_settings = None
    ok, told = await world.checked(wanting(3))
    assert ok
    assert "cannot tell whether an autoscale setting scales it too" in told
    assert "Microsoft.Insights/autoscalesettings/read" in told
    await world.tick(wanting(3))
    assert (await world.shown(wanting(3, limits=Limits(1, 10))))["conditions"] == []


@pytest.mark.parametrize("fault", [HANG, Fault(Reply(500)), Fault(Reply(200, "<html>"))])
async def test_settings_that_cannot_be_listed_now_never_hide_the_capacity(
    world: World, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.autoscaling.plans.app_service.LIST_SECONDS_MAX", 0.2)
    original = world.arm.handle
    world.arm.handle = lambda request: (  # type: ignore[method-assign]
        original(request) if "serverfarms" in request.path else fault.reply or Reply(500)
    )
    assert (await world.control.describe(wanting(3).target)).value == 2
    ok, told = await world.checked(wanting(3))
    assert ok
    assert "cannot tell whether an autoscale setting scales it too (no answer)" in told
    world.arm.handle = original  # type: ignore[method-assign]
    monkeypatch.setattr("shared.autoscaling.plans.app_service.UNLISTED_AGAIN_SECONDS", 0)
    await world.restart()
    _, told = await world.checked(wanting(3))
    assert "cannot tell" not in told


@pytest.mark.parametrize("may_join", [True, False])
async def test_an_environment_needs_the_right_to_join_it(world: World, may_join: bool) -> None:
    of(world, I1V2, hostingEnvironmentProfile={"id": ENVIRONMENT})
    world.arm.may_join_environments = may_join
    ok, told = await world.checked(wanting(3))
    assert ok is may_join
    assert (JOIN in told) is not may_join
    kind = await world.minute(wanting(3))
    if may_join:
        assert kind is EntryKind.CONFIRMED
    else:
        assert kind is EntryKind.FAILED
        assert f"{JOIN} on {ENVIRONMENT}" in (await world.store.log("plan-1"))[0].reason


async def test_per_app_scaling_is_told(world: World) -> None:
    of(world, perSiteScaling=True)
    ok, told = await world.checked(wanting(3))
    assert ok
    assert "per-app scaling is on" in told


# --- refusals, and the changes within an hour ---


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        ({"lock_scope": "/subscriptions/1"}, "remove the lock on /subscriptions/1"),
        ({"policy": "Only small plans"}, "Azure Policy forbids it (Only small plans)"),
        ({"quota": 2}, "a quota or limit of the subscription"),
    ],
)
async def test_a_refusal_that_only_a_person_can_lift_is_final_and_told(
    world: World, limit: dict[str, Any], told: str
) -> None:
    declared = wanting(3)
    before = {name: getattr(world.arm, name) for name in limit}
    for name, value in limit.items():
        setattr(world.arm, name, value)
    assert await world.minute(declared) is EntryKind.FAILED
    shown = (await world.shown(declared))["conditions"][0]
    assert "scaling to 3 instances was refused" in shown["what"]
    assert told in shown["meaning"]
    assert told in (await world.store.log("plan-1"))[0].reason
    for name, value in before.items():
        setattr(world.arm, name, value)
    kinds = [await world.minute(declared) for _ in range(3)]
    assert EntryKind.CONFIRMED in kinds, "the app asks again once the cause is gone"


@pytest.mark.parametrize("allowed", [20, 10])
async def test_the_last_changes_within_an_hour_are_left_for_scale_out(
    world: World, allowed: int
) -> None:
    world.arm.scale_changes_max = allowed
    wants = partial(wanting, guards=Guards(scale_changes_per_hour=allowed))
    for turn in range(40):
        await world.minute(wants(2 + turn % 2))
    statuses = [put.status for put in world.arm.puts]
    assert set(statuses) == {200}, "Azure refuses nothing"
    capacity = world.arm.plan(ID).capacity
    assert await world.minute(wants(capacity + 1)) is EntryKind.CONFIRMED
    assert (await world.shown(wants(1)))["changes_last_hour"] == len(statuses) + 1
    await world.minute(wants(1))
    reason = (await world.store.log("plan-1"))[0].reason
    assert (
        f"changes within the last hour, of which Azure allows {allowed}: no scale-in until"
        in reason
    )
    world.now += timedelta(hours=1)
    assert await world.minute(wants(1)) is EntryKind.CONFIRMED
    assert (await world.shown(wants(1)))["changes_last_hour"] == 1


async def test_a_plan_that_others_have_changed_too_often_is_waited_for(world: World) -> None:
    fault = Fault(arm_errors.too_many_scale_changes(20, 20, 400), methods=arm_errors.PUT)
    world.arm.fail_next(fault)
    with pytest.raises(CapacityDelayed, match="within an hour") as raised:
        await set_capacity(world.control, wanting(3).target, 3)
    assert not raised.value.maybe_done
    world.arm.fail_next(fault)
    assert await world.minute(wanting(3)) is EntryKind.DEFERRED
    desired = (await world.store.load("plan-1")).state.desired
    assert desired is not None
    assert desired.pending
    assert desired.retry_at == world.now + timedelta(seconds=300)
    kinds = [await world.minute(wanting(3)) for _ in range(5)]
    assert kinds == [None] * 4 + [EntryKind.CONFIRMED]


@pytest.mark.parametrize(
    ("minutes_ago", "wanted", "held"),
    [
        (range(16), 1, True),
        (range(15), 1, False),
        (range(45, 61), 1, False),
        (range(19), 3, False),
        (range(20), 3, True),
        (range(41, 61), 3, False),
    ],
)
def test_scale_in_waits_while_few_changes_are_left_and_scale_out_while_none_is(
    minutes_ago: range, wanted: int, held: bool
) -> None:
    times = tuple(int((NOW - timedelta(minutes=n)).timestamp()) for n in reversed(minutes_ago))
    decided = decide(wanting(wanted), state([5], 2, confirmed(60, changes=times)), NOW)
    assert decided.desired == (2 if held else wanted)
    assert ("scale_changes" in decided.limited_by) is held
