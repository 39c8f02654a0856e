"""Administration over HTTP and messages over AMQP, of one and the same namespace."""

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
from azure.servicebus.management import AuthorizationRule, FalseRuleFilter

from local.amqp_broker import VirtualClock
from local.amqp_broker.administration import ServiceBusStandIn, service_bus
from local.amqp_broker.durations import duration, written
from local.amqp_broker.model.errors import InvalidProperties
from local.amqp_broker.model.properties import QueueProperties, TopicProperties
from shared.adapters.readers import ServiceBusReader
from shared.autoscaling.declaring import ServiceBusSubscription
from shared.settings.connections import ServiceBusConnection


class Http(AioHttpTransport):  # type: ignore[misc]
    """The client insists on https, and looks at the URL again before it retries."""

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


async def test_messages_that_were_sent_are_the_ones_that_are_counted(
    bus: ServiceBusStandIn, admin: ServiceBusAdministrationClient, clock: VirtualClock
) -> None:
    await admin.create_queue("jobs", max_delivery_count=1)
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
        await administration.create_queue("jobs")
        async with client.get_queue_sender("jobs") as sender:
            await sender.send_messages(ServiceBusMessage("one"))
        counts = await administration.get_queue_runtime_properties("jobs")
    assert counts.active_message_count == 1


async def test_the_apps_own_reader_counts_the_messages_of_a_topic(bus: ServiceBusStandIn) -> None:
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


async def test_what_the_client_creates_the_broker_has(
    bus: ServiceBusStandIn, admin: ServiceBusAdministrationClient
) -> None:
    await admin.create_queue("target")
    await admin.create_queue(
        "jobs",
        requires_duplicate_detection=True,
        duplicate_detection_history_time_window=timedelta(days=2),
        lock_duration=timedelta(seconds=45),
        max_delivery_count=3,
        default_message_time_to_live=timedelta(days=3),
        dead_lettering_on_message_expiration=True,
        forward_to="target",
    )
    await admin.create_topic("news", default_message_time_to_live=timedelta(days=1))
    await admin.create_subscription("news", "mail", requires_session=True)
    namespace = bus.amqp.namespace
    assert namespace.entity("jobs").properties == QueueProperties(
        duplicate_window=timedelta(days=2),
        lock_duration=timedelta(seconds=45),
        max_delivery_count=3,
        time_to_live=timedelta(days=3),
        dead_letters_expired=True,
        forward_to="target",
    )
    assert namespace.entity("news").properties == TopicProperties(time_to_live=timedelta(days=1))
    mail = namespace.entity("news/subscriptions/mail")
    assert mail.properties == QueueProperties(requires_session=True)


async def test_what_the_broker_declares_the_client_finds(
    bus: ServiceBusStandIn, admin: ServiceBusAdministrationClient
) -> None:
    properties = QueueProperties(
        lock_duration=timedelta(seconds=20.5),
        duplicate_window=timedelta(hours=48),
        forward_to="other",
    )
    bus.amqp.namespace.declare_queue("jobs", properties)
    bus.amqp.namespace.declare_topic("news")
    bus.amqp.namespace.declare_subscription("news", "mail")
    queue = await admin.get_queue("jobs")
    assert queue.lock_duration == timedelta(seconds=20.5)
    assert queue.duplicate_detection_history_time_window == timedelta(hours=48)
    assert str(queue.default_message_time_to_live).startswith("10675199 days")
    assert [each.name async for each in admin.list_subscriptions("news")] == ["mail"]
    bus.amqp.namespace.delete("news")
    with pytest.raises(ResourceNotFoundError):
        await admin.get_topic("news")


async def test_an_update_changes_the_broker_and_a_deletion_empties_it(
    bus: ServiceBusStandIn, admin: ServiceBusAdministrationClient
) -> None:
    queue = await admin.create_queue("jobs")
    await admin.update_queue(queue, max_delivery_count=2)
    entity = bus.amqp.namespace.entity("jobs")
    assert entity.properties == QueueProperties(max_delivery_count=2)
    await admin.delete_queue("jobs")
    assert bus.amqp.namespace.entities == ()


async def test_what_the_broker_cannot_have_is_refused(
    bus: ServiceBusStandIn, admin: ServiceBusAdministrationClient
) -> None:
    with pytest.raises(HttpResponseError, match="lock duration") as refused:
        await admin.create_queue("jobs", lock_duration=timedelta(minutes=6))
    assert refused.value.status_code == 400
    queue = await admin.create_queue("jobs")
    with pytest.raises(HttpResponseError, match="fixed"):
        await admin.update_queue(queue, requires_session=True)
    assert not (await admin.get_queue("jobs")).requires_session


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("PT1M", timedelta(minutes=1)),
        ("P14D", timedelta(days=14)),
        ("P1DT2H3M4.5S", timedelta(days=1, hours=2, minutes=3, seconds=4.5)),
        ("PT0S", timedelta(0)),
    ],
)
def test_durations_as_the_service_writes_them(text: str, length: timedelta) -> None:
    assert duration(text) == length
    assert duration(written(length)) == length


