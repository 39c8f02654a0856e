"""Service Bus administration over HTTP: what it answers to the real client, and what it refuses."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import ClientSession
from azure.core.exceptions import HttpResponseError
from azure.core.rest import HttpRequest
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import EntityStatus, FalseRuleFilter

from local.amqp_broker.model.properties import QueueProperties
from local.azure_apis.arm import ArmStandIn
from local.azure_apis.entities import EntityCounts
from local.azure_apis.service_bus_admin import ServiceBusAdminStandIn
from shared.azure.arm import arm_client
from shared.settings.connections import ServiceBusConnection
from tests.builders import NOW
from tests.emulators.rig import Bus, administration_client, running_bus

NAMESPACE = "/subscriptions/s/resourceGroups/rg/providers/Microsoft.ServiceBus/namespaces/bus"


@pytest.fixture
async def bus() -> AsyncIterator[Bus]:
    async with running_bus() as bus:
        yield bus


@pytest.fixture
async def admin(bus: Bus) -> AsyncIterator[ServiceBusAdministrationClient]:
    async with administration_client(bus.administration) as client:
        yield client


@pytest.mark.parametrize("status", EntityStatus)
async def test_the_status_of_an_entity_is_told_with_its_counts(
    status: EntityStatus,
) -> None:
    async with ServiceBusAdminStandIn() as bus:
        bus.declare_topic("news")
        bus.declare_subscription("news", "mail")
        bus.set_status("News/subscriptions/mail", status.value)
        connection = ServiceBusConnection("Bus", bus.connection_string)
        async with administration_client(connection) as admin:
            assert (await admin.get_subscription("news", "mail")).status == status
            assert (await admin.get_subscription_runtime_properties("news", "mail")).name == "mail"
            assert (await admin.get_topic("news")).status == EntityStatus.ACTIVE


async def test_omitted_properties_have_the_defaults_of_the_service(
    bus: Bus, admin: ServiceBusAdministrationClient
) -> None:
    bus.inside().namespace.declare_queue("jobs", QueueProperties(max_delivery_count=3))
    queue = await admin.get_queue("jobs")
    assert (queue.max_delivery_count, queue.requires_session) == (3, False)
    assert queue.lock_duration == timedelta(minutes=1)
    assert str(queue.default_message_time_to_live).startswith("10675199 days")


async def test_administration_refuses_changes(
    bus: Bus, admin: ServiceBusAdministrationClient
) -> None:
    bus.inside().namespace.declare_topic("news")
    for change in (admin.create_queue("jobs"), admin.delete_topic("news")):
        with pytest.raises(HttpResponseError, match="declare entities in code") as refused:
            await change
        assert refused.value.status_code == 405


class Given:
    """A queue's name says its count: `queue-007` has 7 messages."""

    def counts(self, path: str) -> EntityCounts:
        return EntityCounts(active=int(path.rpartition("-")[2]))


