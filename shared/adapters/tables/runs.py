"""Demands and runs as rows of the table ``TrendRuns``: PartitionKey is the data set.

RowKey is ``2026-03-01|demand`` or ``2026-03-01|run|0001``. Rows are made to be read by people:
who deletes a date's rows has it recomputed by the next night that finds data for it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import date, datetime
from typing import Any

from shared.adapters.azure.transport import server_time
from shared.adapters.tables.table import Row, RowConflict, Table, key
from shared.nightly.errors import RunTaken
from shared.nightly.model import DateRuns, Demand, Ledger, Run, RunState
from shared.settings.connections import StorageConnection
from shared.values.redaction import redacting

TABLE_NAME = "TrendRuns"
ASKS_MAX = 10
"""Tries to write a demand that others write at the same time."""

TIMES = ("data_until", "created_at", "changed_at", "lease_until", "submitted_at", "retry_at")
log = logging.getLogger(__name__)
NOT_WRITTEN = ("dataset", "date", "version")


@redacting
class TableRunStore:
    """See RunStore. ``Run.version`` is the row's ETag."""

    def __init__(self, connection: StorageConnection) -> None:
        self._table = Table(connection, TABLE_NAME)

    async def read(self, dataset: str) -> Ledger:
        rows = await self._table.rows("PartitionKey eq @dataset", {"dataset": key(dataset)})
        now, days, unreadable = server_time(), dict[date, DateRuns](), set[str]()
        for row in rows:  # in the order of their keys: of each date the demand, then its runs
            try:
                day = _with_row(days, dataset, row)
            except Exception as error:  # whatever another version, or a person, may have written
                text = f"{row['RowKey']}: {type(error).__name__}: {error}"
                log.warning("[run_unreadable] %s %s: its date is left alone", dataset, text)
                unreadable.add(row["RowKey"].split("|")[0])
            else:
                days[day.date] = day
        return Ledger(dataset, now, {on: d for on, d in days.items() if str(on) not in unreadable})

    async def ask(self, dataset: str, demand: Demand) -> bool:
        row = {
            "PartitionKey": key(dataset),
            "RowKey": f"{demand.date}|demand",
            "data_until": demand.data_until.isoformat(),
            "reason": demand.reason,
        }
        for _ in range(ASKS_MAX):
            standing = await self._table.get(row["PartitionKey"], row["RowKey"])
            if standing and _is_met(standing, demand):
                return False
            try:
                await self._table.put_marked(row, standing and str(standing.metadata["etag"]))
            except RowConflict:  # asked for, or deleted, in between
                continue
            return True
        raise RunTaken(f"{dataset} {demand.date}: the demand in {TABLE_NAME} changes all the time")

    async def insert(self, run: Run) -> Run:
        return await self._written(run, None)

    async def replace(self, run: Run) -> Run:
        return await self._written(run, run.version)

    async def forget(self, dataset: str, day: date) -> None:
        rows = await self._table.range(key(dataset), f"{day}|", f"{day}}}")
        await self._table.delete(rows)

    async def close(self) -> None:
        await self._table.close()

    async def _written(self, run: Run, version: str | None) -> Run:
        try:
            return replace(run, version=await self._table.put_marked(_row(run), version))
        except RowConflict as error:
            message = f"{run.dataset} {run.date}: run {run.number} is another's"
            raise RunTaken(message) from error


def _with_row(days: Mapping[date, DateRuns], dataset: str, row: Any) -> DateRuns:
    """The row's date with the row. Raises for a row that cannot be read."""
    day, kind = row["RowKey"].split("|")[:2]
    on = date.fromisoformat(day)
    known = days.get(on, DateRuns(on))
    if kind == "run":
        return replace(known, latest=_run(dataset, on, row))
    return replace(known, demand=_demand(row))


def _is_met(standing: Mapping[str, Any], demand: Demand) -> bool:
    """Whether so much data are asked for already; a row that cannot be read asks for none."""
    try:
        return _demand(standing).data_until >= demand.data_until
    except (KeyError, TypeError, ValueError):
        return False


def _demand(row: Mapping[str, Any]) -> Demand:
    day = date.fromisoformat(row["RowKey"].split("|")[0])
    return Demand(day, datetime.fromisoformat(row["data_until"]), row.get("reason", "by hand"))


def _row(run: Run) -> Row:
    values = {each.name: getattr(run, each.name) for each in fields(run)}
    values |= {name: run_time.isoformat() for name in TIMES if (run_time := values[name])}
    values["state"] = str(run.state)
    written = {n: v for n, v in values.items() if n not in NOT_WRITTEN and v is not None}
    return {
        "PartitionKey": key(run.dataset),
        "RowKey": f"{run.date}|run|{run.number:04}",
        **written,
    }


def _run(dataset: str, day: date, row: Any) -> Run:
    names = {each.name for each in fields(Run)}
    values = {name: value for name, value in row.items() if name in names}
    values |= {name: datetime.fromisoformat(values[name]) for name in TIMES if name in values}
    values["state"] = RunState(values["state"])
    return Run(**values, dataset=dataset, date=day, version=row.metadata["etag"])
