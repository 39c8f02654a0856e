"""Claims as rows of the table ``Claims``: PartitionKey is the data set, RowKey the period.

Rows can be read by people: who deletes one has its period processed again by the next message.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from shared.adapters.table import RowConflict, Table
from shared.adapters.table_keys import key
from shared.connections import StorageConnection
from shared.messaging.claims import Claim
from shared.messaging.errors import ClaimTaken
from shared.messaging.processing import Work
from shared.redaction import redacting

TABLE_NAME = "Claims"


@redacting
class TableClaims:
    """See ClaimStore. ``Claim.version`` is the row's ETag."""

    def __init__(self, connection: StorageConnection) -> None:
        self._table = Table(connection, TABLE_NAME)

    async def take(self, work: Work, holder: str, now: datetime) -> Claim:
        claim = Claim(work, holder, now)
        while True:
            try:
                version = await self._table.put(_row(claim), None)
            except RowConflict:
                row = await self._table.get(key(work.dataset), key(work.label))
                if row is None:  # deleted by hand in between
                    continue
                return _claim(work, row)
            return Claim(work, holder, now, None, version)

    async def change(self, claim: Claim, holder: str, now: datetime, *, done: bool) -> Claim:
        taken_at, done_at = (claim.taken_at, now) if done else (now, None)
        changed = Claim(claim.work, holder, taken_at, done_at)
        try:
            version = await self._table.put(_row(changed), claim.version)
        except RowConflict as error:
            raise ClaimTaken(f"{claim.work.message_id}: somebody else was faster") from error
        return Claim(claim.work, holder, taken_at, done_at, version)

    async def close(self) -> None:
        await self._table.close()


def _row(claim: Claim) -> dict[str, Any]:
    times = {"taken_at": claim.taken_at, "done_at": claim.done_at}
    return {
        "PartitionKey": key(claim.work.dataset),
        "RowKey": key(claim.work.turn_label),
        "holder": claim.holder,
        "start": claim.work.start.isoformat(),
        "end": claim.work.end.isoformat(),
        **{name: time.isoformat() for name, time in times.items() if time is not None},
    }


def _claim(work: Work, row: Any) -> Claim:
    done_at = row.get("done_at")
    return Claim(
        work,
        row["holder"],
        datetime.fromisoformat(row["taken_at"]),
        datetime.fromisoformat(done_at) if done_at else None,
        row.metadata["etag"],
    )
