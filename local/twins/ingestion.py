"""The stores of ingestion on the engine in memory, and their rows as the tests look at them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from datetime import datetime
from typing import Any

from local.twins.rows import MemoryRows
from shared.ingestion.breaker.state import Breaker
from shared.ingestion.errors import AccountingBroken
from shared.ingestion.model import (
    Checkpoint,
    DeadLetter,
    Effect,
    Gap,
    Mark,
    OutboxMessage,
    Ownership,
    Stream,
)
from shared.ingestion.store.breakers import BreakerStore, decode_breaker
from shared.ingestion.store.events import EventStore
from shared.ingestion.store.owners import OwnershipStore, ownership
from shared.ingestion.store.rows import (
    BREAKER,
    CHECKPOINT,
    DEAD,
    GAP,
    MARK,
    OUTBOX,
    OWNER,
    Kind,
    Row,
)

GROUP = ("ns", "hub", "$Default")
Clock = Callable[[], datetime]


class RowsOfKind(MutableMapping[Any, Any]):
    """The values of one kind in a stream, by the number or time in their key."""

    def __init__(self, rows: MemoryRows, kind: Kind[Any], stream: Stream) -> None:
        self._engine = rows
        self._rows = rows.stored[kind.name, stream.place]

    def __getitem__(self, key: Any) -> Any:
        return self._rows[(key,)].value

    def __setitem__(self, key: Any, value: Any) -> None:
        self._rows[(key,)] = self._engine.row(value)

    def __delitem__(self, key: Any) -> None:
        del self._rows[(key,)]

    def __iter__(self) -> Iterator[Any]:
        return iter([key for (key,) in self._rows])

    def __len__(self) -> int:
        return len(self._rows)


class StreamRows:
    """The rows of one stream. Unlike in a store, ``effects`` also has those without a row."""

    def __init__(self, rows: MemoryRows, stream: Stream, effects: dict[int, Effect]) -> None:
        self._engine, self._stream, self.effects = rows, stream, effects
        self.dead_letters: MutableMapping[int, DeadLetter] = RowsOfKind(rows, DEAD, stream)
        self.gaps: MutableMapping[int, Gap] = RowsOfKind(rows, GAP, stream)
        self.marks: MutableMapping[datetime, Mark] = RowsOfKind(rows, MARK, stream)

    @property
    def checkpoint(self) -> Checkpoint | None:
        row = self._checkpoint.get(())
        return row.value if row else None

    @checkpoint.setter
    def checkpoint(self, value: Checkpoint) -> None:
        self._checkpoint[()] = self._engine.row(value)

    @property
    def version(self) -> int | None:
        row = self._checkpoint.get(())
        return row.version if row else None

    @property
    def outbox(self) -> Mapping[tuple[int, int], OutboxMessage]:
        rows = self._engine.stored[OUTBOX.name, self._stream.place]
        return {
            (number, place): OutboxMessage(row.value.message_id, row.value.body)
            for (number, place), row in rows.items()
        }

    @property
    def _checkpoint(self) -> dict[tuple[Any, ...], Row[Any]]:
        return self._engine.stored[CHECKPOINT.name, self._stream.place]


class MemoryIngestionStore(EventStore):
    """Refuses an effect of an event that already has an outcome, even if it needs no row."""

    def __init__(self, clock: Clock, rows_max: int = 100) -> None:
        self.memory = MemoryRows(clock, rows_max)
        super().__init__(self.memory, self.record)
        self._clock = clock
        self.effects: dict[Stream, dict[int, Effect]] = defaultdict(dict)

    @property
    def rows(self) -> Streams:
        return Streams(self)

    def record(self, _rows: MemoryRows, stream: Stream, effects: Sequence[Effect]) -> None:
        new = {effect.sequence: effect for effect in effects}
        known = new.keys() & {*self.effects[stream], *self.rows[stream].dead_letters}
        if known or len(new) < len(effects):
            raise AccountingBroken("a sequence number already has an outcome")
        self.effects[stream].update(new)

    async def purge_effects(self, stream: Stream, up_to: int, limit: int) -> int:
        removed = await super().purge_effects(stream, up_to, limit)
        effects = self.effects[stream]
        for number in [n for n in sorted(effects) if effects[n].value is not None][:removed]:
            del effects[number]
        return removed


class Streams(dict[Stream, StreamRows]):
    """The streams of a store, as they are now."""

    def __init__(self, store: MemoryIngestionStore) -> None:
        self._store = store
        places = {place for _, place in store.memory.stored}
        super().__init__((stream, self[stream]) for stream in {Stream(*p) for p in places})

    def __missing__(self, stream: Stream) -> StreamRows:
        return StreamRows(self._store.memory, stream, self._store.effects[stream])

    def clear(self) -> None:
        self._store.memory.stored.clear()
        self._store.effects.clear()


class MemoryBreakerStore(BreakerStore):
    def __init__(self, clock: Clock) -> None:
        self.memory = MemoryRows(clock)
        super().__init__(self.memory, "breaker")

    @property
    def stored(self) -> Breaker:
        row = self.memory.stored[BREAKER.name, ("breaker",)].get(())
        return decode_breaker(row.value.state) if row else Breaker()


class MemoryOwnershipStore(OwnershipStore):
    def __init__(self, clock: Clock) -> None:
        self.memory = MemoryRows(clock)
        super().__init__(self.memory, *GROUP)

    @property
    def by_partition(self) -> dict[str, Ownership]:
        rows = self.memory.stored[OWNER.name, GROUP].values()
        owners = [ownership(row) for row in rows]
        return {each.partition_id: each for each in owners}

    def delete(self, partition_id: str) -> Ownership:
        """A person deletes the row."""
        row = self.memory.stored[OWNER.name, GROUP].pop((partition_id,))
        return ownership(row)
