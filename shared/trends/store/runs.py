"""Stores demands for nightly runs, and the runs, in the table ``TrendRuns``.

The PartitionKey is the data set; the RowKey is ``2026-03-01|demand`` or ``2026-03-01|run|0001``.
If an operator deletes the rows of a date, the next nightly run with data of the date recomputes it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from typing import Any

from shared.settings.connections import StorageConnection
from shared.storage.table_requests import Row
from shared.storage.tables import RowConflict, Table, key
from shared.trends.nightly.model import DateRuns, Demand, Ledger, Run, RunTaken
from shared.values.redaction import redacting
from shared.values.row_values import properties, value_of, zoned

TABLE_NAME = "TrendRuns"
ASKS_MAX = 10
"""The number of attempts to write a demand that other instances write at the same time."""
log = logging.getLogger(__name__)


@redacting
class TableRunStore:
    """See RunStore. ``Run.version`` is the row's ETag."""

    def __init__(self, connection: StorageConnection) -> None:
        self._table = Table(connection, TABLE_NAME)

    async def read(self, dataset: str) -> Ledger:
        rows = await self._table.range(key(dataset))
        now, days, unreadable = self._table.now(), dict[date, DateRuns](), set[str]()
        for row in rows:  # in the order of their keys: for each date the demand, then its runs
            try:
                day = _with_row(days, dataset, row)
            except Exception as error:  # another version or an operator may have written anything
                text = f"{row['RowKey']}: {type(error).__name__}: {error}"
                log.warning("[run_unreadable] %s %s: its date is skipped", dataset, text)
                unreadable.add(row["RowKey"].split("|")[0])
            else:
                days[day.date] = day
        return Ledger(dataset, now, {on: d for on, d in days.items() if str(on) not in unreadable})

    async def ask(self, dataset: str, demand: Demand) -> bool:
        row = {
            "PartitionKey": key(dataset),
            "RowKey": f"{demand.date}|demand",
            **properties(demand, ("date",), times_as_text=True),
        }
        for _ in range(ASKS_MAX):
            current = await self._table.get(row["PartitionKey"], row["RowKey"])
            if current and _covers(current, demand):
                return False
            try:
                await self._table.put_marked(row, current.metadata["etag"] if current else None)
            except RowConflict:  # written or deleted by another instance in between
                continue
            return True
        raise RunTaken(
            f"{dataset} {demand.date}: the demand in table {TABLE_NAME} changed during each of "
            f"{ASKS_MAX} attempts"
        )

    async def write(self, run: Run) -> Run:
        try:
            return replace(run, version=await self._table.put_marked(_row(run), run.version))
        except RowConflict as error:
            message = f"{run.dataset} {run.date}: another instance changed run {run.number} first"
            raise RunTaken(message) from error

    async def forget(self, dataset: str, day: date) -> None:
        rows = await self._table.range(key(dataset), f"{day}|", f"{day}}}")
        await self._table.delete(rows)

    async def close(self) -> None:
        await self._table.close()


def _with_row(days: Mapping[date, DateRuns], dataset: str, row: Any) -> DateRuns:
    """The runs of the row's date, with the row added. Raises if the row cannot be read."""
    day, kind = row["RowKey"].split("|")[:2]
    on = date.fromisoformat(day)
    runs = days.get(on, DateRuns(on))
    if kind == "run":
        return replace(runs, latest=_run(dataset, on, row))
    return replace(runs, demand=_demand(row))


def _covers(row: Mapping[str, Any], demand: Demand) -> bool:
    """Whether the stored demand is for data as new. A row that cannot be read is overwritten."""
    try:
        return _demand(row).data_until >= demand.data_until
    except (KeyError, TypeError, ValueError):
        return False


def _demand(row: Mapping[str, Any]) -> Demand:
    day = date.fromisoformat(row["RowKey"].split("|")[0])
    return value_of(Demand, {"reason": "by hand", **row}, time=zoned, date=day)


def _row(run: Run) -> Row:
    return {
        "PartitionKey": key(run.dataset),
        "RowKey": f"{run.date}|run|{run.number:04}",
        **properties(run, ("dataset", "date", "version"), times_as_text=True),
    }


def _run(dataset: str, day: date, row: Any) -> Run:
    given = {"dataset": dataset, "date": day, "version": row.metadata["etag"]}
    return value_of(Run, row, time=zoned, **given)