@pytest.mark.parametrize("text", ["", "P", "PT", "1M", "P1Y", "PT-5S", "P9999999999D", "x"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidProperties):
        duration(text)


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({"forward_dead_lettered_messages_to": "graves"}, "ForwardDeadLetteredMessagesTo"),
        ({"status": "SendDisabled"}, "Status 'SendDisabled'.*only 'Active'"),
        ({"status": "Disabled"}, "Status"),
        ({"auto_delete_on_idle": timedelta(minutes=5)}, "AutoDeleteOnIdle"),
        ({"enable_partitioning": True}, "EnablePartitioning"),
        ({"enable_express": True}, "EnableExpress"),
        ({"max_size_in_megabytes": 2048}, "MaxSizeInMegabytes '2048'.*only '1024'"),
        (
            {"authorization_rules": [AuthorizationRule(key_name="k", rights=["Send"])]},
            "AuthorizationRules",
        ),
    ],
)
async def test_a_property_that_would_be_ignored_is_refused_by_name(
    bus: ServiceBusStandIn,
    admin: ServiceBusAdministrationClient,
    properties: dict[str, Any],
    named: str,
) -> None:
    with pytest.raises(HttpResponseError, match=named) as refused:
        await admin.create_queue("jobs", **properties)
    assert refused.value.status_code == 400
    assert bus.amqp.namespace.entities == ()
    queue = await admin.create_queue("jobs")
    with pytest.raises(HttpResponseError, match=named):
        await admin.update_queue(queue, **properties)


async def test_topics_and_subscriptions_refuse_what_they_would_ignore(
    bus: ServiceBusStandIn, admin: ServiceBusAdministrationClient
) -> None:
    with pytest.raises(HttpResponseError, match="EnablePartitioning"):
        await admin.create_topic("news", enable_partitioning=True)
    await admin.create_topic("news")
    with pytest.raises(HttpResponseError, match="ForwardDeadLetteredMessagesTo"):
        await admin.create_subscription("news", "all", forward_dead_lettered_messages_to="news")
    assert [entity.path for entity in bus.amqp.namespace.entities] == ["news"]


async def test_rules_are_refused_and_not_taken_for_absent(
    admin: ServiceBusAdministrationClient,
) -> None:
    await admin.create_topic("news")
    await admin.create_subscription("news", "all")
    with pytest.raises(HttpResponseError, match="rules are not supported"):
        await admin.create_rule("news", "all", "few", filter=FalseRuleFilter())
    with pytest.raises(HttpResponseError, match="rules are not supported"):
        _ = [rule async for rule in admin.list_rules("news", "all")]
    with pytest.raises(HttpResponseError, match="rules are not supported"):
        await admin.delete_rule("news", "all", "$Default")


async def test_the_largest_message_is_as_large_as_it_was_said(
    bus: ServiceBusStandIn, admin: ServiceBusAdministrationClient
) -> None:
    await admin.create_queue("small", max_message_size_in_kilobytes=2)
    await admin.create_topic("large", max_message_size_in_kilobytes=1024)
    assert (await admin.get_topic("large")).max_message_size_in_kilobytes == 1024
    namespace = bus.amqp.namespace
    assert namespace.entity("large").properties == TopicProperties(max_message_bytes=1024 * 1024)
    assert namespace.entity("small").properties == QueueProperties(max_message_bytes=2048)
    async with (
        ServiceBusClient.from_connection_string(bus.connection_string) as client,
        client.get_queue_sender("small") as sender,
    ):
        await sender.send_messages(ServiceBusMessage(bytes(1000)))
        with pytest.raises(MessageSizeExceededError):
            await sender.send_messages(ServiceBusMessage(bytes(3000)))


async def test_an_entity_that_the_broker_declared_can_be_updated_as_it_is(
    bus: ServiceBusStandIn, admin: ServiceBusAdministrationClient
) -> None:
    large = QueueProperties(max_message_bytes=1024 * 1024)
    bus.amqp.namespace.declare_queue("jobs", large)
    bus.amqp.namespace.declare_topic("news")
    bus.amqp.namespace.declare_subscription("news", "all")
    await admin.update_queue(await admin.get_queue("jobs"))
    await admin.update_topic(await admin.get_topic("news"))
    await admin.update_subscription("news", await admin.get_subscription("news", "all"))
    assert bus.amqp.namespace.entity("jobs").properties == large
