"""The rows of ingestion in a SQL database: a table for each kind, and real transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from functools import cache
from itertools import chain
from typing import Any, Generic

from sqlalchemy import Connection, Table, bindparam, delete, insert, select, union, update
from sqlalchemy.exc import DataError, IntegrityError

from shared.ingestion.errors import AccountingBroken, RowChanged, RowRefused
from shared.ingestion.store import sql_schema as schema
from shared.ingestion.store.rows import (
    KINDS,
    CommitLimits,
    Insert,
    Kind,
    Place,
    Put,
    Remove,
    Row,
    RowPage,
    V,
    Write,
)
from shared.ingestion.store.sql_engine import Sql
from shared.ingestion.store.sql_schema import server_now
from shared.values.redaction import redacting

TABLES: Mapping[str, tuple[Table, tuple[str, ...], str]] = {
    "checkpoint": (schema.checkpoints, ("epoch", "sequence", "txid"), ""),
    "working": (schema.working, (), "worked_at"),
    "dead": (schema.dead_letters, ("failed_at", "attempts"), ""),
    "effect": (schema.effects, (), ""),
    "gap": (schema.gaps, (), ""),
    "mark": (schema.marks, (), ""),
    "outbox": (schema.outbox, ("taken",), "waits_since"),
    "owner": (schema.owners, ("version",), "modified_at"),
    "state": (schema.breakers, ("version",), ""),
    "tally": (schema.tallies, (), ""),
}
"""A kind's table, its columns that form a row's version, and that of the time of the last write."""
COUNTED = ("version",)
"""The column that counts how often a row was written."""


class KindTable(Generic[V]):
    """The table of a kind of row, and the statements on it."""

    def __init__(self, kind: Kind[V]) -> None:
        self.kind = kind
        self.table, self.guard, self.written = TABLES[kind.name]
        columns = self.table.c
        keys = [column.key for column in self.table.primary_key]
        self.names = [name for name in keys if name not in kind.key]
        """The columns with the names of the place."""
        self.types = kind.types
        self.enums = {
            name: of
            for name, of in self.types.items()
            if isinstance(of, type) and issubclass(of, StrEnum)
        }
        now = {self.written: server_now()} if self.written else {}
        at = columns[self.written] if self.written else server_now()
        self.here = [columns[name] == bindparam(f"b_{name}") for name in self.names]
        this = [*self.here, *[columns[name] == bindparam(f"b_{name}") for name in kind.key]]
        unchanged = [*this, *[columns[name] == bindparam(f"g_{name}") for name in self.guard]]
        change, new = update(self.table), insert(self.table)
        if now:
            change, new = change.values(now), new.values(now)
        self.rows = select(self.table, server_now().label("now")).where(*self.here)
        self.row = self.rows.where(*this[len(self.here) :])
        self.insert, self.insert_returning = new, new.returning(at)
        self.change = change.where(*unchanged).returning(at)
        self.overwrite = change.where(*this)
        self.remove = delete(self.table).where(*unchanged)
        self.delete = delete(self.table).where(*this)
        self.nulls = dict.fromkeys(name for name in kind.optional if columns[name].nullable)

    def where(self, place: Place, key: Iterable[Any] = ()) -> dict[str, Any]:
        pairs = chain(zip(self.names, place, strict=True), zip(self.kind.key, key, strict=False))
        return {f"b_{name}": value for name, value in pairs}

    def guards(self, version: Sequence[Any]) -> dict[str, Any]:
        return {f"g_{name}": each for name, each in zip(self.guard, version, strict=True)}

    def columns(self, value: V, only: Iterable[str] = ()) -> dict[str, Any]:
        """The columns of a value that are not NULL, all or the named ones."""
        columns = {name: getattr(value, name) for name in only or self.types}
        for name in self.enums.keys() & columns.keys():
            columns[name] = str(columns[name])
        return {name: each for name, each in columns.items() if each is not None}

    def place(self, place: Place) -> dict[str, str]:
        return dict(zip(self.names, place, strict=True))

    def read(self, row: Any) -> Row[V] | None:
        def field(name: str) -> Any:
            raw = getattr(row, name)
            return self.enums[name](raw) if name in self.enums else raw

        names = [*self.names, *self.kind.key]
        key = "|".join([str(getattr(row, name)) for name in names])
        where = f"row {key!r} of table {self.table.name}"
        value = self.kind.value_of(list(self.types), field, where, row.now)
        if value is None:
            return None
        version = tuple([getattr(row, name) for name in self.guard])
        return Row(value, version, getattr(row, self.written or "now"))


@cache
def _tables() -> dict[str, KindTable[Any]]:
    return {kind.name: KindTable(kind) for kind in KINDS}


@redacting
class SqlRows:
    """See RowEngine."""

    limits = CommitLimits(rows_max=10_000, size_bytes_max=32_000_000, row_bytes_max=16_000_000)

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    async def read(
        self,
        kind: Kind[V],
        place: Place,
        key: tuple[Any, ...] = (),
        *,
        after: int | None = None,
        limit: int | None = None,
        since: datetime | None = None,
    ) -> RowPage[V]:
        of = _tables()[kind.name]
        query = of.row if key else of.rows
        if after is not None:
            query = query.where(of.table.c[kind.key[0]] > after)
        if since is not None:
            query = query.where(of.table.c[kind.since] >= since)
        query = query.order_by(*[of.table.c[name] for name in kind.key]).limit(limit)
        return await self._page(of, query, of.where(place, key))

    async def newest(
        self,
        kind: Kind[V],
        place: Place,
        limit: int,
        within: tuple[int, int],  # noqa: ARG002  the index finds the last rows
    ) -> RowPage[V]:
        of = _tables()[kind.name]
        query = of.rows.order_by(*[of.table.c[name].desc() for name in kind.key]).limit(limit)
        return await self._page(of, query, of.where(place))

    async def places(self, *kinds: Kind[Any]) -> Sequence[Place]:
        tables = [_tables()[kind.name] for kind in kinds]
        query = union(*[select(*[of.table.c[n] for n in of.names]).distinct() for of in tables])
        return [tuple(row) for row in await self._sql.read(lambda c: c.execute(query).all())]

    async def write(
        self, place: Place, writes: Sequence[Write], also: Callable[[Any], None] | None = None
    ) -> Row[Any] | None:
        def work(connection: Connection) -> Row[Any] | None:
            first = None
            for each in writes:
                of = _tables()[each.kind.name]
                if isinstance(each, Insert):
                    _insert(connection, of, place, each.values)
                elif isinstance(each, Remove):
                    _remove(connection, of, place, each)
                else:
                    row = _put(connection, of, place, each)
                    first = first or row
            if also is not None:
                also(connection)
            return first

        return await self._sql.write(work) if writes else None

    async def overwrite(self, kind: Kind[V], place: Place, value: V) -> None:
        of = _tables()[kind.name]
        columns = of.columns(value)
        changed = {name: each for name, each in columns.items() if name not in kind.key}

        def work(connection: Connection) -> None:
            where = of.where(place, kind.key_of(value))
            if connection.execute(of.overwrite, {**changed, **where}).rowcount == 0:
                connection.execute(of.insert, {**of.place(place), **columns})

        with suppress(IntegrityError):  # another instance inserted the row at the same time
            await self._sql.write(work)

    async def delete(self, kind: Kind[V], place: Place, values: Sequence[V]) -> None:
        of = _tables()[kind.name]
        gone = [of.where(place, kind.key_of(each)) for each in values]
        if gone:
            await self._sql.write(lambda c: c.execute(of.delete, gone))

    async def purge(self, kind: Kind[Any], place: Place, up_to: Any, limit: int) -> int:
        of = _tables()[kind.name]
        first, where = of.table.c[kind.key[0]], of.where(place)
        old = select(first).where(*of.here, first <= up_to).order_by(first).limit(limit)

        def work(connection: Connection) -> int:
            found = connection.execute(old, where).scalars().all()
            if found:
                connection.execute(delete(of.table).where(*of.here, first <= found[-1]), where)
            return len(found)

        return await self._sql.write(work)

    async def close(self) -> None:
        await self._sql.close()

    async def _page(self, of: KindTable[V], query: Any, values: dict[str, Any]) -> RowPage[V]:
        """The rows, and the time of the database, which they contain if there are any."""

        def work(connection: Connection) -> RowPage[V]:
            rows = connection.execute(query, values).all()
            at = rows[0].now if rows else connection.execute(select(server_now())).scalar_one()
            return RowPage(tuple(filter(None, map(of.read, rows))), at)

        return await self._sql.read(work)


# --- writing ------------------------------------------------------------------------------------


def _put(connection: Connection, of: KindTable[Any], place: Place, put: Put) -> Row[Any]:
    columns = of.columns(put.value, put.only)
    if of.guard == COUNTED:
        columns["version"] = put.version[0] + 1 if put.version else 1
    at = None
    if put.version is None:
        with suppress(IntegrityError):
            new = {**of.place(place), **columns}
            at = connection.execute(of.insert_returning, new).scalar_one()
    else:
        changed = {name: each for name, each in columns.items() if name not in of.kind.key}
        where = {**of.where(place, of.kind.key_of(put.value)), **of.guards(put.version)}
        at = connection.execute(of.change, {**changed, **where}).scalar_one_or_none()
    if at is None:
        raise RowChanged(f"{'|'.join(place)}: {of.kind.name}")
    return Row(put.value, tuple([columns[name] for name in of.guard]), at)


def _remove(connection: Connection, of: KindTable[Any], place: Place, remove: Remove) -> None:
    where = {**of.where(place, of.kind.key_of(remove.value)), **of.guards(remove.version)}
    if connection.execute(of.remove, where).rowcount != 1:
        raise RowChanged(f"{'|'.join(place)}: {of.kind.name}")


def _insert(
    connection: Connection, of: KindTable[Any], place: Place, values: Sequence[Any]
) -> None:
    if not values:
        return
    try:
        same = {**of.place(place), **of.nulls}
        connection.execute(of.insert, [{**same, **of.columns(each)} for each in values])
    except IntegrityError as error:
        raise AccountingBroken(str(error.orig)) from error
    except DataError as error:
        raise RowRefused(str(error.orig)) from error
