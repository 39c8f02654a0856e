"""Stores the owners of partitions in a SQL database, changed by conditional writes on a version."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import Connection, and_, bindparam, false, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from shared.adapters.sql.engine import Sql
from shared.adapters.sql.schema import NAMES, owners, server_now
from shared.adapters.sql.writing import of_stream
from shared.ingestion.errors import ClaimLost
from shared.ingestion.model import in_one_case
from shared.ingestion.ownership.load_balancing import Ownership, OwnershipClaim
from shared.ingestion.ownership.ports import OwnershipSnapshot
from shared.values.redaction import redacting

GROUP = NAMES[:3]
_INSERT = insert(owners).values(modified_at=server_now()).returning(owners.c.modified_at)
_UPDATE = (
    update(owners)
    .where(of_stream(owners), owners.c.version == bindparam("b_version"))
    .values(modified_at=server_now())
    .returning(owners.c.modified_at)
)


@redacting
class SqlOwnershipStore:
    """See OwnershipStore. The version of a row is the names in its key, and the number of its
    writes."""

    def __init__(self, sql: Sql, namespace: str, hub: str, consumer_group: str) -> None:
        self._sql = sql
        self._group = _in_one_case((namespace, hub, consumer_group))

    async def owners(self) -> OwnershipSnapshot:
        names = tuple(owners.c[name] for name in GROUP)

        def work(connection: Connection) -> OwnershipSnapshot:
            stored = connection.execute(select(*names).distinct()).all()
            same = [
                and_(*[name == value for name, value in zip(names, row, strict=True)])
                for row in stored
                if _in_one_case(row) == self._group
            ]
            query = select(owners, server_now().label("now")).where(or_(false(), *same))
            rows = connection.execute(query).all()
            ownerships = [
                Ownership(
                    row.partition_id,
                    row.owner,
                    row.epoch,
                    row.modified_at,
                    ((row.namespace, row.hub, row.consumer_group), row.version),
                )
                for row in rows
            ]
            read_at = rows[0].now if rows else connection.execute(select(server_now())).scalar_one()
            return OwnershipSnapshot(tuple(ownerships), read_at)

        return await self._sql.read(work)

    async def write(self, claim: OwnershipClaim) -> Ownership:
        group, before = claim.expected_version or (self._group, 0)

        def work(connection: Connection) -> Ownership:
            at = self._write(connection, group, claim, before)
            return Ownership(claim.partition_id, claim.owner, claim.epoch, at, (group, before + 1))

        return await self._sql.write(work)

    def _write(
        self, connection: Connection, group: tuple[str, ...], claim: OwnershipClaim, before: int
    ) -> datetime:
        values = {
            "owner": claim.owner,
            "epoch": claim.epoch,
            "version": before + 1,
            "reason": claim.reason,
        }
        key = {**dict(zip(GROUP, group, strict=True)), "partition_id": claim.partition_id}
        if not before:
            try:
                inserted_at: datetime = connection.execute(_INSERT, {**key, **values}).scalar_one()
            except IntegrityError as error:
                raise ClaimLost(_conflict(claim)) from error
            return inserted_at
        where = {f"b_{name}": value for name, value in key.items()}
        guard = {"b_version": before}
        updated_at: datetime | None = connection.execute(
            _UPDATE, {**values, **where, **guard}
        ).scalar_one_or_none()
        if updated_at is None:
            raise ClaimLost(_conflict(claim))
        return updated_at


def _in_one_case(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(in_one_case, names))


def _conflict(claim: OwnershipClaim) -> str:
    return f"partition {claim.partition_id}: another instance claimed it first"