@pytest.mark.parametrize("count", [0, 1, 100, 250])
async def test_queues_and_subscriptions_are_listed_in_pages_of_a_hundred(count: int) -> None:
    """By the client, which follows the links, and by Resource Manager."""
    names = [f"{{}}-{n:03}" for n in range(count)]
    async with ServiceBusAdminStandIn(Given()) as bus, ArmStandIn([]) as arm:
        bus.declare_topic("news-0")
        bus.declare_topic("old-0")
        bus.declare_subscription("old-0", "mail-7")
        for each in names:
            bus.declare_queue(each.format("queue"))
            bus.declare_subscription("news-0", each.format("sub"))
        bus.set_status("queue-000", EntityStatus.RECEIVE_DISABLED.value)
        arm.service_bus.add(NAMESPACE, bus)
        connection = ServiceBusConnection("Bus", bus.connection_string)
        async with administration_client(connection) as admin:
            queues = [each async for each in admin.list_queues_runtime_properties()]
            subscriptions = [
                each async for each in admin.list_subscriptions_runtime_properties("News-0")
            ]
            assert [each.name for each in queues] == [each.format("queue") for each in names]
            assert [each.name for each in subscriptions] == [each.format("sub") for each in names]
            for listed in (queues, subscriptions):
                assert [each.active_message_count for each in listed] == [*range(count)]
            statuses = [each.status async for each in admin.list_queues()]
            assert statuses[:2] == [EntityStatus.RECEIVE_DISABLED, EntityStatus.ACTIVE][:count]
            assert [each.name async for each in admin.list_topics()] == ["news-0", "old-0"]
            with pytest.raises(HttpResponseError):
                _ = [each async for each in admin.list_subscriptions("missing")]
        for path, name in (("queues", "queue"), ("topics/news-0/subscriptions", "sub")):
            shown = await listed_by_resource_manager(arm, f"{NAMESPACE}/{path}")
            assert [each["name"] for each in shown] == [each.format(name) for each in names]
            active = [each["properties"]["countDetails"]["activeMessageCount"] for each in shown]
            assert active == [*range(count)]


async def listed_by_resource_manager(arm: ArmStandIn, path: str) -> list[Any]:
    shown: list[Any] = []
    url: str | None = f"{arm.base_url}{path}?api-version=2024-01-01"
    async with arm_client(arm.base_url) as client:
        while url is not None:
            reply = await client.send_request(HttpRequest("GET", url))
            assert reply.status_code == 200
            assert len(reply.json()["value"]) <= 100
            shown += reply.json()["value"]
            url = reply.json().get("nextLink")
    return shown


async def test_a_list_leaves_out_what_a_test_says_and_needs_a_right_of_its_own() -> None:
    async with ServiceBusAdminStandIn() as bus:
        bus.declare_queue("jobs")
        bus.declare_queue("mail")
        bus.left_out_of_lists = {"jobs"}
        async with administration_client(ServiceBusConnection("Bus", bus.connection_string)) as it:
            assert [each.name async for each in it.list_queues()] == ["mail"]
            assert (await it.get_queue("jobs")).name == "jobs"
            bus.may_list = False
            with pytest.raises(HttpResponseError, match="EntityRead claims required"):
                _ = [each async for each in it.list_queues_runtime_properties()]
            assert (await it.get_queue_runtime_properties("mail")).name == "mail"


async def test_a_namespace_has_a_thousand_credits_a_second_and_a_request_costs_ten() -> None:
    now = NOW
    async with (
        ServiceBusAdminStandIn(clock=lambda: now) as bus,
        ClientSession(headers={"Authorization": "any"}) as session,
    ):
        bus.declare_queue("jobs")

        async def answers(path: str, count: int) -> list[int]:
            found = []
            for _ in range(count):
                async with session.get(f"http://127.0.0.1:{bus.port}/{path}") as reply:
                    found.append(reply.status)
                    throttled = "namespace is being throttled" in await reply.text()
                    assert (reply.status == 429) == throttled == ("Retry-After" in reply.headers)
            return found

        assert await answers("$Resources/queues", 60) == [200] * 60
        assert await answers("jobs", 42) == [200] * 40 + [429] * 2
        now += timedelta(milliseconds=900)
        assert await answers("jobs", 1) == [429]
        now += timedelta(milliseconds=100)
        assert await answers("jobs", 101) == [200] * 100 + [429]


async def test_rules_are_refused_instead_of_reported_as_missing(
    bus: Bus, admin: ServiceBusAdministrationClient
) -> None:
    bus.inside().namespace.declare_topic("news")
    bus.inside().namespace.declare_subscription("news", "all")
    with pytest.raises(HttpResponseError, match="rules are not supported"):
        await admin.create_rule("news", "all", "few", filter=FalseRuleFilter())
    with pytest.raises(HttpResponseError, match="rules are not supported"):
        _ = [rule async for rule in admin.list_rules("news", "all")]
