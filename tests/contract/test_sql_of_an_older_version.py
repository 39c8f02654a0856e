"""The app can use a database that an older version created."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import MetaData, insert
from sqlalchemy.dialects.mssql.pyodbc import MSDialect_pyodbc

from shared.ingestion.model import Commit
from shared.ingestion.store.events import EventStore
from shared.ingestion.store.sql import SqlRows
from shared.ingestion.store.sql_engine import Sql, statement
from shared.ingestion.store.sql_schema import checkpoints, metadata, outbox
from tests.contract.ingestion import checkpoint, commit, effect, new_stream


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/old.db"
    return str(request.getfixturevalue("postgres_url"))


def outbox_without_leases() -> MetaData:
    """The outbox table as it was before messages had leases."""
    old = MetaData()
    table = outbox.to_metadata(old)
    for name in ("waits_since", "taken"):
        table._columns.remove(table.c[name])
    return old


@pytest.fixture
async def old(url: str) -> AsyncIterator[Sql]:
    old_tables = outbox_without_leases()
    sql = Sql(url, old_tables)
    await sql.write(old_tables.drop_all)
    await sql.write(old_tables.create_all)
    yield sql
    await sql.write(old_tables.drop_all)
    await sql.close()


async def test_messages_of_an_outbox_without_leases_are_leased_and_sent(url: str, old: Sql) -> None:
    stream = new_stream()
    (table,) = old._metadata[0].tables.values()
    row = {**stream.names, "sequence": 1, "position": 0, "message_id": "a", "body": "b"}
    await old.write(lambda connection: connection.execute(insert(table).values(row)))

    for _ in range(2):  # the second process finds that the columns exist
        sql = Sql(url, metadata)
        store = EventStore(SqlRows(sql))
        (waiting,) = await store.outbox(stream, 10)
        assert waiting.message.message_id == "a"
        assert timedelta(0) <= waiting.waited < timedelta(minutes=1)
        await store.take(stream, [waiting])
        await sql.close()

    sql = Sql(url, metadata)
    store = EventStore(SqlRows(sql))
    (taken,) = await store.outbox(stream, 10)
    assert taken.taken == 2
    await store.sent(stream, [taken])
    saved = await store.load(stream)
    await store.commit(stream, saved, commit(None, 2, [effect(stream, 2)]))
    assert [each.taken for each in await store.outbox(stream, 10)] == [0]
    await sql.close()


async def test_an_instance_of_the_older_version_keeps_working_beside_the_new_one(
    url: str, old: Sql
) -> None:
    stream = new_stream()
    sql = Sql(url, metadata)
    store = EventStore(SqlRows(sql))
    assert await store.outbox(stream, 10) == []
    (table,) = old._metadata[0].tables.values()
    row = {**stream.names, "sequence": 1, "position": 0, "message_id": "a", "body": "b"}
    await old.write(lambda connection: connection.execute(insert(table).values(row)))
    (waiting,) = await store.outbox(stream, 10)
    assert (waiting.message.body, waiting.taken) == ("b", 0)
    await sql.close()


async def test_a_checkpoint_of_a_database_without_a_count_of_events_set_aside_is_continued(
    url: str,
) -> None:
    older, stream = MetaData(), new_stream()
    table = checkpoints.to_metadata(older)
    table._columns.remove(table.c["set_aside"])
    old, written = Sql(url, older), checkpoint(2)
    fields = {name: getattr(written, name) for name in table.c.keys() - stream.names.keys()}
    await old.write(older.drop_all)
    await old.write(older.create_all)
    await old.write(lambda c: c.execute(insert(table).values({**stream.names, **fields})))
    sql = Sql(url, metadata)
    store = EventStore(SqlRows(sql))
    saved = await store.load(stream)
    assert saved.checkpoint == written
    after = replace(checkpoint(3), set_aside=1)
    await store.commit(stream, saved, Commit(saved.checkpoint, after))
    assert (await store.load(stream)).checkpoint == after
    await sql.write(older.drop_all)
    await sql.close()
    await old.close()


def test_columns_are_added_in_the_syntax_of_sql_server() -> None:
    dialect = MSDialect_pyodbc()  # type: ignore[no-untyped-call]
    sql = statement(dialect, outbox, outbox.c.waits_since)
    assert sql == (
        "ALTER TABLE [EventHubOutbox] ADD [WaitsSince] DATETIMEOFFSET NOT NULL "
        "DEFAULT SYSDATETIMEOFFSET()"
    )
