"""The ingestion store on a real table: its readable rows, its largest ones, and lost replies."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
from azure.data.tables import TableServiceClient

from local.azurite import Azurite
from local.twins.event_hub import MemoryHubReader
from shared.ingestion.breaker.state import Breaker
from shared.ingestion.errors import StoreUnavailable
from shared.ingestion.events.accounting import Writer
from shared.ingestion.events.process_batch import Consumer, process_batch
from shared.ingestion.model import Effect, Event, OutboxMessage, Ownership, Stream
from shared.ingestion.store.breakers import BreakerSnapshot, BreakerStore
from shared.ingestion.store.events import EventStore
from shared.ingestion.store.owners import OwnershipStore
from shared.ingestion.store.tables import TableRows
from shared.settings.connections import StorageConnection
from shared.values.concurrency import JitteredRetrying, task_runner
from tests.builders import NOW
from tests.ingestion.commits import commit, effect, event, gap, letter, new_stream
from tests.storage.faulty_network import Fault, Network


@pytest.fixture
async def tables(azurite: Azurite) -> AsyncIterator[EventStore]:
    store = EventStore(TableRows(StorageConnection("Storage", azurite.connection_string)))
    yield store
    await store.close()


@pytest.mark.filterwarnings("ignore:Sending a large body")
async def test_the_largest_planned_transaction_is_committed(tables: EventStore) -> None:
    """The commit has three rows of the maximum size that plan_commits allows."""
    stream = new_stream()
    largest = [Effect(n, "x" * 509_000) for n in range(3)]
    await tables.commit(stream, await tables.load(stream), commit(None, 2, largest))


async def test_rows_are_readable_for_operators(azurite: Azurite, tables: EventStore) -> None:
    stream = new_stream("0/1")
    rows = commit(None, 9, [effect(stream, 7, value="v")], [letter(8)], [gap(0, 6)])
    await tables.commit(stream, await tables.load(stream), rows)
    key = f"ns|{stream.hub}|$Default|0=2F1"
    with TableServiceClient.from_connection_string(azurite.connection_string) as service:
        table = service.get_table_client("Ingestion")
        entities = {r["RowKey"]: r for r in table.query_entities(f"PartitionKey eq '{key}'")}
    number = "0000000000000000000"
    dead = f"dead|{number[:-1]}8"
    assert list(entities) == [
        "!checkpoint",
        dead,
        f"effect|{number[:-1]}7",
        f"gap|{number}",
        f"outbox|{number[:-1]}7|0000",
    ]
    assert entities[dead]["error"] == "ValueError: no"
    assert entities[dead]["enqueued_at"] == event(8).enqueued_at
    assert entities["!checkpoint"]["sequence"].value == 9


async def handle(event: Event) -> Effect:
    return Effect(event.sequence, "value", (OutboxMessage(f"m{event.sequence}", "body"),))


@pytest.mark.parametrize("lost", [1, 2])
async def test_a_lost_reply_neither_loses_nor_duplicates_an_event(
    tables: EventStore, lost: int
) -> None:
    """The client repeats the request by itself, and gets a conflict with its own first request."""
    stream, network, hub = new_stream(), Network(tells_time=False), MemoryHubReader()
    events = [event(n) for n in range(60)]
    hub.add(stream, *events)
    writer, runner = Writer("me", 1), task_runner(4)
    consumer = Consumer(
        stream, writer, tables, hub, handle, JitteredRetrying(), runner, lambda: uuid.uuid4().hex
    )
    with network.installed():
        network.arm(Fault("lost", ("works", *["reply lost"] * lost), of_writes=True))  # listed
        report = await process_batch(events, consumer)
        assert (network.disarm(), report.effects) == (True, 60)
    ids = [stored.message.message_id for stored in await tables.outbox(stream, 999)]
    assert ids == [f"m{n}" for n in range(60)]


async def test_an_unreachable_store_raises_store_unavailable() -> None:
    string = (
        "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=YQ==;"
        "TableEndpoint=http://127.0.0.1:9/a;"
    )
    rows = TableRows(StorageConnection("Storage", string))
    owners = OwnershipStore(rows, "ns", "hub", "$Default")
    breaker = BreakerStore(rows, "hub")
    calls = (
        EventStore(rows).outbox(Stream("ns", "hub", "$Default", "0"), 1),
        owners.owners(),
        owners.write(Ownership("0", "me", 1, None, "a claim that fails is no claim")),
        breaker.load(),
        breaker.replace(BreakerSnapshot(Breaker(), NOW), Breaker()),
    )
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(answer, StoreUnavailable), repr(answer)
    await rows.close()
