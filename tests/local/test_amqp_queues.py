"""Queues over AMQP, asked by the real azure-servicebus client, sync and aio."""

from collections.abc import AsyncIterator, Iterator

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient

from local.amqp import AmqpStandIn, in_thread


@pytest.fixture
def bus() -> Iterator[AmqpStandIn]:
    with in_thread(AmqpStandIn()) as stand_in:
        stand_in.namespace.declare_queue("jobs")
        yield stand_in


@pytest.fixture
async def client(bus: AmqpStandIn) -> AsyncIterator[AsyncServiceBusClient]:
    async with AsyncServiceBusClient.from_connection_string(
        bus.connection_string, retry_total=0
    ) as client:
        yield client


async def test_what_was_sent_is_received_in_order_and_gone_once_completed(
    bus: AmqpStandIn, client: AsyncServiceBusClient
) -> None:
    async with client.get_queue_sender("jobs") as sender:
        await sender.send_messages([ServiceBusMessage("one"), ServiceBusMessage("two")])
        await sender.send_messages(
            ServiceBusMessage("three", message_id="m3", application_properties={"k": 1})
        )
    async with client.get_queue_receiver("jobs") as receiver:
        messages = await receiver.receive_messages(3, max_wait_time=5)
        assert [str(each) for each in messages] == ["one", "two", "three"]
        assert [each.sequence_number for each in messages] == [1, 2, 3]
        assert messages[2].message_id == "m3"
        assert messages[2].application_properties == {b"k": 1}
        for each in messages:
            await receiver.complete_message(each)
    assert bus.namespace.counts("jobs", bus.broker.now()).active == 0


def test_the_sync_client_does_as_well(bus: AmqpStandIn) -> None:
    with (
        ServiceBusClient.from_connection_string(bus.connection_string, retry_total=0) as client,
        client.get_queue_sender("jobs") as sender,
        client.get_queue_receiver("jobs") as receiver,
    ):
        sender.send_messages(ServiceBusMessage("one"))
        (message,) = receiver.receive_messages(1, max_wait_time=5)
        receiver.complete_message(message)
        assert str(message) == "one"
    assert bus.namespace.counts("jobs", bus.broker.now()).active == 0
