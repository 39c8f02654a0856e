"""A receiver with the real client reports a refused or broken connection within a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from shared.ingestion.errors import HubUnavailable
from shared.ingestion.hub.client import EventHubReader, send_event
from shared.ingestion.hub.receiver import EventHubReceiver
from shared.ingestion.model import Event
from shared.settings.connections import EventHubConnection
from tests.emulators.rig import Hub, a_partition
from tests.local.amqp_rig import LEAVES_SOCKETS_OPEN, forget_open_sockets
from tests.local.half_open import HalfOpenProxy
from tests.local.polling import until

pytestmark = LEAVES_SOCKETS_OPEN
SECONDS_MAX = 30.0
IDLE_SECONDS = 1.0


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with a_partition() as hub:
        yield hub
    forget_open_sockets()


def through(proxy: HalfOpenProxy, hub: Hub) -> EventHubConnection:
    string = proxy.through(hub.connection.connection_string)
    return replace(hub.connection, connection_string=string)


def port_of(hub: Hub) -> int:
    port = urlsplit(f"//{hub.connection.namespace}").port
    assert port is not None
    return port


class Receiving:
    """A receiver of the partition, directly or through a proxy, and what it delivered."""

    def __init__(
        self,
        hub: Hub,
        connection: EventHubConnection | None = None,
        **options: Any,
    ) -> None:
        self.batches = list[Sequence[Event]]()
        options = {"wait_seconds": 0.2, **options}
        receiver = EventHubReceiver(connection or hub.connection, "$Default", **options)
        self.task = asyncio.create_task(receiver.receive(hub.partition, hub.after, 1, self.deliver))

    async def deliver(self, events: Sequence[Event]) -> None:
        self.batches.append(events)

    async def ended(self) -> None:
        await asyncio.wait_for(self.task, SECONDS_MAX)

    async def stop(self) -> None:
        assert not self.task.done()
        self.task.cancel()
        await asyncio.wait([self.task])


async def test_a_connection_that_drops_all_packets_is_reported(hub: Hub) -> None:
    """While events arrive, and from the start."""
    async with HalfOpenProxy(port_of(hub)) as proxy:
        connection = through(proxy, hub)
        receiving = Receiving(hub, connection, idle_seconds=IDLE_SECONDS)
        await hub.send(*[f"event {n}" for n in range(3)])
        await until(lambda: sum(map(len, receiving.batches)) == 3, SECONDS_MAX)
        proxy.swallow()
        with pytest.raises(HubUnavailable):
            await receiving.ended()
        proxy.swallow(new=True)
        with pytest.raises(HubUnavailable):
            await Receiving(hub, connection, silent_seconds_max=1).ended()


async def test_requests_over_a_connection_that_drops_all_packets_time_out(hub: Hub) -> None:
    async with HalfOpenProxy(port_of(hub)) as proxy:
        connection = through(proxy, hub)
        proxy.swallow(new=True)
        reader = EventHubReader(connection, "$Default", timeout_seconds=0.5)
        for request in (reader.partition_ids(), send_event(connection, b"lost", seconds_max=0.5)):
            with pytest.raises(HubUnavailable, match=r"no answer within 0\.5 s"):
                await asyncio.wait_for(request, SECONDS_MAX)


async def test_a_connection_without_events_stays_open(hub: Hub) -> None:
    """The client requests heartbeats, so that it does not mistake a lack of events for a broken
    connection."""
    receiving = Receiving(hub, idle_seconds=IDLE_SECONDS)
    await until(lambda: len(receiving.batches) >= 3 * IDLE_SECONDS / 0.2, SECONDS_MAX)
    await receiving.stop()
