"""Service Bus administration over HTTP: what it answers to the real client, and what it refuses."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from azure.core.exceptions import (
    HttpResponseError,
    ResourceNotFoundError,
    ServiceResponseTimeoutError,
)
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient as BusClient
from azure.servicebus.management import FalseRuleFilter

from local.amqp_broker.administration import ServiceBusStandIn, service_bus
from local.amqp_broker.model.properties import QueueProperties
from local.azure_apis.loopback_server import HANG
from local.azure_apis.service_bus_admin import ServiceBusAdminStandIn, refusal
from tests.local.loopback_clients import AsyncLoopback, SomeCounts, bus_client, refused


@pytest.fixture
async def bus() -> AsyncIterator[ServiceBusAdminStandIn]:
    async with ServiceBusAdminStandIn(SomeCounts()) as server:
        yield server


@pytest.fixture
async def broker() -> AsyncIterator[ServiceBusStandIn]:
    async with service_bus() as stand_in:
        yield stand_in


@pytest.fixture
async def admin(broker: ServiceBusStandIn) -> AsyncIterator[BusClient]:
    async with BusClient.from_connection_string(
        broker.connection_string, transport=AsyncLoopback(), retry_total=0
    ) as client:
        yield client


async def test_counts_are_returned_and_a_missing_entity_is_reported_as_not_found(
    bus: ServiceBusAdminStandIn,
) -> None:
    bus.declare_queue("jobs")
    bus.declare_topic("news")
    bus.declare_subscription("news", "mail")
    async with bus_client(bus) as client:
        queue = await client.get_queue_runtime_properties("Jobs")
        topic = await client.get_topic_runtime_properties("news")
        mail = await client.get_subscription_runtime_properties("news", "mail")
        for missing in (
            client.get_queue_runtime_properties("none"),
            client.get_topic_runtime_properties("none"),
            client.get_subscription_runtime_properties("news", "none"),
        ):
            with pytest.raises(ResourceNotFoundError):
                await missing
    assert (queue.active_message_count, queue.dead_letter_message_count) == (42, 3)
    assert (queue.scheduled_message_count, queue.total_message_count) == (5, 51)
    assert (topic.scheduled_message_count, topic.subscription_count) == (9, 1)
    assert (mail.active_message_count, mail.total_message_count) == (7, 9)


async def test_omitted_properties_have_the_defaults_of_the_service(
    bus: ServiceBusAdminStandIn,
) -> None:
    bus.declare_queue("jobs", MaxDeliveryCount="3")
    async with bus_client(bus) as client:
        queue = await client.get_queue("jobs")
    assert (queue.max_delivery_count, queue.requires_session) == (3, False)
    assert queue.lock_duration == timedelta(minutes=1)
    assert queue.duplicate_detection_history_time_window == timedelta(minutes=10)


async def test_a_fault_applies_to_the_next_request_only(bus: ServiceBusAdminStandIn) -> None:
    bus.declare_queue("jobs")
    async with bus_client(bus) as client:
        bus.fail_next(refusal(429, "slow down", retry_after_seconds=9))
        with refused(429) as caught:
            await client.get_queue_runtime_properties("jobs")
        assert caught.value.response.headers["Retry-After"] == "9"
        bus.fail_next(HANG)
        with pytest.raises(ServiceResponseTimeoutError):
            await client.get_queue_runtime_properties("jobs", read_timeout=0.2)
        queue = await client.get_queue_runtime_properties("jobs")
    assert queue.active_message_count == 42


async def test_administration_shows_the_entities_and_messages_of_the_broker(
    broker: ServiceBusStandIn, admin: BusClient
) -> None:
    properties = QueueProperties(
        lock_duration=timedelta(seconds=20.5), duplicate_window=timedelta(hours=48)
    )
    broker.amqp.namespace.declare_queue("jobs", properties)
    async with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_sender("jobs") as sender,
    ):
        await sender.send_messages(ServiceBusMessage("one"))
    assert (await admin.get_queue_runtime_properties("jobs")).active_message_count == 1
    queue = await admin.get_queue("jobs")
    assert queue.lock_duration == timedelta(seconds=20.5)
    assert queue.duplicate_detection_history_time_window == timedelta(hours=48)


async def test_administration_refuses_changes_and_lists(
    broker: ServiceBusStandIn, admin: BusClient
) -> None:
    broker.amqp.namespace.declare_topic("news")
    for change in (admin.create_queue("jobs"), admin.delete_topic("news")):
        with pytest.raises(HttpResponseError, match="declare entities in code") as caught:
            await change
        assert caught.value.status_code == 405
    for entities in (admin.list_queues(), admin.list_topics(), admin.list_subscriptions("news")):
        with pytest.raises(HttpResponseError, match="lists are not supported"):
            _ = [each async for each in entities]


async def test_rules_are_refused_instead_of_reported_as_missing(
    broker: ServiceBusStandIn, admin: BusClient
) -> None:
    broker.amqp.namespace.declare_topic("news")
    broker.amqp.namespace.declare_subscription("news", "all")
    with pytest.raises(HttpResponseError, match="rules are not supported"):
        await admin.create_rule("news", "all", "few", filter=FalseRuleFilter())
    with pytest.raises(HttpResponseError, match="rules are not supported"):
        _ = [rule async for rule in admin.list_rules("news", "all")]
