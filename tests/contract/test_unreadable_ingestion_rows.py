"""Rows of events, breakers, trends and runs that this version cannot read harm no other row."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update

from local.azurite import Azurite
from shared.adapters.sql.engine import Sql
from shared.adapters.sql.ingestion import SqlIngestionStore
from shared.adapters.sql.schema import dead_letters, metadata
from shared.adapters.tables.breaker import TableBreakerStore
from shared.adapters.tables.ingestion import TableIngestionStore
from shared.adapters.tables.ingestion_rows import numbered, partition_key
from shared.adapters.tables.notifications import TableNotificationStore
from shared.adapters.tables.ownership import TableOwnershipStore
from shared.adapters.tables.runs import TableRunStore
from shared.adapters.tables.table import Table, joined, key
from shared.adapters.tables.trends import TableTrends
from shared.ingestion.dead_letters import find as finding
from shared.ingestion.errors import RowUnreadable
from shared.ingestion.model import FailureKind
from shared.ingestion.operating import notices as news
from shared.ingestion.ownership.load_balancing import OwnershipClaim
from shared.nightly.model import Demand
from shared.notifications import flow
from shared.notifications.news import News
from shared.notifications.ports import Observed
from shared.notifications.selection import NotificationIntervals
from shared.sampling.trend_rows import Trend, trend_row
from shared.settings.connections import StorageConnection
from shared.web import panels
from shared.web.attention import attention
from tests.builders import NOW
from tests.contract.ingestion import commit, effect, letter, new_stream
from tests.notifications.test_notifications import People


@pytest.fixture(scope="module")
def azurite() -> Iterator[Azurite]:
    """A storage of this module's own: these rows would make other tests' reading fail, and the
    newest of all dead letters are those of whoever ran before."""
    with Azurite() as running:
        yield running


@pytest.fixture
def storage(azurite: Azurite) -> StorageConnection:
    return StorageConnection("Storage", azurite.connection_string)


@pytest.fixture
async def store(storage: StorageConnection) -> AsyncIterator[TableIngestionStore]:
    opened = TableIngestionStore(storage)
    yield opened
    await opened.close()


async def overwrite(storage: StorageConnection, name: str, row: dict[str, Any]) -> None:
    table = Table(storage, name)
    await table.overwrite(row)
    await table.close()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"kind": "quarantined"}, "'quarantined' is not a valid FailureKind"),
        ({"kind": "poison", "failed_at": "yesterday"}, "AttributeError"),
        ({}, "KeyError"),
    ],
)
async def test_a_dead_letter_that_cannot_be_read_is_shown_as_such_among_the_others(
    storage: StorageConnection, store: TableIngestionStore, fields: dict[str, Any], why: str
) -> None:
    stream = new_stream()
    plan = commit(None, 9, dead_letters=[letter(2), letter(7)])
    await store.commit(stream, await store.load(stream), plan)
    row_key = numbered("dead", 5)
    known = {"offset": "", "enqueued_at": NOW, "failed_at": NOW, "attempts": 1} if fields else {}
    row = {"PartitionKey": partition_key(stream), "RowKey": row_key, "sequence": 5, **known}
    row |= fields
    await overwrite(storage, "Ingestion", row)
    found = await store.newest_dead_letters(stream, 9)
    assert [stored.letter.sequence for stored in found] == [7, 5, 2]
    unreadable = found[1].letter
    assert unreadable.kind is FailureKind.UNREADABLE
    assert f"{row_key}' of table Ingestion cannot be read" in unreadable.error
    assert why in unreadable.error
    shown = [panels.dead_letter(stored.stream, stored.letter) for stored in found]
    assert [each["kind"] for each in shown] == ["poison", "unreadable", "poison"]
    wanted = finding.DeadLetterQuery(hub=stream.hub)
    assert len(await finding.find(store, wanted, 9)) == 3
    assert len(await finding.find(store, replace(wanted, kind=FailureKind.POISON), 9)) == 2
    await store.remove(found[1])  # a person gives it up
    assert len(await store.newest_dead_letters(stream, 9)) == 2


async def test_of_the_database_a_letter_of_an_unknown_kind_is_kept_with_its_body() -> None:
    sql = Sql("sqlite://", metadata)
    store, stream = SqlIngestionStore(sql), new_stream()
    plan = commit(None, 9, dead_letters=[letter(2), letter(7)])
    await store.commit(stream, await store.load(stream), plan)
    change = update(dead_letters).where(dead_letters.c.sequence == 7).values(kind="quarantined")
    await sql.write(lambda c: c.execute(change))
    newest, other = await store.newest_dead_letters(stream, 9)
    assert (newest.letter.kind, newest.letter.body) == (FailureKind.UNREADABLE, b"{}")
    assert "Kind is 'quarantined'" in newest.letter.error
    assert other.letter.kind is FailureKind.POISON
    await store.remove(newest)
    await sql.close()


async def test_a_gap_that_cannot_be_read_is_told_by_its_first_number(
    storage: StorageConnection, store: TableIngestionStore
) -> None:
    stream = new_stream()
    await store.commit(stream, await store.load(stream), commit(None, 9, dead_letters=[letter(2)]))
    row = {"PartitionKey": partition_key(stream), "RowKey": numbered("gap", 4)}
    await overwrite(storage, "Ingestion", {**row, "found_at": datetime.now(UTC), "first": "4"})
    (gap,) = await store.gaps(stream, None, 9)
    assert gap.first == 4
    assert "cannot be read" in gap.reason
    told = await news.run(store, store, NOW - timedelta(days=1))
    ours = [each for each in told if each.subject.startswith(stream.hub)]
    assert [each.kind for each in ours] == ["dead.letters.growing", "events.gone"]


async def test_a_stream_or_checkpoint_that_cannot_be_read_stops_no_other(
    storage: StorageConnection, store: TableIngestionStore
) -> None:
    good, bad = new_stream("0"), new_stream("1")
    for stream in (good, bad):
        plan = commit(None, 9, dead_letters=[letter(2)])
        await store.commit(stream, await store.load(stream), plan)
    key_of_bad = partition_key(bad)
    row = {"PartitionKey": key_of_bad, "RowKey": "!checkpoint", "sequence": "many"}
    await overwrite(storage, "Ingestion", row)
    with pytest.raises(RowUnreadable, match=r"!checkpoint' of table Ingestion cannot be read"):
        await store.load(bad)
    found = await finding.newest(store, 1000)
    assert {stored.stream for stored in found} >= {good, bad}
    told = await news.run(store, store, NOW - timedelta(days=1))
    assert {each.subject.split("/")[0] for each in told} >= {good.hub, bad.hub}
    await overwrite(storage, "Ingestion", {"PartitionKey": "!streams", "RowKey": key_of_bad})
    streams = await store.streams()
    assert good in streams
    assert bad not in streams


@pytest.mark.parametrize("state", [{"state": '{"mode": "ajar"}'}, {"state": 7}, {}])
async def test_a_breaker_that_cannot_be_read_says_what_to_do(
    storage: StorageConnection, state: dict[str, Any]
) -> None:
    name = uuid.uuid4().hex
    row = {"PartitionKey": key(name), "RowKey": "!state", **state}
    await overwrite(storage, "Breaker", row)
    breakers = TableBreakerStore(storage, name)
    with pytest.raises(RowUnreadable, match="deploy the version that wrote it, or delete it"):
        await breakers.load()
    bad = {"PartitionKey": key(name), "RowKey": "tally|2026-03-01T12:00:00|x", "successes": "?"}
    await overwrite(storage, "Breaker", bad)
    assert await breakers.tallies(NOW - timedelta(hours=1)) == []
    await breakers.close()


@pytest.mark.parametrize("broken", [{}, {"message_id": "a", "taken": "often"}, {"body_0": 7}])
async def test_a_message_that_cannot_be_read_holds_up_no_other(
    storage: StorageConnection,
    store: TableIngestionStore,
    broken: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream = new_stream()
    await store.commit(stream, await store.load(stream), commit(None, 2, [effect(stream, 2)]))
    row_key = f"{numbered('outbox', 1)}|0000"
    keys = {"PartitionKey": partition_key(stream), "RowKey": row_key}
    await overwrite(storage, "Ingestion", {**keys, **broken})
    assert [each.sequence for each in await store.outbox(stream, 9)] == [2]
    assert f"[message_unreadable] row '{partition_key(stream)}/{row_key}'" in caplog.text
    assert "deploy the version that wrote it, or correct or delete the row" in caplog.text


async def test_an_owner_that_cannot_be_read_hides_no_other(storage: StorageConnection) -> None:
    group = ("ns", uuid.uuid4().hex, "$Default")
    owners = TableOwnershipStore(storage, *group)
    await owners.write(OwnershipClaim("0", "me", 1, None, "free"))
    await overwrite(storage, "Ownership", {"PartitionKey": joined(*group), "RowKey": "1"})
    assert [row.partition_id for row in (await owners.owners()).rows] == ["0"]
    await owners.close()


@pytest.mark.parametrize(
    "broken",
    [{"dimensions": "[1]"}, {"adjusted_count": "many"}, {"evidence": "{"}, {"date": "soon"}],
)
async def test_a_trend_that_cannot_be_read_is_shown_as_such_beside_the_others(
    storage: StorageConnection, broken: dict[str, Any]
) -> None:
    name, day = f"checkout-{uuid.uuid4().hex[:8]}", "2032-01-01"
    good = Trend(day, name, "AppEvents", verdict="normal")
    bad = {**trend_row(replace(good, event=f"bad-{name}")), **broken}
    for row in (trend_row(good), bad):
        await overwrite(storage, "Trends", row)
    trends = TableTrends(storage)
    found = [t for t in await trends.since(date(2032, 1, 1)) if name in t.event]
    await trends.close()
    shown = panels.trends(found)
    by_verdict = {series["verdict"]: series for series in shown}
    assert len(by_verdict["normal"]["days"]) == 1
    assert by_verdict["unreadable"]["days"] == [], "no zero for what is not known"
    (item,) = attention([], {"trends": shown})
    assert f"bad-{name}" in item["what"]
    assert "of table Trends cannot be read" in item["what"]


async def test_a_run_that_cannot_be_read_leaves_its_date_alone_and_no_other(
    storage: StorageConnection, caplog: pytest.LogCaptureFixture
) -> None:
    dataset, runs = f"events-{uuid.uuid4().hex[:8]}", TableRunStore(storage)
    days = [date(2026, 3, n) for n in (1, 2, 3)]
    for day in days:
        assert await runs.ask(dataset, Demand(day, NOW, "the night"))
    row = {"PartitionKey": key(dataset), "RowKey": f"{days[0]}|run|0001", "state": "paused"}
    await overwrite(storage, "TrendRuns", row)
    demand = {"PartitionKey": key(dataset), "RowKey": f"{days[1]}|demand", "data_until": "soon"}
    await overwrite(storage, "TrendRuns", demand)
    assert set((await runs.read(dataset)).days) == {days[2]}
    assert f"[run_unreadable] {dataset} {days[0]}|run|0001" in caplog.text
    assert await runs.ask(dataset, Demand(days[1], NOW, "the night")), "asked for anew"
    assert set((await runs.read(dataset)).days) == set(days[1:])
    await runs.close()


async def test_what_was_told_and_cannot_be_read_is_told_once_more_and_then_remembered(
    storage: StorageConnection,
) -> None:
    kind, people = f"kind-{uuid.uuid4().hex[:8]}", People()
    memories = TableNotificationStore(storage)

    async def look(_since: datetime, now: datetime) -> Observed:
        return Observed([News("1", kind, "plan-1", now - timedelta(minutes=1), "scaled")])

    async def told() -> int:
        before = len(people.read)
        await flow.run({kind: look}, memories, people, NotificationIntervals())
        return len(people.read) - before

    assert [await told(), await told()] == [1, 0]
    row = {"PartitionKey": key(kind), "RowKey": "plan-1", "kind": kind, "subject": "plan-1"}
    await overwrite(storage, "Notifications", {**row, "sent_at": "not a time"})
    look_row = {"PartitionKey": "!look", "RowKey": key(kind), "subject": kind, "kind": "!look"}
    await overwrite(storage, "Notifications", look_row)
    assert [await told(), await told()] == [1, 0]
    assert kind in (await memories.read()).progress
    await overwrite(storage, "Notifications", {"PartitionKey": key(kind), "RowKey": "odd"})
    assert await told() == 0
    await memories.close()


@pytest.mark.parametrize("typed", ["0001-01-01T00:00:00+00:00", "9999-12-31T23:59:59+00:00"])
async def test_a_time_that_nobody_can_reckon_with_silences_nothing(
    storage: StorageConnection, typed: str
) -> None:
    kind, source, people = f"kind-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex[:8], People()
    row = {"PartitionKey": kind, "RowKey": "plan-1", "kind": kind, "subject": "plan-1"}
    await overwrite(storage, "Notifications", {**row, "sent_at": typed, "lasting_since": typed})
    look_row = {"PartitionKey": "!look", "RowKey": source, "kind": "!look", "subject": source}
    await overwrite(storage, "Notifications", {**look_row, "seen_until": typed})
    memories = TableNotificationStore(storage)

    async def look(_since: datetime, now: datetime) -> Observed:
        return Observed([News("1", kind, "plan-1", now - timedelta(minutes=1), "scaled")])

    assert await flow.run({source: look}, memories, people, NotificationIntervals()) == 1
    await memories.close()
