"""The ingestion store on a real table: its limits, its readable rows, and lost replies."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from azure.core.exceptions import ServiceResponseError
from azure.data.tables import TableServiceClient

from local.azurite import Azurite
from local.twins.event_hub import MemoryHubReader
from shared.azure.retry import JitteredRetrying
from shared.azure.transport import ServerTimeTransport
from shared.ingestion.breaker.state import Breaker
from shared.ingestion.errors import AccountingBroken, StoreUnavailable
from shared.ingestion.events.accounting import Writer
from shared.ingestion.events.process_batch import Consumer, process_batch
from shared.ingestion.model import Effect, Event, OutboxMessage, OwnershipClaim, Stream
from shared.ingestion.store.breakers import BreakerSnapshot, BreakerStore
from shared.ingestion.store.events import EventStore
from shared.ingestion.store.owners import OwnershipStore
from shared.ingestion.store.tables import TableRows
from shared.settings.connections import StorageConnection
from shared.values.concurrency import task_runner
from tests.builders import NOW
from tests.contract.ingestion import commit, effect, event, gap, letter, new_stream


@pytest.fixture
async def tables(azurite: Azurite) -> AsyncIterator[EventStore]:
    store = EventStore(TableRows(StorageConnection("Storage", azurite.connection_string)))
    yield store
    await store.close()


async def test_a_commit_with_too_many_rows_raises_an_error(tables: EventStore) -> None:
    stream = new_stream()
    saved = await tables.load(stream)
    many = commit(None, 99, [effect(stream, n) for n in range(100)])
    with pytest.raises(AccountingBroken):
        await tables.commit(stream, saved, many)
    assert stream not in await tables.streams()
    saved = await tables.commit(stream, saved, commit(None, 1, dead_letters=[letter(1)]))
    (stored,) = await tables.dead_letters(stream, None, 9)
    with pytest.raises(AccountingBroken):
        await tables.redrive(stored, effect(stream, 1, messages=100))
    assert len(await tables.dead_letters(stream, None, 9)) == 1


@pytest.mark.filterwarnings("ignore:Sending a large body")
async def test_the_largest_planned_transaction_is_committed(
    tables: EventStore,
) -> None:
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
    assert list(entities) == [
        "!checkpoint",
        f"dead|{number[:-1]}8",
        f"effect|{number[:-1]}7",
        f"gap|{number}",
        f"outbox|{number[:-1]}7|0000",
    ]
    assert entities[f"dead|{number[:-1]}8"]["error"] == "ValueError: no"
    assert entities[f"dead|{number[:-1]}8"]["enqueued_at"] == event(8).enqueued_at
    assert entities["!checkpoint"]["sequence"].value == 9


class Wire:
    """A network that loses replies: the service executes the request, the client gets an error."""

    def __init__(self, send: Callable[..., Any]) -> None:
        self._send = send
        self.lose = 0
        self.requests = 0

    async def send(self, transport: ServerTimeTransport, request: Any, **options: Any) -> Any:
        response = await self._send(transport, request, **options)
        if "$batch" in request.url:
            self.requests += 1
            if self.lose:
                self.lose -= 1
                raise ServiceResponseError("the reply was lost")
        return response


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    wire = Wire(ServerTimeTransport.send)

    async def send(transport: ServerTimeTransport, request: Any, **options: Any) -> Any:
        return await wire.send(transport, request, **options)

    monkeypatch.setattr(ServerTimeTransport, "send", send)
    return wire


async def handle(event: Event) -> Effect:
    message = OutboxMessage(f"m{event.sequence}", "body")
    return Effect(event.sequence, "value", (message,))


@pytest.mark.parametrize("lost", [1, 2])
async def test_a_lost_reply_neither_loses_nor_duplicates_an_event(
    tables: EventStore, wire: Wire, lost: int
) -> None:
    """The client repeats the request by itself, and gets a conflict with its own first request."""
    stream = new_stream()
    hub, events = MemoryHubReader(), [event(n) for n in range(60)]
    hub.add(stream, *events)
    consumer = Consumer(
        stream,
        Writer("me", 1),
        tables,
        hub,
        handle,
        JitteredRetrying(),
        task_runner(4),
        lambda: uuid.uuid4().hex,
    )
    wire.lose = lost
    report = await process_batch(events, consumer)
    assert (wire.lose, report.effects) == (0, 60)
    ids = [stored.message.message_id for stored in await tables.outbox(stream, 999)]
    assert ids == [f"m{n}" for n in range(60)]


GONE = StorageConnection(
    "Storage",
    "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=YQ==;"
    "TableEndpoint=http://127.0.0.1:9/a;",
)


async def test_an_unreachable_store_raises_store_unavailable() -> None:
    store = EventStore(TableRows(GONE))
    owners = OwnershipStore(TableRows(GONE), "ns", "hub", "$Default")
    breaker = BreakerStore(TableRows(GONE), "hub")
    calls = (
        store.outbox(Stream("ns", "hub", "$Default", "0"), 1),
        owners.owners(),
        owners.write(OwnershipClaim("0", "me", 1, None, "a claim that fails is no claim")),
        breaker.load(),
        breaker.replace(BreakerSnapshot(Breaker(), NOW), Breaker()),
    )
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(answer, StoreUnavailable), repr(answer)
    for each in (store, owners, breaker):
        await each.close()
