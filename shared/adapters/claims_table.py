"""Claims as rows of the table ``Claims``: PartitionKey is the data set, RowKey the period.

Where a period is processed again because of late data, that row's key ends in ``:late-1`` and so
on. Rows can be read by people: who deletes one lets the next message process its period again.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from azure.core import MatchConditions
from azure.core.exceptions import (
    HttpResponseError,
    ResourceExistsError,
    ResourceModifiedError,
    ResourceNotFoundError,
)
from azure.data.tables import UpdateMode

from shared.adapters.table_service import table_service
from shared.connections import StorageConnection
from shared.messaging.claims import Claim
from shared.messaging.errors import ClaimTaken
from shared.messaging.processing import Work

TABLE_NAME = "Claims"
CONFLICT = 409


class TableClaims:
    """See ClaimStore. ``Claim.version`` is the row's ETag."""

    def __init__(self, connection: StorageConnection) -> None:
        self._service = table_service(connection)
        self._table = self._service.get_table_client(TABLE_NAME)

    async def take(self, work: Work, holder: str, now: datetime) -> Claim:
        claim = Claim(work, holder, now)
        while True:
            if inserted := await self._inserted(claim):
                return inserted
            try:
                row = await self._table.get_entity(key(work.dataset), key(work.turn_label))
            except ResourceNotFoundError:  # deleted by hand in between
                continue
            return _claim(work, row)

    async def change(self, claim: Claim, holder: str, now: datetime, *, done: bool) -> Claim:
        taken_at, done_at = (claim.taken_at, now) if done else (now, None)
        changed = Claim(claim.work, holder, taken_at, done_at)
        try:
            answer = await self._table.update_entity(
                _row(changed),
                mode=UpdateMode.REPLACE,
                etag=claim.version,
                match_condition=MatchConditions.IfNotModified,
            )
        except (ResourceModifiedError, ResourceNotFoundError) as error:
            raise ClaimTaken(f"{claim.work.message_id}: somebody else was faster") from error
        return Claim(claim.work, holder, taken_at, done_at, answer["etag"])

    async def close(self) -> None:
        await self._service.close()

    async def _inserted(self, claim: Claim) -> Claim | None:
        """The claim with its version; None where there is one already."""
        try:
            answer = await self._insert(_row(claim))
        except ResourceExistsError:
            return None
        except HttpResponseError as error:
            if error.status_code == CONFLICT:
                return None
            raise
        return Claim(claim.work, claim.holder, claim.taken_at, None, answer["etag"])

    async def _insert(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return await self._table.create_entity(row)
        except ResourceNotFoundError:
            await self._service.create_table_if_not_exists(TABLE_NAME)
            return await self._table.create_entity(row)


def key(text: str) -> str:
    """Any text as a key of a table, which knows neither ``/`` nor ``\\``, ``#`` and ``?``."""
    return quote(text, safe=" ,:@!").replace("%", "=")


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
