"""Stores the owners of partitions in a SQL database, changed by conditional writes on a version."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, bindparam, insert, select, update
from sqlalchemy.exc import IntegrityError

from shared.adapters.sql.engine import Sql
from shared.adapters.sql.schema import owners, server_now
from shared.adapters.sql.writing import of_stream
from shared.ingestion.errors import ClaimLost
from shared.ingestion.ownership.load_balancing import Ownership, OwnershipClaim
from shared.ingestion.ownership.ports import OwnershipSnapshot
from shared.values.redaction import redacting

_INSERT = insert(owners).values(modified_at=server_now()).returning(owners.c.modified_at)
_UPDATE = (
    update(owners)
    .where(of_stream(owners), owners.c.version == bindparam("b_version"))
    .values(modified_at=server_now())
    .returning(owners.c.modified_at)
)


@redacting
class SqlOwnershipStore:
    """See OwnershipStore. The version of a row is the number of its writes."""

    def __init__(self, sql: Sql, namespace: str, hub: str, consumer_group: str) -> None:
        self._sql = sql
        self._group = {"namespace": namespace, "hub": hub, "consumer_group": consumer_group}

    async def owners(self) -> OwnershipSnapshot:
        query = select(owners, server_now().label("now")).filter_by(**self._group)

        def work(connection: Connection) -> OwnershipSnapshot:
            rows = connection.execute(query).all()
            ownerships = [
                Ownership(row.partition_id, row.owner, row.epoch, row.modified_at, row.version)
                for row in rows
            ]
            read_at = rows[0].now if rows else connection.execute(select(server_now())).scalar_one()
            return OwnershipSnapshot(tuple(ownerships), read_at)

        return await self._sql.read(work)

    async def write(self, claim: OwnershipClaim) -> Ownership:
        version = (claim.expected_version or 0) + 1

        def work(connection: Connection) -> Ownership:
            at = self._write(connection, claim, version)
            return Ownership(claim.partition_id, claim.owner, claim.epoch, at, version)

        return await self._sql.write(work)

    def _write(self, connection: Connection, claim: OwnershipClaim, version: int) -> datetime:
        values = {
            "owner": claim.owner,
            "epoch": claim.epoch,
            "version": version,
            "reason": claim.reason,
        }
        key = {**self._group, "partition_id": claim.partition_id}
        if claim.expected_version is None:
            try:
                inserted_at: datetime = connection.execute(_INSERT, {**key, **values}).scalar_one()
            except IntegrityError as error:
                raise ClaimLost(_conflict(claim)) from error
            return inserted_at
        where = {f"b_{name}": value for name, value in key.items()}
        guard = {"b_version": claim.expected_version}
        updated_at: datetime | None = connection.execute(
            _UPDATE, {**values, **where, **guard}
        ).scalar_one_or_none()
        if updated_at is None:
            raise ClaimLost(_conflict(claim))
        return updated_at


def _conflict(claim: OwnershipClaim) -> str:
    return f"partition {claim.partition_id}: another instance claimed it first"
