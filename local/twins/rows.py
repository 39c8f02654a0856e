"""The rows of ingestion in memory, for unit tests and simulation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import count
from typing import Any

from shared.ingestion.errors import AccountingBroken, RowChanged
from shared.ingestion.store.rows import (
    CommitLimits,
    Insert,
    Kind,
    Place,
    Put,
    Remove,
    Row,
    RowPage,
    V,
    Write,
)

Key = tuple[Any, ...]
Undo = tuple[dict[Key, Row[Any]], Key, Row[Any] | None]


class MemoryRows:
    """See RowEngine. Its transactions have the limits and conditions of Table Storage. No version
    is used twice, even if a row is deleted and inserted again."""

    def __init__(self, clock: Callable[[], datetime], rows_max: int = 100) -> None:
        self.limits = CommitLimits(rows_max)
        self._clock = clock
        self._versions = count(1)
        self.stored: dict[tuple[str, Place], dict[Key, Row[Any]]] = defaultdict(dict)
        """By the name of the kind and the place: the rows by their keys."""

    async def read(
        self,
        kind: Kind[V],
        place: Place,
        key: Key = (),
        *,
        after: int | None = None,
        limit: int | None = None,
        since: datetime | None = None,
    ) -> RowPage[V]:
        rows = self.stored[kind.name, place]
        found = [
            rows[each]
            for each in sorted(rows if not key else {key} & rows.keys())
            if (after is None or each[0] > after)
            and (since is None or getattr(rows[each].value, kind.since) >= since)
        ]
        return RowPage(tuple(found[:limit]), self._clock())

    async def newest(
        self,
        kind: Kind[V],
        place: Place,
        limit: int,
        within: tuple[int, int],  # noqa: ARG002
    ) -> RowPage[V]:
        page = await self.read(kind, place)
        return RowPage(page.rows[::-1][:limit], page.read_at)

    async def places(self, *kinds: Kind[Any]) -> Sequence[Place]:
        names = {kind.name for kind in kinds}
        return sorted(
            {place for (name, place), rows in self.stored.items() if rows and name in names}
        )

    async def write(
        self, place: Place, writes: Sequence[Write], also: Callable[[Any], None] | None = None
    ) -> Row[Any] | None:
        undo: list[Undo] = []
        try:
            for each in writes:
                rows = self.stored[each.kind.name, place]
                if isinstance(each, Insert):
                    self._insert(each, rows, undo)
                else:
                    self._put_or_remove(each, rows, undo)
            if also is not None:
                also(self)
        except BaseException:
            for rows, key, before in reversed(undo):
                _restore(rows, key, before)
            raise
        first = writes[0] if writes else None
        if not isinstance(first, Put):
            return None
        return self.stored[first.kind.name, place][first.kind.key_of(first.value)]

    async def overwrite(self, kind: Kind[V], place: Place, value: V) -> None:
        self.stored[kind.name, place][kind.key_of(value)] = self.row(value)

    async def delete(self, kind: Kind[V], place: Place, values: Sequence[V]) -> None:
        for each in values:
            self.stored[kind.name, place].pop(kind.key_of(each), None)

    async def purge(self, kind: Kind[Any], place: Place, up_to: Any, limit: int) -> int:
        rows = self.stored[kind.name, place]
        old = sorted(key for key in rows if key[0] <= up_to)[:limit]
        for key in old:
            del rows[key]
        return len(old)

    async def close(self) -> None: ...

    def _insert(self, write: Insert, rows: dict[Key, Row[Any]], undo: list[Undo]) -> None:
        for value in write.values:
            key = write.kind.key_of(value)
            if key in rows:
                raise AccountingBroken(f"row {write.kind.name} {key} already exists")
            undo.append((rows, key, None))
            rows[key] = self.row(value)

    def _put_or_remove(
        self, write: Put | Remove, rows: dict[Key, Row[Any]], undo: list[Undo]
    ) -> None:
        key = write.kind.key_of(write.value)
        current = rows.get(key)
        if (current and current.version) != write.version:
            raise RowChanged(f"row {write.kind.name} {key}")
        undo.append((rows, key, current))
        if isinstance(write, Remove):
            del rows[key]
            return
        value = write.value
        if current and write.only:
            value = replace(current.value, **{name: getattr(value, name) for name in write.only})
        rows[key] = self.row(value)

    def row(self, value: Any) -> Row[Any]:
        return Row(value, next(self._versions), self._clock())


def _restore(rows: dict[Key, Row[Any]], key: Key, before: Row[Any] | None) -> None:
    if before is None:
        rows.pop(key, None)
    else:
        rows[key] = before
