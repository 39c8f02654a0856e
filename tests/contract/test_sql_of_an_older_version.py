"""A database that an older version of the app made goes on being used."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import MetaData, insert
from sqlalchemy.dialects.mssql.pyodbc import MSDialect_pyodbc

from shared.adapters.sql.engine import Sql, statement
from shared.adapters.sql.ingestion import SqlIngestionStore
from shared.adapters.sql.schema import metadata, outbox
from tests.contract.ingestion import commit, effect, new_stream


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/old.db"
    return str(request.getfixturevalue("postgres_url"))


def outbox_without_leases() -> MetaData:
    """The table as it was before its messages were leased."""
    old = MetaData()
    table = outbox.to_metadata(old)
    for name in ("waits_since", "taken"):
        table._columns.remove(table.c[name])
    return old


@pytest.fixture
async def old(url: str) -> AsyncIterator[Sql]:
    found = outbox_without_leases()
    sql = Sql(url, found)
    await sql.write(found.drop_all)
    await sql.write(found.create_all)
    yield sql
    await sql.write(found.drop_all)
    await sql.close()


async def test_messages_of_an_outbox_without_leases_are_leased_and_sent(url: str, old: Sql) -> None:
    stream = new_stream()
    (table,) = old._metadata[0].tables.values()
    row = {**stream.names, "sequence": 1, "position": 0, "message_id": "a", "body": "b"}
    await old.write(lambda connection: connection.execute(insert(table).values(row)))

    for _ in range(2):  # and once more by a process that finds the columns there
        sql = Sql(url, metadata)
        store = SqlIngestionStore(sql)
        (waiting,) = await store.outbox(stream, 10)
        assert waiting.message.message_id == "a"
        assert timedelta(0) <= waiting.waited < timedelta(minutes=1)
        await store.take(stream, [waiting])
        await sql.close()

    sql = Sql(url, metadata)
    store = SqlIngestionStore(sql)
    (taken,) = await store.outbox(stream, 10)
    assert taken.taken == 2
    await store.sent(stream, [taken])
    saved = await store.load(stream)
    await store.commit(stream, saved, commit(None, 2, [effect(stream, 2)]))
    assert [each.taken for each in await store.outbox(stream, 10)] == [0]
    await sql.close()


async def test_an_instance_of_the_older_version_goes_on_beside_the_new_one(
    url: str, old: Sql
) -> None:
    stream = new_stream()
    sql = Sql(url, metadata)
    store = SqlIngestionStore(sql)
    assert await store.outbox(stream, 10) == []
    (table,) = old._metadata[0].tables.values()
    row = {**stream.names, "sequence": 1, "position": 0, "message_id": "a", "body": "b"}
    await old.write(lambda connection: connection.execute(insert(table).values(row)))
    (waiting,) = await store.outbox(stream, 10)
    assert (waiting.message.body, waiting.taken) == ("b", 0)
    await sql.close()


def test_sql_server_is_told_in_its_own_words() -> None:
    dialect = MSDialect_pyodbc()  # type: ignore[no-untyped-call]
    said = statement(dialect, outbox, outbox.c.waits_since)
    assert said == (
        "ALTER TABLE [EventHubOutbox] ADD [WaitsSince] DATETIMEOFFSET NOT NULL "
        "DEFAULT SYSDATETIMEOFFSET()"
    )
