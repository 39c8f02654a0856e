"""An unreadable row of ingestion, trends, runs or notifications affects no other row."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update

from local.azurite import Azurite
from shared.ingestion.dead_letters import find as finding
from shared.ingestion.errors import RowUnreadable
from shared.ingestion.events.retention import EffectRetention
from shared.ingestion.model import LONG_AGO, FailureKind, Ownership, Stream
from shared.ingestion.operating import event_news as news
from shared.ingestion.store.breakers import BreakerStore
from shared.ingestion.store.events import EventStore
from shared.ingestion.store.owners import OwnershipStore
from shared.ingestion.store.rows import CHECKPOINT, DEAD, GAP, MARK, OUTBOX
from shared.ingestion.store.sql import SqlRows
from shared.ingestion.store.sql_engine import Sql
from shared.ingestion.store.sql_schema import dead_letters, metadata
from shared.ingestion.store.tables import TableRows, row_key, row_of
from shared.notifications import flow
from shared.notifications.ports import Observed
from shared.notifications.selection import NotificationIntervals
from shared.notifications.store import TableNotificationStore
from shared.sampling.trend_rows import Trend, trend_row
from shared.settings.connections import StorageConnection
from shared.storage.tables import Table, joined, key
from shared.trends.nightly.model import Demand, Run, RunState
from shared.trends.nightly.trend_news import trend_conditions
from shared.trends.store.runs import TableRunStore
from shared.trends.store.trends import TableTrends
from shared.values.news import News
from shared.web import panels
from tests.builders import NOW
from tests.ingestion.commits import checkpoint, commit, effect, letter, new_stream
from tests.notifications.test_notifications import Recipient


@pytest.fixture(scope="module")
def azurite() -> Iterator[Azurite]:
    """A separate emulator for this module. Its rows would make other tests fail, and the dead
    letters of other tests would be among the newest ones."""
    with Azurite() as running:
        yield running


@pytest.fixture
def storage(azurite: Azurite) -> StorageConnection:
    return StorageConnection("Storage", azurite.connection_string)


@pytest.fixture
async def store(storage: StorageConnection) -> AsyncIterator[EventStore]:
    opened = EventStore(TableRows(storage))
    yield opened
    await opened.close()


class Rows:
    """Writes single rows as a person or another version might."""

    def __init__(self, storage: StorageConnection) -> None:
        self.storage = storage

    async def put(self, name: str, partition: str, row: str, **fields: Any) -> None:
        """Write a row, keeping the fields that it has and that are not given."""
        table, keys = Table(self.storage, name), {"PartitionKey": partition, "RowKey": row}
        await table.overwrite({**(await table.get(partition, row) or {}), **keys, **fields})
        await table.close()


@pytest.fixture
def rows(storage: StorageConnection) -> Rows:
    return Rows(storage)


async def filled(store: EventStore, *letters: int, partition_id: str = "0") -> Stream:
    stream = new_stream(partition_id)
    plan = commit(None, 9, dead_letters=[letter(n) for n in letters])
    await store.commit(stream, await store.load(stream), plan)
    return stream


# --- events -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"kind": "quarantined", "body": b"{}"}, "'quarantined' is not a valid FailureKind"),
        ({"kind": "poison", "failed_at": "yesterday"}, "AttributeError"),
        ({}, "KeyError"),
    ],
)
async def test_an_unreadable_dead_letter_is_shown_as_unreadable_among_the_others(
    rows: Rows, store: EventStore, fields: dict[str, Any], why: str
) -> None:
    stream, key_of_row = await filled(store, 2, 7), row_key(DEAD, (5,))
    if fields:
        fields = {"offset": "", "enqueued_at": NOW, "failed_at": NOW, "attempts": 1, **fields}
    await rows.put("Ingestion", joined(*stream.place), key_of_row, sequence=5, **fields)
    letters = await store.newest_dead_letters(stream, 9)
    assert [stored.letter.sequence for stored in letters] == [7, 5, 2]
    unreadable = letters[1].letter
    assert unreadable.kind is FailureKind.UNREADABLE
    assert f"{key_of_row}' of table Ingestion cannot be read" in unreadable.error
    assert why in unreadable.error
    assert unreadable.body == fields.get("body"), "what can be read is kept"
    shown = [panels.dead_letter(stored) for stored in letters]
    assert [each["kind"] for each in shown] == ["poison", "unreadable", "poison"]
    query = finding.DeadLetterQuery(hub=stream.hub)
    assert len(await finding.find(store, query, 9)) == 3
    assert len(await finding.find(store, replace(query, kind=FailureKind.POISON), 9)) == 2
    await store.remove(letters[1])  # an operator removes it
    assert len(await store.newest_dead_letters(stream, 9)) == 2


async def test_a_dead_letter_of_an_unknown_kind_keeps_its_body_in_a_database() -> None:
    sql = Sql("sqlite://", metadata)
    store = EventStore(SqlRows(sql))
    stream = await filled(store, 2, 7)
    change = update(dead_letters).where(dead_letters.c.sequence == 7).values(kind="quarantined")
    await sql.write(lambda c: c.execute(change))
    newest, other = await store.newest_dead_letters(stream, 9)
    assert (newest.letter.kind, newest.letter.body) == (FailureKind.UNREADABLE, b"{}")
    assert "'quarantined' is not a valid FailureKind). Its error: " in newest.letter.error
    assert other.letter.kind is FailureKind.POISON
    await store.remove(newest)
    await sql.close()


async def test_a_checkpoint_without_a_count_of_events_set_aside_is_read(
    rows: Rows, store: EventStore
) -> None:
    """An earlier version did not write this count."""
    stream, written = new_stream(), checkpoint(2)
    row = row_of(CHECKPOINT, joined(*stream.place), written)
    partition, name, _ = (row.pop(each) for each in ("PartitionKey", "RowKey", "set_aside"))
    await rows.put("Ingestion", partition, name, **row)
    assert (await store.load(stream)).checkpoint == written


async def test_an_unreadable_gap_is_reported_with_its_first_number(
    rows: Rows, store: EventStore
) -> None:
    stream = await filled(store, 2)
    odd = {"found_at": datetime.now(UTC), "first": "4"}
    await rows.put("Ingestion", joined(*stream.place), row_key(GAP, (4,)), **odd)
    (gap,) = await store.gaps(stream, None, 9)
    assert gap.first == 4
    assert "cannot be read" in gap.reason
    notifications = await news.news_since(store, NOW - timedelta(days=1))
    ours = [each for each in notifications if each.subject.startswith(stream.hub)]
    assert [each.kind for each in ours] == ["dead.letters.growing", "events.gone"]


async def test_an_unreadable_mark_is_reported_and_stops_the_cleanup_of_its_stream_only(
    rows: Rows, store: EventStore, caplog: pytest.LogCaptureFixture
) -> None:
    streams = [await filled(store, 2, partition_id=each) for each in "01"]
    bad, good = sorted(streams, key=lambda stream: joined(*stream.place))
    key_of_row = row_key(MARK, (LONG_AGO + timedelta(microseconds=7),))
    await rows.put("Ingestion", joined(*bad.place), key_of_row, at="yesterday")
    with pytest.raises(RowUnreadable, match=r"mark\|0*7' of table Ingestion cannot be read"):
        await store.marks(bad)
    await EffectRetention(store, timedelta(days=1), elapsed=lambda: 0).clean_up()
    assert len(await store.marks(good)) == 1
    (warning,) = [each for each in caplog.messages if joined(*bad.place) in each]
    assert warning.startswith("[not_tidied] row ")
    assert "delete the row" in warning


async def test_an_unreadable_stream_or_checkpoint_stops_no_other(
    rows: Rows, store: EventStore
) -> None:
    good, bad = [await filled(store, 2, partition_id=each) for each in "01"]
    key_of_bad = joined(*bad.place)
    await rows.put("Ingestion", key_of_bad, "!checkpoint", sequence="many")
    with pytest.raises(RowUnreadable, match=r"!checkpoint' of table Ingestion cannot be read"):
        await store.load(bad)
    newest = await finding.newest(store, 1000)
    assert {stored.stream for stored in newest} >= {good, bad}
    notifications = await news.news_since(store, NOW - timedelta(days=1))
    assert {each.subject.split("/")[0] for each in notifications} >= {good.hub, bad.hub}
    await rows.put("Ingestion", "!streams", key_of_bad, hub=7)
    assert {good, bad} & set(await store.streams()) == {good}


@pytest.mark.parametrize("broken", [{}, {"message_id": "a", "taken": "often"}, {"body_0": 7}])
async def test_an_unreadable_message_holds_up_no_other(
    rows: Rows, store: EventStore, broken: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    stream = new_stream()
    await store.commit(stream, await store.load(stream), commit(None, 2, [effect(stream, 2)]))
    key_of_row = row_key(OUTBOX, (1, 0))
    await rows.put("Ingestion", joined(*stream.place), key_of_row, **broken)
    assert [each.sequence for each in await store.outbox(stream, 9)] == [2]
    assert f"[message_unreadable] row '{joined(*stream.place)}/{key_of_row}'" in caplog.text
    assert "deploy the version that wrote it, or correct or delete the row" in caplog.text


# --- breakers and owners ------------------------------------------------------------------------


@pytest.mark.parametrize("state", [{"state": '{"mode": "ajar"}'}, {"state": 7}, {}])
async def test_an_unreadable_breaker_raises_an_error_that_says_what_to_do(
    rows: Rows, storage: StorageConnection, state: dict[str, Any]
) -> None:
    name = uuid.uuid4().hex
    await rows.put("Breaker", key(name), "!state", **state)
    breakers = BreakerStore(TableRows(storage), name)
    with pytest.raises(RowUnreadable, match="deploy the version that wrote it, or delete the row"):
        await breakers.load()
    await rows.put("Breaker", key(name), "tally|2026-03-01T12:00:00|x", successes="?")
    assert await breakers.tallies(NOW - timedelta(hours=1)) == []
    await breakers.close()


async def test_an_unreadable_owner_hides_no_other(rows: Rows, storage: StorageConnection) -> None:
    group = ("ns", uuid.uuid4().hex, "$Default")
    owners = OwnershipStore(TableRows(storage), *group)
    await owners.write(Ownership("0", "me", 1, None, "free"))
    await rows.put("Ownership", joined(*group), "1")
    assert [row.partition_id for row in (await owners.owners()).rows] == ["0"]
    await owners.close()


# --- trends and runs ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "broken",
    [{"dimensions": "[1]"}, {"adjusted_count": "many"}, {"evidence": "{"}, {"date": "soon"}],
)
async def test_an_unreadable_trend_is_shown_as_unreadable_beside_the_others(
    rows: Rows, storage: StorageConnection, broken: dict[str, Any]
) -> None:
    name, day = f"checkout-{uuid.uuid4().hex[:8]}", "2032-01-01"
    good = Trend(day, name, "AppEvents", verdict="normal")
    bad = {**trend_row(replace(good, event=f"bad-{name}")), **broken}
    for row in (trend_row(good), bad):
        await rows.put("Trends", row.pop("PartitionKey"), row.pop("RowKey"), **row)
    trends = TableTrends(storage)
    read = [t for t in await trends.since(date(2032, 1, 1)) if name in t.event]
    await trends.close()
    by_verdict = {series["verdict"]: series for series in panels.trends(read)}
    assert len(by_verdict["normal"]["days"]) == 1
    assert by_verdict["unreadable"]["days"] == [], "an unknown value is not zero"
    (found,) = trend_conditions(read)
    assert f"bad-{name}" in found.what
    assert "of table Trends cannot be read" in found.meaning


@pytest.mark.parametrize(
    "typed",
    [
        {"state": "paused"},
        {"changed_at": "2026-03-01T12:00:00"},  # no zone, so it cannot be compared with other times
        {"retry_at": "9999-12-31T23:59:59+00:00"},
        {"submits": "1"},
    ],
)
async def test_only_the_date_of_an_unreadable_run_is_skipped(
    rows: Rows,
    storage: StorageConnection,
    caplog: pytest.LogCaptureFixture,
    typed: dict[str, str],
) -> None:
    dataset, runs = f"events-{uuid.uuid4().hex[:8]}", TableRunStore(storage)
    days = [date(2026, 3, n) for n in (1, 2, 3)]
    for day in days:
        assert await runs.ask(dataset, Demand(day, NOW, "nightly run"))
    await runs.write(Run(dataset, days[0], 1, 1, "token", NOW, RunState.SUBMITTING, NOW, NOW))
    await rows.put("TrendRuns", key(dataset), f"{days[0]}|run|0001", **typed)
    await rows.put("TrendRuns", key(dataset), f"{days[1]}|demand", data_until="soon")
    assert set((await runs.read(dataset)).days) == {days[2]}
    assert f"[run_unreadable] {dataset} {days[0]}|run|0001" in caplog.text
    assert await runs.ask(dataset, Demand(days[1], NOW, "nightly run")), "the demand is replaced"
    assert set((await runs.read(dataset)).days) == set(days[1:])
    await runs.close()


# --- notifications ------------------------------------------------------------------------------


@dataclass
class Notified:
    """Observes one piece of news about plan-1 from one source again and again."""

    store: TableNotificationStore
    kind: str
    people: Recipient = field(default_factory=Recipient)

    async def count(self) -> int:
        """How many notifications this observation sends."""

        async def look(_since: datetime, now: datetime) -> Observed:
            return Observed([News("1", self.kind, "plan-1", now - timedelta(minutes=1), "scaled")])

        before, looks = len(self.people.received), {"world": look}
        await flow.send_due_notifications(
            looks, self.store, {"": self.people}, NotificationIntervals()
        )
        return len(self.people.received) - before


@pytest.fixture
async def notified(storage: StorageConnection) -> AsyncIterator[Notified]:
    store = TableNotificationStore(storage)
    yield Notified(store, f"kind-{uuid.uuid4().hex[:8]}")
    await store.close()


async def test_a_subject_with_an_unreadable_record_is_notified_once_more(
    rows: Rows, notified: Notified
) -> None:
    kind = notified.kind
    assert [await notified.count(), await notified.count()] == [1, 0]
    record = {"kind": kind, "subject": "plan-1", "sent_at": "not a time"}
    await rows.put("Notifications", key(kind), "plan-1", **record)
    assert [await notified.count(), await notified.count()] == [1, 0]
    await rows.put("Notifications", key(kind), "odd")
    assert await notified.count() == 0


@pytest.mark.parametrize("typed", ["0001-01-01T00:00:00+00:00", "9999-12-31T23:59:59+00:00"])
async def test_an_implausible_time_in_a_record_suppresses_no_notification(
    rows: Rows, notified: Notified, typed: str
) -> None:
    kind = notified.kind
    record = {"kind": kind, "subject": "plan-1", "sent_at": typed, "lasting_since": typed}
    await rows.put("Notifications", kind, "plan-1", **record)
    assert await notified.count() == 1
