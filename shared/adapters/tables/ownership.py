"""Stores the owners of partitions in the table ``Ownership``.

The PartitionKey is the hub and consumer group, the RowKey is the partition.
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
from shared.ingestion.ownership.load_balancing import Ownership, OwnershipClaim
from shared.ingestion.ownership.ports import OwnershipSnapshot
from shared.settings.connections import StorageConnection
from shared.values.redaction import redacting

TABLE_NAME = "Ownership"
log = logging.getLogger(__name__)


@redacting
class TableOwnershipStore:
    """See OwnershipStore. A row's version is its ETag. Its time is the ``Timestamp`` that the
    service sets."""

    def __init__(
        self, connection: StorageConnection, namespace: str, hub: str, consumer_group: str
    ) -> None:
        self._table = Table(connection, TABLE_NAME)
        self._group = joined(namespace, hub, consumer_group)

    async def owners(self) -> OwnershipSnapshot:
        with store_errors(self._group):
            rows = await self._table.rows("PartitionKey eq @group", {"group": self._group})
        return OwnershipSnapshot(tuple(filter(None, map(_ownership_or_none, rows))), server_time())

    async def write(self, claim: OwnershipClaim) -> Ownership:
        with store_errors(self._group):
            try:
                version = await self._table.put(self._row(claim), claim.expected_version)
            except RowConflict as error:
                raise ClaimLost(
                    f"partition {claim.partition_id}: another instance claimed it first"
                ) from error
        # The response does not contain the row's Timestamp, so the time has only whole seconds.
        return Ownership(claim.partition_id, claim.owner, claim.epoch, server_time(), version)

    async def close(self) -> None:
        await self._table.close()

    def _row(self, claim: OwnershipClaim) -> Row:
        return {
            "PartitionKey": self._group,
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
            row.metadata["etag"],
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        place = f"{row['PartitionKey']}/{row['RowKey']}"
        log.warning("[owner_unreadable] %s: %s: %s", place, type(error).__name__, error)
        return None
