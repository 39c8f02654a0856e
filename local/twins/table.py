"""A table of Table Storage in memory. The stores on it are those of the product."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import count
from typing import Any

from shared.storage.table_requests import Row, RowOperation, StoredRow
from shared.storage.tables import ANY_VERSION, RowConflict, Table

Keys = tuple[str, str]


class MemoryTable(Table):
    """See Table. As with ETags, no two writes have the same version."""

    _versions = count(1)

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self.stored: dict[Keys, StoredRow] = {}

    def now(self) -> datetime:
        return self._clock()

    async def get(self, partition_key: str, row_key: str) -> StoredRow | None:
        return self.stored.get((partition_key, row_key))

    async def range(
        self,
        partition_key: str,
        start: str = "",
        end: str | None = None,
        limit: int | None = None,
        at_least: Mapping[str, Any] | None = None,
        select: Sequence[str] = (),  # noqa: ARG002
    ) -> list[Any]:
        return [
            row
            for row in await self.all_rows()
            if row["PartitionKey"] == partition_key
            and row["RowKey"] >= start
            and (end is None or row["RowKey"] < end)
            and all(row[name] >= value for name, value in (at_least or {}).items())
        ][:limit]

    async def all_rows(self, select: Sequence[str] = ()) -> list[Any]:  # noqa: ARG002
        return [row for _, row in sorted(self.stored.items())]

    async def put(self, row: Row, version: str | None) -> str:
        self._check(row, version)
        return self._store(row)

    async def put_marked(self, row: Row, version: str | None) -> str:
        return await self.put(row, version)  # no reply is lost

    async def overwrite(self, row: Row) -> None:
        self._store(row)

    async def submit(self, operations: Sequence[RowOperation]) -> Sequence[str]:
        for each in operations:
            if each.method == "POST" or each.version not in (None, ANY_VERSION):
                self._check(each.row, each.version)
        return [self._done(each.method, each.row) for each in operations]

    async def delete(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.stored.pop(_keys(row), None)

    async def close(self) -> None: ...

    def _check(self, row: Row, version: str | None) -> None:
        current = self.stored.get(_keys(row))
        if (current.metadata["etag"] if current is not None else None) != version:
            raise RowConflict(row["RowKey"])

    def _done(self, method: str, row: Row) -> str:
        if method != "DELETE":
            return self._store(row)
        del self.stored[_keys(row)]
        return ""

    def _store(self, row: Row) -> str:
        version = str(next(self._versions))
        written = self.stored[_keys(row)] = StoredRow(row)
        written.metadata = {"etag": version, "timestamp": self._clock()}
        return version


def _keys(row: Mapping[str, Any]) -> Keys:
    return row["PartitionKey"], row["RowKey"]
