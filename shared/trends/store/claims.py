"""Stores claims in the table ``Claims``, by data set (PartitionKey) and period (RowKey). If an
operator deletes a row, the next message for its period processes the period again."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from shared.settings.connections import StorageConnection
from shared.storage.tables import RowConflict, Table, key
from shared.trends.datasets.claims import Claim
from shared.trends.datasets.errors import ClaimTaken, ClaimUnreadable
from shared.trends.datasets.processing import DatasetWork
from shared.values.redaction import redacting
from shared.values.row_values import properties, value_of, zoned

TABLE_NAME = "Claims"
TAKES_MAX = 3
"""The attempts to read or insert a row that others insert and delete in between."""


@redacting
class TableClaims:
    """See ClaimStore. ``Claim.version`` is the row's ETag."""

    def __init__(self, connection: StorageConnection) -> None:
        self._table = Table(connection, TABLE_NAME)

    async def take(self, work: DatasetWork, holder: str) -> Claim:
        for _ in range(TAKES_MAX):
            row, now = await self._read(work)
            if row is not None:
                return _claim(work, row, now)
            claim = Claim(work, holder, now, now)
            try:
                return await self._write(claim, None)
            except RowConflict:  # another instance inserted it in between
                continue
        raise ClaimTaken(
            f"{work.message_id}: its row in table {TABLE_NAME} appeared and disappeared in each of "
            f"{TAKES_MAX} attempts"
        )

    async def change(self, claim: Claim, holder: str, *, done: bool) -> Claim:
        _, now = await self._read(claim.work)
        taken_at, done_at = (claim.taken_at, now) if done else (now, None)
        try:
            return await self._write(
                Claim(claim.work, holder, taken_at, now, done_at), claim.version
            )
        except RowConflict as error:
            raise ClaimTaken(
                f"{claim.work.message_id}: another instance changed the claim first"
            ) from error

    async def close(self) -> None:
        await self._table.close()

    async def _read(self, work: DatasetWork) -> tuple[Any | None, datetime]:
        """The row, or None if it does not exist, and the storage account's time."""
        row = await self._table.get(*_keys(work))
        return row, self._table.now()

    async def _write(self, claim: Claim, version: str | None) -> Claim:
        return replace(claim, version=await self._table.put_marked(_row(claim), version))


def _keys(work: DatasetWork) -> tuple[str, str]:
    return key(work.dataset), key(work.round_label)


def _row(claim: Claim) -> dict[str, Any]:
    partition_key, row_key = _keys(claim.work)
    return {
        "PartitionKey": partition_key,
        "RowKey": row_key,
        "start": claim.work.start.isoformat(),
        "end": claim.work.end.isoformat(),
        **properties(claim, ("work", "seen_at", "version"), times_as_text=True),
    }


def _claim(work: DatasetWork, row: Any, now: datetime) -> Claim:
    """The claim of a row that was read at ``now``. Raises ClaimUnreadable."""
    try:
        given = {"work": work, "seen_at": now, "version": row.metadata["etag"]}
        return value_of(Claim, row, time=zoned, **given)
    except (KeyError, TypeError, ValueError) as error:
        place = f"{row['PartitionKey']}/{row['RowKey']}"
        raise ClaimUnreadable(
            f"row {place!r} of table {TABLE_NAME} cannot be read ({type(error).__name__}: {error});"
            " correct the row, or delete it to process the period again; then send the message "
            "back from the dead-letter queue"
        ) from error
