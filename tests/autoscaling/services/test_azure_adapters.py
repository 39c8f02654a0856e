"""The adapters of Azure services with their real SDK clients, against Azurite and stand-ins."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.storage.queue import QueueClient

from local.azure_apis import arm_errors
from local.azure_apis.arm import ArmStandIn, OperationForm
from local.azure_apis.entities import EntityCounts
from local.azure_apis.loopback_server import HANG, Fault, LoopbackServer, Reply, Request
from local.azure_apis.plans import P1V3, Plan, PlanId
from local.azure_apis.service_bus_admin import ServiceBusAdminStandIn, refusal
from local.azurite import Azurite
from local.twins.autoscaling import MemoryCapacityControl
from local.twins.ingestion import MemoryBreakerStore
from shared import settings
from shared.autoscaling import (
    IngestionBreaker,
    PlanCapacity,
    ServiceBusQueue,
    ServiceBusSubscription,
    StorageQueue,
)
from shared.autoscaling.errors import CapacityDelayed, CapacityRefused, ReadFailed
from shared.autoscaling.plans.app_service import AppServiceControl
from shared.autoscaling.plans.permissions import NEEDED, ArmPermissions
from shared.autoscaling.ports import CapacityControl
from shared.autoscaling.services import clients
from shared.autoscaling.services.clients import AzureReader, ServiceBusReader, StorageQueueReader
from shared.autoscaling.sources import Count, Source, TopicSubscriptions
from shared.autoscaling.store.tables import TableStateStore
from shared.azure.refusals import AccessRefused
from shared.azure.transport import ForeignAnswer, is_loopback
from shared.ingestion.breaker.state import Breaker, BreakerMode
from shared.ingestion.store.breakers import BreakerStore
from shared.ingestion.store.tables import TableRows
from shared.settings import Settings, SettingsError
from shared.settings.connections import ArmNamespace, ServiceBusConnection
from shared.trends.datasets.queues import QueueCheck
from shared.values.measurements import MetricValue
from tests.builders import NOW, not_asked, plan, read, set_capacity
from tests.emulators.rig import Bus, running_bus
from tests.local.amqp_rig import LEAVES_SOCKETS_OPEN

ID = PlanId(plan().subscription_id, plan().resource_group, plan().name)
ServiceBusSource = ServiceBusQueue | ServiceBusSubscription
GIVEN = {"active": 42, "dead_letter": 3, "scheduled": 7}
WORK, BILLING = ServiceBusQueue("work"), ServiceBusSubscription("orders", "billing")


def loaded(**environ: str) -> Settings:
    return settings.load(environ)


# --- Azure Resource Manager ---


@pytest.fixture
async def arm() -> AsyncIterator[ArmStandIn]:
    async with ArmStandIn([Plan(ID, capacity=2, sku=P1V3, tags={"team": "a"})]) as stand_in:
        yield stand_in


@pytest.fixture
async def control(arm: ArmStandIn) -> AsyncIterator[AppServiceControl]:
    control = AppServiceControl(loaded(ArmEndpoint=arm.base_url, ArmTimeoutSeconds="1"))
    yield control
    await control.close()


@pytest.mark.parametrize(
    ("actions", "lacking"),
    [(["*"], []), (["*/read"], ["Microsoft.Web/serverfarms/write"]), ([], [*NEEDED])],
)
async def test_missing_permissions_on_the_plan_are_listed(
    arm: ArmStandIn, actions: list[str], lacking: list[str]
) -> None:
    arm.permissions = [{"actions": actions, "notActions": []}]
    permissions = ArmPermissions(arm.base_url)
    assert await permissions.lacking(plan()) == lacking
    arm.permissions = None
    with pytest.raises(CapacityRefused, match="permissions/read"):
        await permissions.lacking(plan())
    await permissions.close()


async def test_only_the_capacity_of_the_plan_is_changed_and_it_is_read_with_the_servers_time(
    arm: ArmStandIn, control: AppServiceControl
) -> None:
    assert await set_capacity(control, plan(), 5) == 5
    capacity = await control.read(plan())
    assert capacity.value == 5
    assert abs(capacity.time - datetime.now(UTC)) < timedelta(seconds=5)
    assert arm.plan(ID).tags == {"team": "a"}
    assert [p.capacity for p in arm.puts] == [5]


@pytest.mark.parametrize("form", OperationForm)
async def test_a_change_is_followed_by_readings_with_a_role_on_the_plan_only(
    arm: ArmStandIn, control: AppServiceControl, form: OperationForm
) -> None:
    """Azure shows an operation only to who has a role on the resource group or the subscription."""
    now = datetime.now(UTC)
    arm.clock = lambda: now
    arm.operation_seconds, arm.operation_form, arm.may_read_operations = 3, form, False
    assert await set_capacity(control, plan(), 5) is None, "it is under way"
    assert [request.method for request in arm.requests] == ["GET", "PUT"]
    assert (await control.read(plan())).value == 2
    now += timedelta(seconds=3)
    assert (await control.read(plan())).value == 5
    assert not [request for request in arm.requests if "/operation" in request.path]


DONE: Mapping[str, object] = {"provisioningState": "Succeeded"}
UNDER_WAY: Mapping[str, object] = {"provisioningState": "InProgress"}


@pytest.mark.parametrize(
    ("status", "properties", "reached"),
    [
        (200, DONE, 5),
        (200, {}, 5),
        (200, None, 5),
        (200, {**DONE, "numberOfWorkers": 2}, 5),
        (200, {"asyncScalingEnabled": True, "numberOfWorkers": 3}, 3),
        (200, UNDER_WAY, None),  # the capacity is what was ordered
        (200, {**UNDER_WAY, "numberOfWorkers": 5}, None),
        (202, DONE, None),
        (202, UNDER_WAY, None),
        (202, "", None),
        (202, 1, None),
    ],
)
async def test_the_answer_to_a_change_says_whether_it_is_complete(
    arm: ArmStandIn, control: AppServiceControl, status: int, properties: object, reached: object
) -> None:
    body = (
        json.dumps({"sku": {"capacity": 5}, "properties": properties}) if properties != "" else ""
    )
    arm.fail_next(Fault(Reply(status, body), methods=arm_errors.PUT))
    assert await set_capacity(control, plan(), 5) == reached


@pytest.mark.parametrize(
    ("fault", "error", "message", "retry_after_seconds"),
    [
        (arm_errors.FORBIDDEN, CapacityRefused, "403", None),
        (arm_errors.NOT_FOUND, CapacityRefused, "a plan of exactly this name", None),
        (arm_errors.ANOTHER_OPERATION, CapacityDelayed, "another operation is in progress", None),
        (arm_errors.NO_INSTANCES, CapacityDelayed, "no available instances", None),
        (arm_errors.throttled(17), CapacityDelayed, "429", 17),
        (arm_errors.SERVER_ERROR, CapacityDelayed, "500", None),
        (HANG, CapacityDelayed, "no answer within 1 s, outcome unknown", None),
    ],
)
async def test_an_error_of_arm_is_final_or_may_pass_depending_on_its_kind(
    arm: ArmStandIn,
    control: AppServiceControl,
    fault: Fault,
    error: type[CapacityDelayed | CapacityRefused],
    message: str,
    retry_after_seconds: float | None,
) -> None:
    arm.fail_next(fault)
    with pytest.raises(error) as raised:
        await set_capacity(control, plan(), 5)
    assert message in str(raised.value).lower()
    assert getattr(raised.value, "retry_after_seconds", None) == retry_after_seconds
    arm.stop_failing()
    await set_capacity(control, plan(), 5)
    assert arm.plan(ID).capacity == 5


SHORT = "Not enough available reserved instance servers to satisfy this request."


@pytest.mark.parametrize(
    ("status", "said", "available"),
    [
        (429, f"{SHORT} Currently 4 instances are available.", 4),
        (409, f"{SHORT} Currently 0 instances are available.", 0),
        (429, f"{SHORT} Currently 9 instances are available. If you are increasing instance count "
         "then you can add extra 6 instances at this moment.", 6),
        (429, f"{SHORT} Currently 9 instances are available. {'Please wait. ' * 30}"
         "You can add extra 6 instances at this moment.", 6),
        (429, f"{SHORT} Only 1 more instance is available now.", 1),
        (429, f"{SHORT} You can add up to 3 instances.", 3),
        (429, "NOT ENOUGH AVAILABLE reserved instance servers: 12 instances are available", 12),
        (429, SHORT, None),
        (429, f"{SHORT} 15 instances were requested.", None),
        (429, f"{SHORT} Currently no instances are available.", None),
        (429, f"{SHORT} Currently {10**9} instances are available.", None),
        (429, f"{SHORT} Currently -3 instances are available.", None),
        (429, f"{SHORT} Currently 1.5 instances are available.", None),
        (409, "No available instances to satisfy this request. Please retry.", None),
        (429, "Number of requests exceeded the limit. 5 requests are available.", None),
        (500, f"{SHORT} Currently 4 instances are available.", None),
    ],
)  # fmt: skip
async def test_a_refusal_for_lack_of_instances_names_how_many_can_be_had(
    arm: ArmStandIn, control: AppServiceControl, status: int, said: str, available: int | None
) -> None:
    for reply in (
        arm_errors.app_service_error(status, "Conflict", "{0}", (said,)),
        arm_errors.front_door_error(status, "Conflict", said),
    ):
        arm.fail_next(Fault(reply, methods=arm_errors.PUT))
        with pytest.raises(CapacityDelayed) as raised:
            await set_capacity(control, plan(), 5)
        assert raised.value.available == available
        assert said[:200] in str(raised.value)


@pytest.mark.parametrize(
    ("properties", "capacity"),
    [
        ({"provisioningState": "InProgress", "numberOfWorkers": 9}, 9),
        ({"asyncScalingEnabled": True, "numberOfWorkers": 9}, 9),
        ({"hostingEnvironmentProfile": {"id": "/x"}, "numberOfWorkers": 9}, 9),
        ({"provisioningState": "Succeeded", "numberOfWorkers": 9}, 15),
        *[
            ({"provisioningState": "InProgress", "numberOfWorkers": odd}, 15)
            for odd in (0, None, "nine")
        ],
        ({"provisioningState": "InProgress"}, 15),
        (None, 15),
    ],
    ids=str,
)
async def test_a_plan_that_fills_has_as_many_instances_as_are_there(
    arm: ArmStandIn, control: AppServiceControl, properties: object, capacity: int
) -> None:
    body = {"sku": {"capacity": 15}, "properties": properties}
    arm.fail_next(Fault(Reply(200, json.dumps(body))))
    assert (await control.read(plan())).value == capacity


class InterruptedByAProxy(ArmStandIn):
    """Accepts a change. Then a proxy answers in its place."""

    body = ""

    def handle(self, request: Request) -> Reply:
        reply = super().handle(request)
        return Reply(200, self.body) if request.method == "PUT" else reply


ODD = '{"sku": {"capacity": 3}, "properties": ["x"]}'
NO_PLANS = ("", "null", "[]", "<html>sign in")


@pytest.mark.parametrize("body", [*NO_PLANS, '{"sku": [1]}', '{"sku": {"capacity": "three"}}', ODD])
async def test_a_response_that_is_not_a_plan_may_pass(
    arm: ArmStandIn, control: AppServiceControl, body: str
) -> None:
    """A proxy may answer in place of Azure Resource Manager, with status 200."""
    arm.fail_next(Fault(Reply(200, body)))
    with pytest.raises(CapacityDelayed, match="plan plan-1: "):
        await control.read(plan())


@pytest.mark.parametrize("body", [*NO_PLANS, '{"properties": 1}'])
async def test_a_change_whose_plan_cannot_be_read_may_have_been_made(body: str) -> None:
    async with InterruptedByAProxy([Plan(ID, capacity=2, sku=P1V3)], operation_seconds=60) as arm:
        arm.body = body
        control = AppServiceControl(loaded(ArmEndpoint=arm.base_url))
        with pytest.raises(CapacityDelayed) as raised:
            await set_capacity(control, plan(), 5)
        await control.close()
    assert raised.value.maybe_done


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "17"}, 17),
        ({"Retry-After": "1.5"}, 1.5),
        ({"Retry-After": "Thu, 26 Nov 2026 01:01:30 GMT"}, 90),
        ({"Retry-After": "Thursday, 26-Nov-26 01:01:30 GMT"}, 90),
        ({"Retry-After": "Thu, 26 Nov 2026 00:59:00 GMT"}, 0),
        ({"X-MS-Retry-After-Ms": "2500"}, 2.5),
        ({"Retry-After-MS": "250", "Retry-After": "9"}, 0.25),
        ({"x-ms-retry-after-ms": "soon", "Retry-After": "9"}, 9),
        *[({"Retry-After": text}, None) for text in ("", "soon", "-5", "nan", "1e3", "1_0")],
        *[({"Retry-After": text}, None) for text in ("\u00b2", "\u0663", "9" * 400, str(10**12))],
        ({"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"}, None),
        ({"x-ms-retry-after-ms": "-1"}, None),
    ],
)
async def test_the_wait_that_a_service_asks_for_is_obeyed_in_each_form_if_it_is_plausible(
    arm: ArmStandIn,
    control: AppServiceControl,
    headers: Mapping[str, str],
    seconds: float | None,
) -> None:
    arm.clock = lambda: datetime(2026, 11, 26, 1, tzinfo=UTC)
    arm.fail_next(Fault(arm_errors.front_door_error(429, "Throttled", "later", headers)))
    with pytest.raises(CapacityDelayed, match="429") as raised:
        await set_capacity(control, plan(), 5)
    assert raised.value.retry_after_seconds == seconds


class FailingToProvision(ArmStandIn):
    """Answers each change with ``status``, and shows the plan with ``shown`` from then on."""

    shown: Mapping[str, object] = {}
    status = 202

    def handle(self, request: Request) -> Reply:
        if request.method != "PUT" and not self.puts:
            return super().handle(request)
        properties = self.shown.get("properties", {})
        body = json.dumps({**self.plan(ID).to_json(), **self.shown, "properties": properties})
        return Reply(self.status if request.method == "PUT" else 200, body)


FULL: Mapping[str, object] = {"code": "NoCapacity", "message": "no workers of this size"}


FAILED: Mapping[str, object] = {"provisioningState": "Failed"}
TOLD = "provisioningState Failed: NoCapacity: no workers of this size"


@pytest.mark.parametrize(
    ("status", "shown", "told"),
    [
        (202, {"properties": FAILED}, "provisioningState Failed"),
        (200, {"properties": FAILED}, "provisioningState Failed"),
        (202, {"properties": {"provisioningState": "Canceled"}}, "provisioningState Canceled"),
        (202, {"properties": FAILED, "error": FULL}, TOLD),
        (202, {"properties": {**FAILED, "error": FULL}}, TOLD),
    ],
)
async def test_a_change_that_fails_after_it_was_accepted_tells_its_state_and_error(
    status: int, shown: Mapping[str, object], told: str
) -> None:
    async with FailingToProvision([Plan(ID, capacity=2, sku=P1V3)]) as arm:
        arm.status, arm.shown = status, shown
        control = AppServiceControl(loaded(ArmEndpoint=arm.base_url))
        if status == 200:
            with pytest.raises(CapacityDelayed, match=f"it did not complete: {told}$") as raised:
                await set_capacity(control, plan(), 5)
            assert raised.value.maybe_done
        else:
            assert await set_capacity(control, plan(), 5) is None
        failure = (await control.read(plan())).failure
        await control.close()
    assert failure.endswith(f"it did not complete: {told}")


async def test_an_unreachable_arm_delays_the_change(unused_tcp_port: int) -> None:
    control = AppServiceControl(loaded(ArmEndpoint=f"https://127.0.0.1:{unused_tcp_port}"))
    with pytest.raises(CapacityDelayed):
        await control.read(plan())
    await control.close()


# --- readers ---


class Given:
    def counts(self, entity_path: str) -> EntityCounts | None:
        return EntityCounts(**GIVEN) if entity_path != "empty" else None


@pytest.fixture
async def bus() -> AsyncIterator[ServiceBusAdminStandIn]:
    async with ServiceBusAdminStandIn(Given()) as stand_in:
        stand_in.declare_queue("work")
        stand_in.declare_topic("orders")
        stand_in.declare_subscription("orders", "billing")
        yield stand_in


def reader_of(found: Settings, control: CapacityControl, breakers: BreakerStore) -> AzureReader:
    of_breaker = breakers.metric
    return AzureReader(found.storage, found.service_bus, control, of_breaker, not_asked, not_asked)


@pytest.fixture
async def reader(
    bus: ServiceBusAdminStandIn, azurite: Azurite, control: AppServiceControl
) -> AsyncIterator[AzureReader]:
    environ = {
        "ServiceBusConnection": bus.connection_string,
        "AzureWebJobsStorage": azurite.connection_string,
    }
    settings = loaded(**environ)
    breakers = BreakerStore(TableRows(settings.storage("AzureWebJobsStorage")), "metric_ingest")
    reader = reader_of(settings, control, breakers)
    yield reader
    await reader.close()
    await breakers.close()


COUNTED: tuple[tuple[Count, int], ...] = (("active", 42), ("dead_letter", 3), ("scheduled", 7))


@pytest.mark.parametrize(
    ("source", "value"),
    [
        *[(ServiceBusQueue("work", count=each), value) for each, value in COUNTED],
        *[(ServiceBusSubscription("orders", "billing", count=each), n) for each, n in COUNTED],
        (PlanCapacity(plan()), 2),
        (IngestionBreaker(), 0),
    ],
)
async def test_each_source_is_read_with_the_servers_time(
    reader: AzureReader, source: Source, value: float
) -> None:
    reading = await read(source, reader)
    assert reading.value == value
    assert abs(reading.time - datetime.now(UTC)) < timedelta(seconds=5)


@pytest.fixture(params=["queue", "subscription"])
async def filled(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Bus, ServiceBusSource]]:
    """Two messages that wait, one dead letter, and one scheduled message, in a broker."""
    async with running_bus() as bus:
        source: ServiceBusSource
        async with ServiceBusClient.from_connection_string(
            bus.connection.connection_string
        ) as client:
            if request.param == "queue":
                source = ServiceBusQueue(await bus.queue())
                sender = client.get_queue_sender(source.queue)
                receiver = client.get_queue_receiver(source.queue)
            else:
                source = ServiceBusSubscription(await bus.topic("billing"), "billing")
                sender = client.get_topic_sender(source.topic)
                receiver = client.get_subscription_receiver(source.topic, source.subscription)
            async with sender, receiver:
                await sender.send_messages([ServiceBusMessage(b"work") for _ in range(3)])
                later = datetime.now(UTC) + timedelta(hours=1)
                await sender.schedule_messages(ServiceBusMessage(b"later"), later)
                (message,) = await receiver.receive_messages(1, max_wait_time=20)
                await receiver.dead_letter_message(message)
        yield bus, source


@pytest.mark.filterwarnings(*[each.args[0] for each in LEAVES_SOCKETS_OPEN])
async def test_the_messages_of_a_source_are_counted_as_the_broker_counts_them(
    filled: tuple[Bus, ServiceBusSource],
) -> None:
    bus, source = filled
    counts: tuple[Count, ...] = ("active", "dead_letter", "scheduled")
    reader = ServiceBusReader(bus.administration)
    try:
        values = [(await reader.read(replace(source, count=each))).value for each in counts]
    finally:
        await reader.close()
    assert values == [2, 1, 1]


BUS = (
    "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/group-1/providers"
    "/Microsoft.ServiceBus/namespaces/bus-1"
)
BILLING_PATH = "orders/subscriptions/billing"


@pytest.fixture(params=["namespace", "resource-manager"])
async def entities(
    request: pytest.FixtureRequest, bus: ServiceBusAdminStandIn, arm: ArmStandIn
) -> AsyncIterator[ServiceBusReader]:
    """Reads the same entities, at the address of the namespace or through Resource Manager."""
    arm.service_bus.add(BUS, bus)
    of_namespace = loaded(ServiceBusConnection=bus.connection_string)
    reader = ServiceBusReader(
        of_namespace.service_bus("ServiceBusConnection")
        if request.param == "namespace"
        else ArmNamespace(arm.base_url, BUS)
    )
    yield reader
    await reader.close()


@pytest.mark.parametrize(
    ("path", "status", "source", "told"),
    [
        *[("work", each, WORK, each) for each in ("Disabled", "ReceiveDisabled", "Creating")],
        *[("work", each, WORK, each) for each in ("Deleting", "Renaming", "Restoring")],
        *[("work", each, WORK, "") for each in ("Active", "SendDisabled", "Unknown", "Odd", "")],
        ("WORK", "Disabled", replace(WORK, count="dead_letter"), "Disabled"),
        (BILLING_PATH, "ReceiveDisabled", BILLING, "ReceiveDisabled"),
        (BILLING_PATH, "SendDisabled", BILLING, ""),
        ("orders", "Disabled", BILLING, "topic Disabled"),
        ("orders", "SendDisabled", BILLING, ""),
        ("orders", "Disabled", replace(BILLING, count="scheduled"), "Disabled"),
        ("other", "Disabled", BILLING, ""),
    ],
)
async def test_a_count_says_whether_anything_can_be_received(
    bus: ServiceBusAdminStandIn,
    entities: ServiceBusReader,
    path: str,
    status: str,
    source: ServiceBusSource,
    told: str,
) -> None:
    bus.set_status(path, status)
    reading = await entities.read(source)
    assert (reading.value, reading.status) == (GIVEN[source.count], told)
    bus.set_status(path, "Active")
    if path != "orders" or source.count == "scheduled":
        assert (await entities.read(source)).status == ""


async def test_the_topic_of_all_its_subscriptions_is_read_once_a_minute(
    bus: ServiceBusAdminStandIn,
) -> None:
    bus.declare_subscription("orders", "audit")
    bus.set_status("orders", "Disabled")
    now = 1000.0
    found = loaded(ServiceBusConnection=bus.connection_string)
    reader = ServiceBusReader(found.service_bus("ServiceBusConnection"), lambda: now)

    async def statuses() -> list[str]:
        both = BILLING, ServiceBusSubscription("Orders", "audit")
        return [each.status for each in await asyncio.gather(*map(reader.read, both))]

    def asked() -> int:
        return sum(request.path.lower().strip("/") == "orders" for request in bus.requests)

    assert await statuses() == ["topic Disabled"] * 2
    bus.set_status("orders", "Active")
    now += clients.TOPIC_SECONDS - 1
    assert await statuses() == ["topic Disabled"] * 2
    assert asked() == 1
    now += 1
    assert await statuses() == ["", ""]
    assert asked() == 2
    await reader.close()


class TopicUnreadable(ServiceBusAdminStandIn):
    refuses = False

    def handle(self, request: Request) -> Reply:
        if self.refuses and request.path.strip("/") == "orders":
            return Reply(401, "<Error><Code>401</Code></Error>", "application/xml")
        return super().handle(request)


@pytest.mark.parametrize(("before", "after"), [("", ""), ("Disabled", "topic Disabled")])
async def test_the_last_known_status_of_a_topic_counts_while_it_cannot_be_read(
    before: str, after: str
) -> None:
    async with TopicUnreadable(Given()) as bus:
        bus.declare_topic("orders")
        bus.declare_subscription("orders", "billing")
        now = 1000.0
        found = loaded(ServiceBusConnection=bus.connection_string)
        reader = ServiceBusReader(found.service_bus("ServiceBusConnection"), lambda: now)
        if before:
            bus.set_status("orders", before)
            await reader.read(BILLING)
        bus.refuses, now = True, now + clients.TOPIC_SECONDS
        reading = await reader.read(BILLING)
        assert (reading.value, reading.status) == (42, after)
        now = 1000.0 + clients.TOPIC_KNOWN_SECONDS
        assert (await reader.read(BILLING)).status == "", "by then it may be active"
        await reader.close()


# --- counts by Resource Manager ---


@pytest.mark.parametrize(
    ("source", "value"),
    [
        *[(replace(WORK, count=each), value) for each, value in COUNTED],
        *[(replace(BILLING, count=each), value) for each, value in COUNTED],
        (TopicSubscriptions("orders"), 1),
        (ServiceBusQueue("desk/work"), 42),
        (ServiceBusSubscription("desk/orders", "billing"), 42),
    ],
)
async def test_both_ways_to_read_counts_say_the_same(
    bus: ServiceBusAdminStandIn, entities: ServiceBusReader, source: ServiceBusSource, value: float
) -> None:
    bus.declare_queue("desk/work")
    bus.declare_topic("desk/orders")
    bus.declare_subscription("desk/orders", "billing")
    reading = await entities.read(source)
    assert reading.value == value
    assert abs(reading.time - datetime.now(UTC)) < timedelta(seconds=5)


@pytest.mark.parametrize(("chosen", "role"), [("namespace", "Owner"), ("arm", "Monitoring Reader")])
async def test_a_refusal_names_the_role_of_the_way_that_was_chosen(
    bus: ServiceBusAdminStandIn, arm: ArmStandIn, chosen: str, role: str
) -> None:
    arm.service_bus.add(BUS, bus)
    arm.service_bus.readable = False
    bus.fail_next(refusal(401), times=9)
    identity = ServiceBusConnection("Bus", namespace=f"127.0.0.1:{bus.port}")
    way = identity if chosen == "namespace" else ArmNamespace(arm.base_url, BUS)
    reader = ServiceBusReader(way)
    with pytest.raises(AccessRefused) as refused:
        await reader.read(BILLING)
    await reader.close()
    text = str(refused.value)
    assert f"{role} on it" in text, text
    assert text.startswith("subscription orders/billing of ")
    assert ("Owner" in text) is (chosen == "namespace")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (ServiceBusQueue("missing"), "queue missing does not exist in the namespace of Service"),
        (ServiceBusSubscription("orders", "nobody"), "orders/nobody does not exist"),
    ],
)
async def test_a_missing_entity_is_told_whichever_way_counts_are_read(
    entities: ServiceBusReader, source: ServiceBusSource, message: str
) -> None:
    with pytest.raises(ReadFailed, match=message):
        await entities.read(source)


async def test_resource_manager_is_not_asked_again_before_it_says_so(
    bus: ServiceBusAdminStandIn, arm: ArmStandIn
) -> None:
    arm.service_bus.add(BUS, bus)
    arm.service_bus.throttled_seconds = 17
    reader = ServiceBusReader(ArmNamespace(arm.base_url, BUS))
    with pytest.raises(ReadFailed, match="429"):
        await reader.read(WORK)
    arm.service_bus.throttled_seconds = None
    with pytest.raises(ReadFailed, match=r"throttles requests: queue work is read in 1[67] s"):
        await reader.read(WORK)
    assert len(arm.requests) == 1
    await reader.close()


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        ({}, "did not return the count of queue work"),
        ({"countDetails": None, "messageCount": 5}, "did not return the count of queue work"),
        ({"countDetails": {"activeMessageCount": "5"}}, "the answer cannot be read"),
        ({"countDetails": {"activeMessageCount": -1}}, "the answer cannot be read"),
        ({"countDetails": {"activeMessageCount": True}}, "the answer cannot be read"),
        (None, "the answer cannot be read"),
        ([1], "the answer cannot be read"),
    ],
)
async def test_an_answer_of_resource_manager_without_a_count_is_never_zero(
    properties: object, told: str
) -> None:
    async with Answering(Reply(200, json.dumps({"properties": properties}))) as server:
        reader = ServiceBusReader(ArmNamespace(server.base_url, BUS))
        with pytest.raises(ReadFailed, match=told):
            await reader.read(WORK)
        await reader.close()


async def test_names_are_sent_to_resource_manager_as_part_of_the_path() -> None:
    async with Answering(Reply(404, '{"error": {"code": "NotFound"}}')) as server:
        reader = ServiceBusReader(ArmNamespace(server.base_url, BUS))
        with pytest.raises(ReadFailed):
            await reader.read(ServiceBusSubscription("a?b", "d#e"))
        (request,) = server.requests
        await reader.close()
    assert request.path == f"{BUS}/topics/a?b/subscriptions/d#e"
    assert request.query == {"api-version": "2021-11-01"}


# --- the age of a storage queue ---


class Front(LoopbackServer):
    """A storage account whose queue has these messages, and whose clock is far from ours."""

    inserted: str | None = "Sun, 01 Mar 2026 11:58:30 GMT"

    def handle(self, request: Request) -> Reply:
        assert request.query["peekonly"] == "true"
        body = (
            ""
            if self.inserted is None
            else (
                "<QueueMessage><MessageId>1</MessageId>"
                f"<InsertionTime>{self.inserted}</InsertionTime>"
                "<ExpirationTime>Sun, 08 Mar 2026 11:58:30 GMT</ExpirationTime>"
                "<DequeueCount>0</DequeueCount><MessageText>work</MessageText></QueueMessage>"
            )
        )
        text = f"<QueueMessagesList>{body}</QueueMessagesList>"
        return Reply(200, text, "application/xml", {"x-ms-version": "2025-01-05"})

    def unauthorized(self, reason: str) -> Reply:
        raise AssertionError(reason)


@pytest.mark.parametrize(
    ("inserted", "age"),
    [
        ("Sun, 01 Mar 2026 11:58:30 GMT", 90),
        ("Sun, 01 Mar 2026 12:00:00 GMT", 0),
        ("Sun, 01 Mar 2026 12:00:01 GMT", 0),
        (None, 0),
    ],
)
async def test_the_age_of_the_message_at_the_front_is_that_by_the_clock_of_the_account(
    inserted: str | None, age: float
) -> None:
    async with Front(clock=lambda: NOW) as account:
        account.inserted = inserted
        reader = StorageQueueReader(namespace(account).storage("AzureWebJobsStorage"))
        assert await reader.read(StorageQueue("work", peek=True)) == MetricValue(NOW, age)
        await reader.close()


async def test_peeking_takes_no_message_and_sees_only_those_that_wait(
    reader: AzureReader, azurite: Azurite
) -> None:
    source = StorageQueue("aged-queue", peek=True)
    with pytest.raises(ReadFailed, match="queue aged-queue does not exist"):
        await read(source, reader)
    with QueueClient.from_connection_string(azurite.connection_string, "aged-queue") as queue:
        queue.create_queue()
        assert (await read(source, reader)).value == 0
        queue.send_message("work")
        assert 0 <= (await read(source, reader)).value < 60
        (message,) = queue.receive_messages(max_messages=1)
        assert message.dequeue_count == 1, "peeking is no attempt"
        assert (await read(source, reader)).value == 0
        assert (await read(StorageQueue("aged-queue"), reader)).value == 1


@pytest.mark.parametrize("mode", BreakerMode)
async def test_a_breaker_that_is_not_closed_is_read_as_one(mode: BreakerMode) -> None:
    breakers = MemoryBreakerStore(lambda: NOW)
    await breakers.replace(await breakers.load(), Breaker(mode))
    reader = reader_of(loaded(), MemoryCapacityControl(lambda: NOW, {}), breakers)
    expected = MetricValue(NOW, float(mode is not BreakerMode.CLOSED))
    assert await read(IngestionBreaker(), reader) == expected


async def test_a_storage_queues_length_is_read(reader: AzureReader, azurite: Azurite) -> None:
    with QueueClient.from_connection_string(azurite.connection_string, "backlog-queue") as queue:
        queue.create_queue()
        for _ in range(3):
            queue.send_message("work")
    assert (await read(StorageQueue("backlog-queue"), reader)).value == 3


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (ServiceBusQueue("missing"), "queue missing does not exist"),
        (ServiceBusSubscription("orders", "nobody"), "orders/nobody does not exist"),
        (StorageQueue("missing"), "queue missing does not exist"),
    ],
)
async def test_a_source_that_does_not_exist_raises_an_error_instead_of_reading_zero(
    reader: AzureReader, source: Source, message: str
) -> None:
    with pytest.raises(ReadFailed, match=message):
        await read(source, reader)
    with pytest.raises(SettingsError, match="Other__fullyQualifiedNamespace"):
        await read(ServiceBusQueue("work", connection="Other"), reader)


async def test_a_throttled_request_to_a_namespace_is_retried(
    bus: ServiceBusAdminStandIn, reader: AzureReader
) -> None:
    bus.fail_next(refusal(429, retry_after_seconds=1))
    assert (await read(ServiceBusQueue("work"), reader)).value == 42


@dataclass
class Answering(LoopbackServer):
    """Gives one answer to every request."""

    reply: Reply

    def __post_init__(self) -> None:
        super().__init__()

    def handle(self, request: Request) -> Reply:  # noqa: ARG002
        return self.reply

    def unauthorized(self, reason: str) -> Reply:  # noqa: ARG002
        return self.reply


ATOM = '<entry xmlns="http://www.w3.org/2005/Atom"><title>work</title>{}</entry>'
WITHOUT_COUNTS = ATOM.format(
    '<content type="application/xml"><{0}Description xmlns="http://schemas.microsoft.com/'
    'netservices/2010/10/servicebus/connect"><LockDuration>PT1M</LockDuration></{0}Description>'
    "</content>"
)
NO_COUNT = "did not return the count"
THROTTLED = (
    "<Error><Code>429</Code><Detail>SubCode=50009. The namespace is throttled.</Detail></Error>"
)


@pytest.mark.parametrize(
    ("status", "body", "source", "told"),
    [
        (200, WITHOUT_COUNTS.format("Queue"), WORK, "may be throttling"),
        (
            200,
            WITHOUT_COUNTS.format("Subscription"),
            BILLING,
            f"{NO_COUNT} of subscription orders/b",
        ),
        (200, WITHOUT_COUNTS.format("Topic"), replace(BILLING, count="scheduled"), NO_COUNT),
        (200, WITHOUT_COUNTS.format("Topic"), WORK, NO_COUNT),
        (200, ATOM.format(""), WORK, "200: the answer describes no entity"),
        (200, THROTTLED, WORK, "SubCode=50009. The namespace is throttled."),
        (429, THROTTLED, WORK, "429: SubCode=50009. The namespace is throttled"),
        (503, THROTTLED, WORK, "503: SubCode=50009. The namespace is throttled"),
    ],
)
async def test_an_answer_of_a_namespace_without_counts_is_told_as_what_it_is(
    status: int, body: str, source: ServiceBusSource, told: str
) -> None:
    async with Answering(Reply(status, body, "application/atom+xml")) as bus:
        reader = ServiceBusReader(namespace(bus).service_bus("ServiceBusConnection"))
        with pytest.raises(ReadFailed) as raised:
            await reader.read(source)
        await reader.close()
    assert told in str(raised.value)
    assert "does not exist" not in str(raised.value)


async def test_a_namespace_that_asks_to_wait_is_not_asked_again_before(
    bus: ServiceBusAdminStandIn, reader: AzureReader
) -> None:
    bus.fail_next(refusal(429, "slow down", retry_after_seconds=60))
    with pytest.raises(ReadFailed, match="429: slow down"):
        await read(ServiceBusQueue("work"), reader)
    for source in (ServiceBusQueue("work"), ServiceBusSubscription("orders", "billing")):
        with pytest.raises(ReadFailed, match=r"throttles requests: .* is read in \d\d s"):
            await read(source, reader)
    assert len(bus.requests) == 1


PAGE = "<!DOCTYPE html><html><head><title>Sign in</title></head><body><p>Log in<br></body></html>"


def namespace(server: LoopbackServer) -> Settings:
    """Settings with which every service is at the server."""
    address = server.base_url.replace("https", "http")
    return loaded(
        ServiceBusConnection=f"Endpoint=sb://127.0.0.1:{server.port};SharedAccessKeyName=a;"
        "SharedAccessKey=b;UseDevelopmentEmulator=true",
        AzureWebJobsStorage=f"AccountName=a;AccountKey=Yg==;QueueEndpoint={address};"
        f"TableEndpoint={address}",
        ArmEndpoint=server.base_url,
    )


XHTML = Reply(200, '<html xmlns="http://www.w3.org/1999/xhtml"/>', "application/xml")


@pytest.mark.parametrize(
    "reply",
    [
        XHTML,
        Reply(200, PAGE, "text/html"),
        Reply(200, PAGE, "application/json"),
        Reply(200, f'\ufeff<?xml version="1.0"?>\n{PAGE}', "application/xml"),
        Reply(403, "blocked by the policy of this network", "text/html"),
        Reply(200, "blocked", "text/plain"),
        Reply(200, "", "application/xml"),
        Reply(302, PAGE, "text/html", {"Location": "/login"}),
        *[Reply(status, PAGE, "text/html") for status in (403, 404, 407, 503)],
    ],
    ids=lambda reply: f"{reply.status} {reply.content_type} {len(reply.body)}",
)
async def test_a_page_of_a_proxy_is_told_as_what_it_is_whatever_was_asked(reply: Reply) -> None:
    """It is no missing role, no missing entity, and above all no state without rows."""
    async with Answering(reply) as proxy:
        found = namespace(proxy)
        control = AppServiceControl(found)
        reader = reader_of(found, control, MemoryBreakerStore(lambda: NOW))
        facts = QueueCheck(found.service_bus("ServiceBusConnection"), "work", "", [])
        permissions = ArmPermissions(found.arm_endpoint)
        states = TableStateStore(found.storage("AzureWebJobsStorage"))
        asked: list[Awaitable[object]] = [
            read(ServiceBusQueue("work"), reader),
            read(ServiceBusSubscription("orders", "billing"), reader),
            facts.facts("work"),
            control.read(plan()),
            set_capacity(control, plan(), 5),
        ]
        if reply is XHTML:  # these clients retry for seconds
            asked += [read(StorageQueue("work"), reader), permissions.lacking(plan())]
            asked += [states.load("plan-1")]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for each in (reader, control, facts, states, permissions):
            await each.close()
    told = f"the answer of 127.0.0.1 is not what Azure sends (status {reply.status}, content type "
    assert [each for each in answers if told not in str(each) or "proxy" not in str(each)] == []


async def test_json_of_a_proxy_is_neither_an_empty_state_nor_a_plan_without_capacity() -> None:
    async with Answering(Reply(200, '{"error": "blocked"}')) as proxy:
        found = namespace(proxy)
        states = TableStateStore(found.storage("AzureWebJobsStorage"))
        control = AppServiceControl(found)
        with pytest.raises(ForeignAnswer, match="not what Azure sends"):
            await states.load("plan-1")
        with pytest.raises(CapacityDelayed, match="does not describe a plan"):
            await control.read(plan())
        for each in (states, control):
            await each.close()


async def test_a_page_with_a_header_of_azure_is_an_answer_of_azure() -> None:
    """Azure's own pages of errors keep their meaning, and a blob may be a page."""
    headers = {"x-ms-request-id": "1"}
    async with Answering(Reply(404, PAGE, "text/html", headers)) as storage:
        reader = StorageQueueReader(namespace(storage).storage("AzureWebJobsStorage"))
        with pytest.raises(ReadFailed, match="queue work does not exist"):
            await reader.read(StorageQueue("work"))
        await reader.close()


async def test_only_loopback_addresses_are_reached_over_plain_http() -> None:
    assert is_loopback("https://127.0.0.1:5000/x")
    assert is_loopback("localhost:5672")
    for url in ("https://127.0.0.1.evil.com", "https://evil.com/127.0.0.1", "http://a@evil.com"):
        assert not is_loopback(url)
