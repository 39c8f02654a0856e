"""Reads the event trends that the nightly job wrote to the table ``Trends``."""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import date

from shared.adapters.tables.table import Table
from shared.sampling.trend_rows import Trend, trend_of, unreadable_trend
from shared.settings.connections import StorageConnection
from shared.values.redaction import redacting

TABLE_NAME = "Trends"
ROWS_MAX = 100_000
"""The most rows that are read: one month of three thousand series, in a hundred pages."""

log = logging.getLogger(__name__)


@redacting
class TableTrends:
    """Reads trends; it never writes."""

    def __init__(self, connection: StorageConnection) -> None:
        self._table = Table(connection, TABLE_NAME)

    async def since(
        self, first: date, verdicts: Collection[str] = (), rows_max: int = ROWS_MAX
    ) -> list[Trend]:
        """The trends of each series and day from ``first`` on, or only those with these verdicts.

        A row that cannot be read is logged. If no ``verdicts`` are given, the row is also returned,
        with the verdict ``unreadable``. At most ``rows_max`` rows are read, in the order of the
        series' names; a log line says when there are more.
        """
        query, parameters = "RowKey ge @first", {"first": first.isoformat()}
        if verdicts:
            values = {f"verdict{number}": str(each) for number, each in enumerate(sorted(verdicts))}
            condition = " or ".join([f"verdict eq @{name}" for name in values])
            query, parameters = f"{query} and ( {condition} )", {**parameters, **values}
        trends = []
        rows = await self._table.rows(query, parameters, rows_max)
        if len(rows) == rows_max:
            log.warning(
                "[trends_cut] table %s has %s rows or more from %s on; the rest is not read",
                TABLE_NAME,
                rows_max,
                first,
            )
        for row in rows:
            try:
                trends.append(trend_of(row))
            except (KeyError, TypeError, ValueError) as error:
                log.warning("[trend_not_understood] %s: %s", row["PartitionKey"], error)
                if not verdicts:
                    trends.append(unreadable_trend(row, error))
        return trends

    async def close(self) -> None:
        await self._table.close()
