"""Simulates crashes and lost replies: the SQL store behaves like the in-memory adapter in each
call."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

import pytest

from local.twins.ingestion import MemoryIngestionStore
from shared.ingestion.errors import IngestionError
from shared.ingestion.model import Commit, Stream
from shared.ingestion.store.events import EventStore, StoredCheckpoint, StoredMessage
from shared.ingestion.store.sql import SqlRows
from shared.ingestion.store.sql_engine import Sql
from shared.ingestion.store.sql_schema import metadata
from tests.simulation.seeds import seeds
from tests.simulation.test_ingestion import STREAM, RememberingStore, World, check_world, faulty

T = TypeVar("T")


async def inline(work: Callable[[], T]) -> T:
    """Runs the work without a thread, so that only the scheduler decides about the order."""
    return work()


@faulty
class Both(RememberingStore):
    """The in-memory adapter and SQLite side by side: both must return or refuse the same."""

    def __init__(self, clock: Callable[[], datetime], rows_max: int) -> None:
        super().__init__(clock, rows_max)
        self.database = Sql("sqlite://", metadata, run=inline)
        self.sql = EventStore(SqlRows(self.database))

    async def load(self, stream: Stream) -> StoredCheckpoint:
        mine, theirs = await super().load(stream), await self.sql.load(stream)
        return _pair(mine, theirs)

    async def commit(
        self, stream: Stream, saved: StoredCheckpoint, commit: Commit
    ) -> StoredCheckpoint:
        versions = saved.version
        try:
            mine = await super().commit(stream, _with(saved, versions[0]), commit)
        except IngestionError as refusal:
            with pytest.raises(type(refusal)):
                await self.sql.commit(stream, _with(saved, versions[1]), commit)
            raise
        return _pair(mine, await self.sql.commit(stream, _with(saved, versions[1]), commit))

    async def outbox(self, stream: Stream, limit: int) -> Sequence[StoredMessage]:
        mine, theirs = await super().outbox(stream, limit), await self.sql.outbox(stream, limit)
        assert mine == theirs
        return [
            replace(each, version=(each.version, other.version))
            for each, other in zip(mine, theirs, strict=True)
        ]

    async def take(self, stream: Stream, messages: Sequence[StoredMessage]) -> None:
        mine, theirs = [
            [replace(each, version=each.version[side]) for each in messages] for side in (0, 1)
        ]
        try:
            await super().take(stream, mine)
        except IngestionError as refusal:
            with pytest.raises(type(refusal)):
                await self.sql.take(stream, theirs)
            raise
        await self.sql.take(stream, theirs)

    async def sent(self, stream: Stream, messages: Sequence[StoredMessage]) -> None:
        await super().sent(stream, messages)
        await self.sql.sent(stream, messages)


def _pair(mine: StoredCheckpoint, theirs: StoredCheckpoint) -> StoredCheckpoint:
    assert mine.checkpoint == theirs.checkpoint
    return StoredCheckpoint(mine.checkpoint, mine.read_at, (mine.version, theirs.version))


def _with(saved: StoredCheckpoint, version: object) -> StoredCheckpoint:
    return StoredCheckpoint(saved.checkpoint, saved.read_at, version)


@contextmanager
def world(seed: int, fault_rate: float) -> Iterator[tuple[World, Both]]:
    made: list[Both] = []

    def make(clock: Callable[[], datetime], rows_max: int) -> Both:
        made.append(Both(clock, rows_max))
        return made[0]

    try:
        yield World(seed, fault_rate, make), made[0]
    finally:
        made[0].database.engine.dispose()


def run_now(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that does not wait."""
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("the coroutine waited")


def check_seed(seed: int) -> None:
    with world(seed, (0.005, 0.02, 0.05)[seed % 3]) as (hostile, store):
        check_world(hostile, seed)
        mine = run_now(MemoryIngestionStore.dead_letters(store, STREAM, None, 9999))
        theirs = run_now(store.sql.dead_letters(STREAM, None, 9999))
        assert [each.letter for each in mine] == [each.letter for each in theirs], f"seed {seed}"
        gaps = run_now(store.sql.gaps(STREAM, None, 9999))
        assert gaps == list(hostile.rows.gaps.values()), f"seed {seed}"


@pytest.mark.parametrize("seed", seeds(10))
def test_the_sql_store_behaves_like_the_in_memory_adapter(seed: int) -> None:
    check_seed(seed)
