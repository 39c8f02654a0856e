"""Stores the owners of partitions in the table ``Ownership``.

The PartitionKey is the hub and consumer group, the RowKey is the partition. Earlier versions wrote
the names of hub and consumer group in the case of the settings; rows that exist keep their key.
"""

from __future__ import annotations

import logging
from typing import Any

from shared.adapters.azure.transport import server_time
from shared.adapters.tables.ingestion_rows import store_errors
from shared.adapters.tables.table import (
    Row,
    RowConflict,
    Table,
    joined,
    key,
    number_of,
    time_of,
    whole,
)
from shared.ingestion.errors import ClaimLost
from shared.ingestion.model import in_one_case
from shared.ingestion.ownership.load_balancing import Ownership, OwnershipClaim
from shared.ingestion.ownership.ports import OwnershipSnapshot
from shared.settings.connections import StorageConnection
from shared.values.redaction import redacting

TABLE_NAME = "Ownership"
log = logging.getLogger(__name__)


@redacting
class TableOwnershipStore:
    """See OwnershipStore. A row's version is its PartitionKey and its ETag. Its time is the
    ``Timestamp`` that the service sets."""

    def __init__(
        self, connection: StorageConnection, namespace: str, hub: str, consumer_group: str
    ) -> None:
        self._table = Table(connection, TABLE_NAME)
        self._names = (namespace, hub, consumer_group)
        self._group = joined(*map(in_one_case, self._names))
        self._groups: set[str] = set()

    async def owners(self) -> OwnershipSnapshot:
        rows = list[Any]()
        with store_errors(self._group):
            for group in self._groups or await self._stored_groups():
                rows += await self._table.rows("PartitionKey eq @group", {"group": group})
        return OwnershipSnapshot(tuple(filter(None, map(_ownership_or_none, rows))), server_time())

    async def write(self, claim: OwnershipClaim) -> Ownership:
        with store_errors(self._group):
            group, version = claim.expected_version or (self._group, None)
            try:
                version = await self._table.put(self._row(group, claim), version)
            except RowConflict as error:
                raise ClaimLost(
                    f"partition {claim.partition_id}: another instance claimed it first"
                ) from error
        # The response does not contain the row's Timestamp, so the time has only whole seconds.
        return Ownership(
            claim.partition_id, claim.owner, claim.epoch, server_time(), (group, version)
        )

    async def _stored_groups(self) -> set[str]:
        """All keys of the group. Besides the present key, they are those of earlier versions: the
        one that such a version makes of the same settings, and those of existing rows."""
        rows = await self._table.rows("PartitionKey ge ''", {}, select=["PartitionKey"])
        same = {r["PartitionKey"] for r in rows if r["PartitionKey"].lower() == self._group.lower()}
        self._groups = same | {self._group, joined(*self._names)}
        return self._groups

    async def close(self) -> None:
        await self._table.close()

    def _row(self, group: str, claim: OwnershipClaim) -> Row:
        return {
            "PartitionKey": group,
            "RowKey": key(claim.partition_id),
            "partition_id": claim.partition_id,
            "owner": claim.owner,
            "epoch": whole(claim.epoch),
            "reason": claim.reason,
        }


def _ownership_or_none(row: Any) -> Ownership | None:
    """The ownership of a row. None if the row cannot be read. Then only its partition is not
    processed until an operator corrects the row.
    """
    try:
        return Ownership(
            row["partition_id"],
            row["owner"],
            number_of(row["epoch"]),
            time_of(row.metadata["timestamp"]),
            (row["PartitionKey"], row.metadata["etag"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        place = f"{row['PartitionKey']}/{row['RowKey']}"
        log.warning("[owner_unreadable] %s: %s: %s", place, type(error).__name__, error)
        return None
