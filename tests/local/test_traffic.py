"""The workload's messages in the broker, which the app's reader counts and clients receive."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from azure.servicebus.aio import ServiceBusClient

from backtest.traces.reading import Trace
from local.amqp_broker.administration import ServiceBusStandIn, service_bus
from local.demo import profile
from local.demo.system import declare_entities
from local.demo.traffic import Traffic
from local.demo.workload import Workload
from shared.autoscaling.services.clients import ServiceBusReader
from shared.autoscaling.sources import ServiceBusSubscription
from shared.settings.connections import ServiceBusConnection

BACKLOG = ServiceBusSubscription(profile.TOPIC, profile.SUBSCRIPTION)
RATE_PER_MINUTE = 10
ARRIVALS = (100.0, 100.0, 0.5, 0.0)


class World:
    """One instance, a start-up time of three minutes, and a clock that the test moves."""

    def __init__(self, bus: ServiceBusStandIn) -> None:
        self.bus = bus
        self.minute = 0.0
        trace = Trace(datetime(2026, 1, 1, tzinfo=UTC), ARRIVALS)
        self.workload = Workload(trace, instance_rate_per_minute=RATE_PER_MINUTE)
        self.traffic = Traffic(
            self.workload,
            lambda: self.minute,
            bus.amqp.broker,
            topic=profile.TOPIC,
            subscription=profile.SUBSCRIPTION,
            plan=profile.PLAN,
        )

    async def waiting_at(self, minute: float) -> float:
        self.minute = minute
        self.traffic.advance()
        connection = ServiceBusConnection("bus", self.bus.connection_string)
        reader = ServiceBusReader(connection)
        try:
            return (await reader.read(BACKLOG)).value
        finally:
            await reader.close()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with service_bus() as bus:
        declare_entities(bus.amqp.broker)
        yield World(bus)


async def test_the_app_counts_the_items_that_have_arrived_and_are_not_drained(world: World) -> None:
    assert await world.waiting_at(0) == 0
    assert await world.waiting_at(2) == 180
    world.traffic.on_capacity_ordered(profile.PLAN, 10)
    assert await world.waiting_at(5) == 150
    assert await world.waiting_at(6) == 50
    assert await world.waiting_at(60) == 0
    assert world.workload.counters.drained == 200.5


async def test_the_messages_can_be_received_by_a_client(world: World) -> None:
    await world.waiting_at(1)
    async with (
        ServiceBusClient.from_connection_string(world.bus.connection_string) as client,
        client.get_subscription_receiver(profile.TOPIC, profile.SUBSCRIPTION) as receiver,
    ):
        (message,) = await receiver.receive_messages(1, max_wait_time=5)
        assert str(message) == "an item of the trace"
        await receiver.complete_message(message)
    assert await world.waiting_at(1) == 89
    assert await world.waiting_at(60) == 0
