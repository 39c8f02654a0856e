"""Service Bus administration over HTTP: what it answers to the real client, and what it refuses."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import EntityStatus, FalseRuleFilter

from local.amqp_broker.model.properties import QueueProperties
from local.azure_apis.service_bus_admin import ServiceBusAdminStandIn
from shared.settings.connections import ServiceBusConnection
from tests.emulators.rig import Bus, administration_client, running_bus


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


async def test_administration_refuses_changes_and_lists(
    bus: Bus, admin: ServiceBusAdministrationClient
) -> None:
    bus.inside().namespace.declare_topic("news")
    for change in (admin.create_queue("jobs"), admin.delete_topic("news")):
        with pytest.raises(HttpResponseError, match="declare entities in code") as refused:
            await change
        assert refused.value.status_code == 405
    for entities in (admin.list_queues(), admin.list_topics(), admin.list_subscriptions("news")):
        with pytest.raises(HttpResponseError, match="lists are not supported"):
            _ = [each async for each in entities]


async def test_rules_are_refused_instead_of_reported_as_missing(
    bus: Bus, admin: ServiceBusAdministrationClient
) -> None:
    bus.inside().namespace.declare_topic("news")
    bus.inside().namespace.declare_subscription("news", "all")
    with pytest.raises(HttpResponseError, match="rules are not supported"):
        await admin.create_rule("news", "all", "few", filter=FalseRuleFilter())
    with pytest.raises(HttpResponseError, match="rules are not supported"):
        _ = [rule async for rule in admin.list_rules("news", "all")]
