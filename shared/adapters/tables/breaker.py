"""Stores a circuit breaker in the table ``Breaker``. The PartitionKey is the breaker's name.

RowKeys: ``!state``, and ``tally|<bucket>|<instance>`` for the successes and failures that each
instance counted in a bucket of time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from shared.adapters.azure.transport import server_time
from shared.adapters.tables.ingestion_rows import store_errors
from shared.adapters.tables.table import (
    TRANSACTION_ROWS_MAX,
    Row,
    RowConflict,
    Table,
    key,
    number_of,
    time_of,
    whole,
)
from shared.ingestion.breaker.breaker import Breaker
from shared.ingestion.breaker.failure_window import TALLIES_KEPT, Tally
from shared.ingestion.breaker.ports import BreakerSnapshot, decode_breaker, encode_breaker
from shared.ingestion.errors import BreakerChanged
from shared.settings.connections import StorageConnection
from shared.values.redaction import redacting

TABLE_NAME = "Breaker"
STATE = "!state"
TALLIES_START, TALLIES_END = "tally|", "tally}"
PURGES_MAX = 20
log = logging.getLogger(__name__)


@redacting
class TableBreakerStore:
    """See BreakerStore. The version of the state is the row's ETag."""

    def __init__(self, connection: StorageConnection, name: str) -> None:
        self._table = Table(connection, TABLE_NAME)
        self._name = key(name)
        self._purged_before: datetime | None = None

    async def load(self) -> BreakerSnapshot:
        with store_errors(self._name):
            row = await self._table.get(self._name, STATE)
        if row is None:
            return BreakerSnapshot(Breaker(), server_time())
        return BreakerSnapshot(
            decode_breaker(row.get("state")), server_time(), row.metadata["etag"]
        )

    async def replace(self, seen: BreakerSnapshot, breaker: Breaker) -> BreakerSnapshot:
        row = {
            "PartitionKey": self._name,
            "RowKey": STATE,
            "mode": str(breaker.mode),  # for operators who read the table; the app reads "state"
            "state": encode_breaker(breaker),
        }
        with store_errors(self._name):
            try:
                version = await self._table.put(row, seen.version)
            except RowConflict as error:
                raise BreakerChanged(
                    f"{self._name}: another instance changed the breaker first"
                ) from error
        return BreakerSnapshot(breaker, server_time(), version)

    async def put_tally(self, tally: Tally) -> None:
        with store_errors(self._name):
            await self._table.overwrite(self._row(tally))
            await self._purge(tally.bucket_start - TALLIES_KEPT)

    async def tallies(self, since: datetime) -> Sequence[Tally]:
        with store_errors(self._name):
            rows = await self._table.range(self._name, _start(since), TALLIES_END)
        tallies = filter(None, map(_tally_or_none, rows))
        # The keys hold whole seconds only.
        return [tally for tally in tallies if tally.bucket_start >= since]

    async def close(self) -> None:
        await self._table.close()

    async def _purge(self, before: datetime) -> None:
        """Delete the tallies of all instances from before this time, once in a while."""
        if self._purged_before is not None and before < self._purged_before + TALLIES_KEPT:
            return
        self._purged_before = before
        with suppress(RowConflict):  # another instance is deleting them
            for _ in range(PURGES_MAX):
                old = await self._table.range(
                    self._name, TALLIES_START, _start(before), TRANSACTION_ROWS_MAX
                )
                if not old:
                    return
                await self._table.submit([("delete", row) for row in old])

    def _row(self, tally: Tally) -> Row:
        return {
            "PartitionKey": self._name,
            "RowKey": f"{_start(tally.bucket_start)}|{key(tally.instance)}",
            "bucket_start": tally.bucket_start,
            "instance": tally.instance,
            "successes": whole(tally.successes),
            "failures": whole(tally.failures),
            "slow": whole(tally.slow),
            "last_error": tally.last_error,
        }


def _start(time: datetime) -> str:
    return f"{TALLIES_START}{time.astimezone(UTC):%Y-%m-%dT%H:%M:%S}"


def _tally_or_none(row: Any) -> Tally | None:
    """The tally of a row. None if the row cannot be read. This is only logged, because the row
    holds no more than the counts of one instance in ten seconds.
    """
    try:
        return Tally(
            time_of(row["bucket_start"]),
            row["instance"],
            number_of(row["successes"]),
            number_of(row["failures"]),
            number_of(row["slow"]),
            row["last_error"],
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        log.warning("[tally_unreadable] %s: %s: %s", row["RowKey"], type(error).__name__, error)
        return None
