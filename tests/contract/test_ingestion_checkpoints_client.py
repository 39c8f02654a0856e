"""The client library's own consumer over a real connection, with our checkpoint store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from azure.eventhub import EventData, LoadBalancingStrategy
from azure.eventhub.aio import EventHubConsumerClient, EventHubProducerClient
from azure.eventhub.exceptions import OwnershipLostError

from examples.client_checkpoints import read
from local.amqp_broker import AmqpStandIn
from local.amqp_broker.model.properties import HubProperties
from shared.adapters.event_hubs.checkpoints import FencedCheckpointStore
from shared.adapters.sql.checkpoints import SqlPartitionRows
from shared.adapters.sql.engine import Sql
from shared.adapters.sql.schema import metadata
from tests.local.polling import until

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
HUB, PARTITIONS, EVENTS = "telemetry", 2, 10
WAIT_SECONDS = 30


@dataclass
class Reader:
    """A consumer that checkpoints each event, and the contexts that it was given."""

    client: EventHubConsumerClient
    contexts: dict[str, Any] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    owned: set[str] = field(default_factory=set)

    async def run(self) -> None:
        async with self.client:
            await self.client.receive(
                self.on_event,
                on_partition_initialize=self.on_begin,
                starting_position="-1",
            )

    async def on_event(self, context: Any, event: EventData | None) -> None:
        assert event is not None
        self.contexts[context.partition_id] = context
        await context.update_checkpoint(event)
        self.events.append(event.body_as_str())

    async def on_begin(self, context: Any) -> None:
        self.owned.add(context.partition_id)


@dataclass
class Rig:
    string: str
    sql: Sql
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self) -> Reader:
        client = EventHubConsumerClient.from_connection_string(
            self.string,
            "$Default",
            eventhub_name=HUB,
            checkpoint_store=FencedCheckpointStore(SqlPartitionRows(self.sql)),
            load_balancing_interval=0.5,
        )
        reader = Reader(client)
        self.tasks.append(asyncio.create_task(reader.run()))
        return reader

    async def send(self, name: str) -> None:
        producer = EventHubProducerClient.from_connection_string(self.string, eventhub_name=HUB)
        async with producer:
            for partition in range(PARTITIONS):
                batch = await producer.create_batch(partition_id=str(partition))
                for number in range(EVENTS):
                    batch.add(EventData(f"{name} {partition}.{number}"))
                await producer.send_batch(batch)

    async def checkpoints(self, namespace: str) -> dict[str, int]:
        store = FencedCheckpointStore(SqlPartitionRows(self.sql))
        found = await store.list_checkpoints(namespace, HUB, "$Default")
        return {each["partition_id"]: each["sequence_number"] for each in found}


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with AmqpStandIn() as stand_in:
        properties = HubProperties(partition_count=PARTITIONS)
        stand_in.broker.declare_hub(HUB, properties)
        sql = Sql(f"sqlite:///{tmp_path}/checkpoints.db", metadata)
        rig = Rig(stand_in.connection_string, sql)
        yield rig
        for task in rig.tasks:
            task.cancel()
        await asyncio.gather(*rig.tasks, return_exceptions=True)
        await sql.close()


async def test_two_clients_share_a_hub_and_the_late_one_moves_no_checkpoint_back(rig: Rig) -> None:
    await rig.send("first")
    early = rig.start()
    await until(lambda: len(early.events) == PARTITIONS * EVENTS, WAIT_SECONDS)
    late = rig.start()
    await until(lambda: len(late.owned) == PARTITIONS // 2, WAIT_SECONDS)
    await rig.send("second")
    everything = 2 * PARTITIONS * EVENTS
    await until(lambda: len({*early.events, *late.events}) == everything, WAIT_SECONDS)
    assert not any(text.startswith("first") for text in late.events), "it went on, not again"
    for partition_id in late.owned:
        newest = late.contexts[partition_id]._last_received_event
        with pytest.raises(OwnershipLostError):
            await early.contexts[partition_id].update_checkpoint(newest)
    expected = dict.fromkeys(map(str, range(PARTITIONS)), 2 * EVENTS - 1)
    context = early.contexts["0"]
    assert await rig.checkpoints(context.fully_qualified_namespace) == expected


async def test_the_example_goes_on_where_it_stopped(rig: Rig, tmp_path: Path) -> None:
    place = f"sqlite:///{tmp_path}/example.db"
    for name in ("first", "second"):
        await rig.send(name)
        lines: list[str] = []
        reading = asyncio.create_task(read(rig.string, HUB, place, lines.append))
        await until(lambda lines=lines: len(lines) == PARTITIONS * EVENTS, WAIT_SECONDS)  # type: ignore[misc]
        reading.cancel()
        await asyncio.wait([reading])
        assert all(f" {name} " in line for line in lines)


async def test_the_example_shares_evenly_and_notices_a_broken_connection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Greedy clients keep what they took first: 12, 10 and 10 of 32 partitions, for ever."""
    options: dict[str, Any] = {}

    def refuse(*_arguments: Any, **given: Any) -> None:
        options.update(given)
        raise ConnectionError

    monkeypatch.setattr(EventHubConsumerClient, "from_connection_string", refuse)
    with pytest.raises(ConnectionError):
        await read("", HUB, f"sqlite:///{tmp_path}/example.db")
    assert options["load_balancing_strategy"] is LoadBalancingStrategy.BALANCED
    assert 0 < options["idle_timeout"] <= 60
