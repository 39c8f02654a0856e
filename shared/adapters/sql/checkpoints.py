"""The rows of a FencedCheckpointStore in a SQL database."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, insert, select, update
from sqlalchemy.exc import IntegrityError

from shared.adapters.event_hubs.checkpoints import Group, PartitionRow, RowChanged, SeenRows
from shared.adapters.sql.engine import Sql
from shared.adapters.sql.schema import client_checkpoints, server_now
from shared.values.redaction import redacting

_C = client_checkpoints.c
_INSERT = insert(client_checkpoints).values(modified_at=server_now()).returning(_C.modified_at)
_UPDATE = (
    update(client_checkpoints)
    .where(
        _C.namespace == bindparam("b_namespace"),
        _C.hub == bindparam("b_hub"),
        _C.consumer_group == bindparam("b_consumer_group"),
        _C.partition_id == bindparam("b_partition_id"),
        _C.version == bindparam("b_version"),
    )
    .values(modified_at=server_now())
    .returning(_C.modified_at)
)
_FIELDS = ("owner", "epoch", "claims", "sequence", "offset")


@redacting
class SqlPartitionRows:
    """See PartitionRows. Versions count the writes of a row."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    async def rows(self, group: Group) -> SeenRows:
        query = select(client_checkpoints).filter_by(**asdict(group))

        def work(connection: Connection) -> SeenRows:
            found = [_row_of(row) for row in connection.execute(query)]
            return SeenRows(tuple(found), connection.execute(select(server_now())).scalar_one())

        return await self._sql.read(work)

    async def row(self, group: Group, partition_id: str) -> PartitionRow | None:
        query = select(client_checkpoints).filter_by(**asdict(group), partition_id=partition_id)
        found = await self._sql.read(lambda c: c.execute(query).one_or_none())
        return None if found is None else _row_of(found)

    async def write(self, group: Group, row: PartitionRow) -> PartitionRow:
        version = (row.version or 0) + 1

        def work(connection: Connection) -> PartitionRow:
            at = _write(connection, group, row, version)
            return replace(row, modified_at=at, version=version)

        return await self._sql.write(work)

    async def close(self) -> None:
        await self._sql.close()


def _write(connection: Connection, group: Group, row: PartitionRow, version: int) -> datetime:
    key = {**asdict(group), "partition_id": row.partition_id}
    values = {**{name: getattr(row, name) for name in _FIELDS}, "version": version}
    at: datetime | None
    if row.version is None:
        try:
            at = connection.execute(_INSERT, {**key, **values}).scalar_one()
        except IntegrityError as error:
            raise RowChanged(row.partition_id) from error
    else:
        where = {f"b_{name}": value for name, value in key.items()}
        guard = {"b_version": row.version}
        at = connection.execute(_UPDATE, {**values, **where, **guard}).scalar_one_or_none()
    if at is None:
        raise RowChanged(row.partition_id)
    return at


def _row_of(row: Row[Any]) -> PartitionRow:
    values = {name: getattr(row, name) for name in _FIELDS}
    return PartitionRow(
        row.partition_id, **values, modified_at=row.modified_at, version=row.version
    )
