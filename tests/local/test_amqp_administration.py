"""Administration over HTTP and messages over AMQP in the same namespace."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.core.pipeline.transport import AioHttpTransport
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.exceptions import MessageSizeExceededError
from azure.servicebus.management import FalseRuleFilter

from local.amqp_broker import VirtualClock
from local.amqp_broker.administration import ServiceBusStandIn, service_bus
from local.amqp_broker.model.properties import QueueProperties, TopicProperties
from shared.autoscaling.services.clients import ServiceBusReader
from shared.autoscaling.sources import ServiceBusSubscription
from shared.settings.connections import ServiceBusConnection


class Http(AioHttpTransport):  # type: ignore[misc]
    """Sends over http, then restores the URL: the client requires https, also on a retry."""

    async def send(self, request: Any, **config: Any) -> Any:
        url = request.url
        request.url = url.replace("https://", "http://", 1)
        try:
            return await super().send(request, **config)
        finally:
            request.url = url


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def bus(clock: VirtualClock) -> AsyncIterator[ServiceBusStandIn]:
    async with service_bus(clock=clock) as stand_in:
        yield stand_in


@pytest.fixture
async def admin(bus: ServiceBusStandIn) -> AsyncIterator[ServiceBusAdministrationClient]:
    async with ServiceBusAdministrationClient.from_connection_string(
        bus.administration.connection_string, transport=Http(), retry_total=0
    ) as client:
        yield client


async def test_administration_counts_the_messages_that_were_sent_over_amqp(
    bus: ServiceBusStandIn, admin: ServiceBusAdministrationClient, clock: VirtualClock
) -> None:
    bus.amqp.namespace.declare_queue("jobs", QueueProperties(max_delivery_count=1))
    async with (
        ServiceBusClient.from_connection_string(bus.amqp.connection_string) as client,
        client.get_queue_sender("jobs") as sender,
        client.get_queue_receiver("jobs") as receiver,
    ):
        await sender.send_messages([ServiceBusMessage(str(number)) for number in range(7)])
        due = clock() + timedelta(hours=1)
        await sender.schedule_messages(ServiceBusMessage("later"), due)
        first, second = await receiver.receive_messages(2, max_wait_time=5)
        await receiver.complete_message(first)
        await receiver.abandon_message(second)
    counts = await admin.get_queue_runtime_properties("jobs")
    assert counts.active_message_count == 5
    assert counts.dead_letter_message_count == 1
    assert counts.scheduled_message_count == 1
    clock.advance(timedelta(hours=1))
    counts = await admin.get_queue_runtime_properties("jobs")
    assert (counts.active_message_count, counts.scheduled_message_count) == (6, 0)


async def test_one_connection_string_serves_messages_and_administration(
    bus: ServiceBusStandIn,
) -> None:
    string = bus.connection_string
    administration = ServiceBusAdministrationClient.from_connection_string(string, transport=Http())
    async with administration, ServiceBusClient.from_connection_string(string) as client:
        bus.amqp.namespace.declare_queue("jobs")
        async with client.get_queue_sender("jobs") as sender:
            await sender.send_messages(ServiceBusMessage("one"))
        counts = await administration.get_queue_runtime_properties("jobs")
    assert counts.active_message_count == 1


async def test_the_apps_reader_counts_the_messages_of_a_subscription(
    bus: ServiceBusStandIn,
) -> None:
    bus.amqp.namespace.declare_topic("orders")
    bus.amqp.namespace.declare_subscription("orders", "billing")
    reader = ServiceBusReader(
        ServiceBusConnection("ServiceBus", bus.administration.connection_string)
    )
    async with (
        ServiceBusClient.from_connection_string(bus.amqp.connection_string) as client,
        client.get_topic_sender("orders") as sender,
        client.get_subscription_receiver("orders", "billing") as receiver,
    ):
        await sender.send_messages([ServiceBusMessage(str(number)) for number in range(5)])
        assert (await reader.read(ServiceBusSubscription("orders", "billing"))).value == 5
        (message,) = await receiver.receive_messages(1, max_wait_time=5)
        await receiver.complete_message(message)
        assert (await reader.read(ServiceBusSubscription("orders", "billing"))).value == 4
    await reader.close()


async def test_the_client_reads_the_properties_of_entities_declared_in_the_broker(
    bus: ServiceBusStandIn, admin: ServiceBusAdministrationClient
) -> None:
    properties = QueueProperties(
        lock_duration=timedelta(seconds=20.5),
        duplicate_window=timedelta(hours=48),
        forward_to="other",
    )
    bus.amqp.namespace.declare_queue("jobs", properties)
    bus.amqp.namespace.declare_topic("news")
    sessions = QueueProperties(requires_session=True, time_to_live=timedelta(days=3))
    bus.amqp.namespace.declare_subscription("news", "mail", sessions)
    queue = await admin.get_queue("jobs")
    assert queue.lock_duration == timedelta(seconds=20.5)
    assert queue.duplicate_detection_history_time_window == timedelta(hours=48)
    assert str(queue.default_message_time_to_live).startswith("10675199 days")
    assert (queue.forward_to, queue.max_delivery_count) == ("other", 10)
    assert (queue.requires_session, queue.dead_lettering_on_message_expiration) == (False, False)
    topic = await admin.get_topic_runtime_properties("news")
    assert (topic.name, topic.subscription_count) == ("news", 1)
    mail = await admin.get_subscription("news", "mail")
    assert (mail.name, mail.requires_session) == ("mail", True)
    assert mail.default_message_time_to_live == timedelta(days=3)
    with pytest.raises(ResourceNotFoundError):
        await admin.get_topic("none")


async def test_administration_refuses_changes_and_lists(
    bus: ServiceBusStandIn, admin: ServiceBusAdministrationClient
) -> None:
    bus.amqp.namespace.declare_topic("news")
    for change in (
        admin.create_queue("jobs"),
        admin.update_topic(await admin.get_topic("news")),
        admin.create_subscription("news", "mail"),
        admin.delete_topic("news"),
    ):
        with pytest.raises(HttpResponseError, match="declare entities in code") as refused:
            await change
        assert refused.value.status_code == 405
    for entities in (admin.list_queues(), admin.list_topics(), admin.list_subscriptions("news")):
        with pytest.raises(HttpResponseError, match="lists are not supported"):
            _ = [each async for each in entities]


async def test_rules_are_refused_instead_of_reported_as_missing(
    bus: ServiceBusStandIn, admin: ServiceBusAdministrationClient
) -> None:
    bus.amqp.namespace.declare_topic("news")
    bus.amqp.namespace.declare_subscription("news", "all")
    with pytest.raises(HttpResponseError, match="rules are not supported"):
        await admin.create_rule("news", "all", "few", filter=FalseRuleFilter())
    with pytest.raises(HttpResponseError, match="rules are not supported"):
        _ = [rule async for rule in admin.list_rules("news", "all")]
    with pytest.raises(HttpResponseError, match="rules are not supported"):
        await admin.delete_rule("news", "all", "$Default")


async def test_a_message_above_the_declared_size_limit_is_refused(
    bus: ServiceBusStandIn, admin: ServiceBusAdministrationClient
) -> None:
    namespace = bus.amqp.namespace
    namespace.declare_queue("small", QueueProperties(max_message_bytes=2048))
    namespace.declare_topic("large", TopicProperties(max_message_bytes=1024 * 1024))
    assert (await admin.get_queue("small")).max_message_size_in_kilobytes == 2
    assert (await admin.get_topic("large")).max_message_size_in_kilobytes == 1024
    async with (
        ServiceBusClient.from_connection_string(bus.connection_string) as client,
        client.get_queue_sender("small") as sender,
    ):
        await sender.send_messages(ServiceBusMessage(bytes(1000)))
        with pytest.raises(MessageSizeExceededError):
            await sender.send_messages(ServiceBusMessage(bytes(3000)))
