"""The app can use a database that an older version created."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, Table, insert
from sqlalchemy.dialects.mssql.pyodbc import MSDialect_pyodbc

from shared.ingestion.model import Commit
from shared.ingestion.store.events import EventStore
from shared.ingestion.store.sql import SqlRows
from shared.ingestion.store.sql_engine import Sql, statement
from shared.ingestion.store.sql_schema import checkpoints, metadata, outbox
from tests.ingestion.commits import checkpoint, commit, effect, new_stream


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/old.db"
    return str(request.getfixturevalue("postgres_url"))


class Old:
    """A database of an older version, whose table does not have the named columns."""

    def __init__(self, url: str, table: Table, *missing: str) -> None:
        self.tables, self.stream, self.closing = MetaData(), new_stream(), AsyncExitStack()
        self.table = table.to_metadata(self.tables)
        for name in missing:
            self.table._columns.remove(self.table.c[name])
        self.url, self.sql = url, Sql(url, self.tables)

    async def insert(self, **fields: Any) -> None:
        row = insert(self.table).values({**self.stream.names, **fields})
        await self.sql.write(lambda connection: connection.execute(row))

    async def insert_message(self) -> None:
        await self.insert(sequence=1, position=0, message_id="a", body="b")

    def store(self) -> EventStore:
        """The store of another process, of this version."""
        sql = Sql(self.url, metadata)
        self.closing.push_async_callback(sql.close)
        return EventStore(SqlRows(sql))

    async def __aenter__(self) -> Old:
        await self.sql.write(self.tables.drop_all)
        await self.sql.write(self.tables.create_all)
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.sql.write(self.tables.drop_all)
        await self.sql.close()
        await self.closing.aclose()


async def test_messages_of_an_outbox_without_leases_are_leased_and_sent(url: str) -> None:
    async with Old(url, outbox, "waits_since", "taken") as old:
        stream = old.stream
        await old.insert_message()
        for _ in range(2):  # the second process finds that the columns exist
            store = old.store()
            (waiting,) = await store.outbox(stream, 10)
            assert waiting.message.message_id == "a"
            assert timedelta(0) <= waiting.waited < timedelta(minutes=1)
            await store.take(stream, [waiting])
        (taken,) = await store.outbox(stream, 10)
        assert taken.taken == 2
        await store.sent(stream, [taken])
        saved = await store.load(stream)
        await store.commit(stream, saved, commit(None, 2, [effect(stream, 2)]))
        assert [each.taken for each in await store.outbox(stream, 10)] == [0]


async def test_an_instance_of_the_older_version_keeps_working_beside_the_new_one(url: str) -> None:
    async with Old(url, outbox, "waits_since", "taken") as old:
        store = old.store()
        assert await store.outbox(old.stream, 10) == []
        await old.insert_message()
        (waiting,) = await store.outbox(old.stream, 10)
        assert (waiting.message.body, waiting.taken) == ("b", 0)


async def test_a_checkpoint_of_a_database_without_a_count_of_events_set_aside_is_continued(
    url: str,
) -> None:
    async with Old(url, checkpoints, "set_aside") as old:
        store, stream, written = old.store(), old.stream, checkpoint(2)
        names = old.table.c.keys() - stream.names.keys()
        await old.insert(**{name: getattr(written, name) for name in names})
        saved = await store.load(stream)
        assert saved.checkpoint == written
        after = replace(checkpoint(3), set_aside=1)
        await store.commit(stream, saved, Commit(saved.checkpoint, after))
        assert (await store.load(stream)).checkpoint == after


def test_columns_are_added_in_the_syntax_of_sql_server() -> None:
    dialect = MSDialect_pyodbc()  # type: ignore[no-untyped-call]
    sql = statement(dialect, outbox, outbox.c.waits_since)
    assert sql == (
        "ALTER TABLE [EventHubOutbox] ADD [WaitsSince] DATETIMEOFFSET NOT NULL "
        "DEFAULT SYSDATETIMEOFFSET()"
    )
