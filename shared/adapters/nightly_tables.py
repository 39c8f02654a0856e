"""Demands and runs as rows of the table ``TrendRuns``: PartitionKey is the data set.

RowKey is ``2026-03-01|demand`` or ``2026-03-01|run|0001``. Rows are made to be read by people:
who deletes a date's rows has it recomputed by the next night that finds data for it.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import fields, replace
from datetime import date, datetime
from typing import Any

from azure.core import MatchConditions
from azure.core.exceptions import (
    HttpResponseError,
    ResourceExistsError,
    ResourceModifiedError,
    ResourceNotFoundError,
)
from azure.data.tables import UpdateMode

from shared.adapters.claims_table import key
from shared.adapters.table_service import table_service
from shared.adapters.transport import server_time
from shared.connections import StorageConnection
from shared.nightly.errors import RunTaken
from shared.nightly.model import Day, Demand, Ledger, Run, RunState

TABLE_NAME = "TrendRuns"
CONFLICT = 409
TIMES = ("data_until", "created_at", "changed_at", "lease_until", "submitted_at", "retry_at")
NOT_WRITTEN = ("dataset", "date", "version")


class TableRunStore:
    """See RunStore. ``Run.version`` is the row's ETag.

    Each write carries a mark of its own: after a lost reply the client repeats a request, is told
    that the row is there or has changed, and finds by the mark that it was its own doing.
    """

    def __init__(self, connection: StorageConnection) -> None:
        self._service = table_service(connection)
        self._table = self._service.get_table_client(TABLE_NAME)

    async def read(self, dataset: str) -> Ledger:
        query = "PartitionKey eq @dataset"
        try:
            rows = [row async for row in self._table.query_entities(query, parameters=_of(dataset))]
        except ResourceNotFoundError:
            await self._service.create_table_if_not_exists(TABLE_NAME)
            rows = []
        now, days = server_time(), dict[date, Day]()
        for row in rows:  # in the order of their keys: of each date the demand, then its runs
            day, kind = row["RowKey"].split("|")[:2]
            on = date.fromisoformat(day)
            known = days.get(on, Day(on))
            is_run = kind == "run"
            run, demand = (_run(dataset, on, row), known.demand) if is_run else (None, _demand(row))
            days[on] = replace(known, latest=run or known.latest, demand=demand)
        return Ledger(dataset, now, days)

    async def ask(self, dataset: str, demand: Demand) -> bool:
        row = {
            "PartitionKey": key(dataset),
            "RowKey": f"{demand.date}|demand",
            "data_until": demand.data_until.isoformat(),
            "reason": demand.reason,
        }
        while True:
            if await self._inserted(row) is not None:
                return True
            try:
                standing = await self._table.get_entity(row["PartitionKey"], row["RowKey"])
                if _demand(standing).data_until >= demand.data_until:
                    return False
                await self._replace(row, str(standing.metadata["etag"]))
            except (ResourceModifiedError, ResourceNotFoundError):  # changed or deleted in between
                continue
            return True

    async def insert(self, run: Run) -> Run:
        return await self._written(run, self._inserted)

    async def replace(self, run: Run) -> Run:
        async def replaced(row: Mapping[str, Any]) -> str | None:
            try:
                return await self._replace(row, run.version)
            except (ResourceModifiedError, ResourceNotFoundError):
                return None

        return await self._written(run, replaced)

    async def forget(self, dataset: str, day: date) -> None:
        query = "PartitionKey eq @dataset and RowKey ge @first and RowKey lt @last"
        bounds = {**_of(dataset), "first": f"{day}|", "last": f"{day}}}"}
        rows = [row async for row in self._table.query_entities(query, parameters=bounds)]
        for row in reversed(rows):  # the latest run first: what is left numbers on without a gap
            await self._table.delete_entity(row["PartitionKey"], row["RowKey"])

    async def close(self) -> None:
        await self._service.close()

    async def _written(
        self, run: Run, write: Callable[[Mapping[str, Any]], Awaitable[str | None]]
    ) -> Run:
        row = {**_row(run), "mark": uuid.uuid4().hex}
        etag = await write(row) or await self._own(row)
        if etag is None:
            raise RunTaken(f"{run.dataset} {run.date}: run {run.number} is another's")
        return replace(run, version=etag)

    async def _own(self, row: Mapping[str, Any]) -> str | None:
        """The version of the row that stands, if it was written by this very call."""
        try:
            standing = await self._table.get_entity(row["PartitionKey"], row["RowKey"])
        except ResourceNotFoundError:
            return None
        own = standing.get("mark") == row["mark"]
        return str(standing.metadata["etag"]) if own else None

    async def _replace(self, row: Mapping[str, Any], etag: str) -> str:
        answer = await self._table.update_entity(
            row, mode=UpdateMode.REPLACE, etag=etag, match_condition=MatchConditions.IfNotModified
        )
        return str(answer["etag"])

    async def _inserted(self, row: Mapping[str, Any]) -> str | None:
        """The row's version; None where there is one already."""
        try:
            return str((await self._table.create_entity(row))["etag"])
        except ResourceExistsError:
            return None
        except ResourceNotFoundError:
            await self._service.create_table_if_not_exists(TABLE_NAME)
            return await self._inserted(row)
        except HttpResponseError as error:
            if error.status_code == CONFLICT:
                return None
            raise


def _of(dataset: str) -> dict[str, str]:
    return {"dataset": key(dataset)}


def _demand(row: Mapping[str, Any]) -> Demand:
    day = date.fromisoformat(row["RowKey"].split("|")[0])
    return Demand(day, datetime.fromisoformat(row["data_until"]), row.get("reason", "by hand"))


def _row(run: Run) -> dict[str, Any]:
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
