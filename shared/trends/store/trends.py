"""Reads the event trends that the nightly job wrote to the table ``Trends``; deletes old ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from datetime import date, timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any

from shared.azure.transport import server_time
from shared.sampling.trend_rows import ALARMS, ALARMS_UNTIL, COUNTS, Trend, unreadable_trend
from shared.sampling.verdict import LOST
from shared.settings.connections import StorageConnection
from shared.storage.table_requests import literal
from shared.storage.tables import Table
from shared.values.redaction import redacting
from shared.values.row_values import value_of

TABLE_NAME = "Trends"
ROWS_MAX = 100_000
"""The most rows that are read: one month of three thousand series, in a hundred pages."""
DELETED_AT_ONCE = 5_000
KEPT = timedelta(days=100)
"""The page shows 60 days. The results folder of the job keeps all days."""
BUDGET_SECONDS = 270
"""A function on a Consumption plan may run for five minutes. The next run deletes the rest."""

log = logging.getLogger(__name__)


@redacting
class TableTrends:
    def __init__(self, connection: StorageConnection) -> None:
        self._table = Table(connection, TABLE_NAME)

    async def since(
        self, first: date, verdicts: Collection[str] = (), rows_max: int = ROWS_MAX
    ) -> list[Trend]:
        """The trends of each series and day from ``first`` on, or only those with these verdicts.

        A row that cannot be read is logged and, without ``verdicts``, returned with the verdict
        ``unreadable``. At most ``rows_max`` rows are read, in the order of the series' names; more
        are logged. Losses are read from their own partition if the job keeps it.
        """
        has_alarms = bool(verdicts) and LOST.issuperset(verdicts) and await self._alarms(first)
        condition = f"PartitionKey {'eq' if has_alarms else 'ne'} {literal(ALARMS)}"
        condition += f" and RowKey ge {literal(first.isoformat())}"
        if verdicts:
            wanted = [f"verdict eq {literal(each)}" for each in sorted(verdicts)]
            condition += f" and ({' or '.join(wanted)})"
        trends = []
        rows = await self._table.rows(condition, rows_max)
        if len(rows) == rows_max:
            text = "[trends_cut] table %s has %s rows or more from %s on; the rest is not read"
            log.warning(text, TABLE_NAME, rows_max, first)
        for row in rows:
            try:
                trends.append(trend_of(row))
            except (KeyError, TypeError, ValueError) as error:
                log.warning("[trend_not_understood] %s: %s", row["PartitionKey"], error)
                if not verdicts:
                    trends.append(unreadable_trend(row, error))
        return trends

    async def _alarms(self, first: date) -> bool:
        row = await self._table.get(ALARMS, ALARMS_UNTIL)
        return row is not None and str(row.get("date")) >= first.isoformat()

    async def delete_old(self) -> None:
        """Delete trends older than ``KEPT``. An error is logged, and the next run tries again."""
        try:
            async with asyncio.timeout(BUDGET_SECONDS):
                count = await self._delete_old()
        except Exception as error:
            text = f"old trends stay until the next run: {type(error).__name__}: {error}"
            log.warning("[trends_not_deleted] %s", text, extra={"action": "trends_not_deleted"})
        else:
            extra = {"action": "trends_deleted"}
            log.info("[trends_deleted] %s rows of old trends deleted", count, extra=extra)

    async def _delete_old(self) -> int:
        await self._table.get(ALARMS, ALARMS_UNTIL)  # for the time of the service
        before, deleted = (server_time() - KEPT).date().isoformat(), 0
        condition = f"RowKey ge '0' and RowKey lt {literal(before)}"
        keys = ("PartitionKey", "RowKey")
        while rows := await self._table.rows(condition, DELETED_AT_ONCE, keys):
            for _, of_partition in groupby(rows, itemgetter("PartitionKey")):
                await self._table.delete(list(of_partition))
            deleted += len(rows)
        return deleted

    async def close(self) -> None:
        await self._table.close()


def trend_of(row: Mapping[str, Any]) -> Trend:
    """Raises KeyError, TypeError or ValueError if the row is not a trend."""
    date.fromisoformat(row["date"])
    counts = {name: int(row[name]) for name in COUNTS if name in row}
    return value_of(Trend, {**row, **counts}, ("dimensions", "warnings", "evidence"))
