"""Event trends as the nightly job wrote them into the table ``Trends``."""

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
"""A month of three thousand series, in a hundred pages."""

log = logging.getLogger(__name__)


@redacting
class TableTrends:
    """Reads only."""

    def __init__(self, connection: StorageConnection) -> None:
        self._table = Table(connection, TABLE_NAME)

    async def since(
        self, first: date, verdicts: Collection[str] = (), rows_max: int = ROWS_MAX
    ) -> list[Trend]:
        """The days from then on, or those of these verdicts; a row that is not understood hides no
        other, and is a day of the verdict ``unreadable`` where all are asked for. Of more than
        ``rows_max`` the last series by name are missing, which is logged."""
        query, parameters = "RowKey ge @first", {"first": first.isoformat()}
        if verdicts:
            named = {f"verdict{number}": str(each) for number, each in enumerate(sorted(verdicts))}
            either = " or ".join([f"verdict eq @{name}" for name in named])
            query, parameters = f"{query} and ( {either} )", {**parameters, **named}
        trends = []
        rows = await self._table.rows(query, parameters, rows_max)
        if len(rows) == rows_max:
            log.warning("[trends_cut] more than %s days of series: the rest is not read", rows_max)
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
