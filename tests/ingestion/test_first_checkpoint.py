"""The first checkpoint of a stream is written before its first event is handled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from local.twins.ingestion import MemoryIngestionStore
from shared.ingestion.breaker.state import isolate
from shared.ingestion.errors import BreakerOpen, DependencyDown, Fenced, StoreUnavailable
from shared.ingestion.events.accounting import Writer
from shared.ingestion.events.process_batch import process_batch, process_undelivered
from shared.ingestion.events.stored_streams import StoredStreams, furthest
from shared.ingestion.model import Commit, Effect, Event, Stream
from shared.ingestion.store.events import StoredCheckpoint
from tests.builders import NOW
from tests.contract.ingestion import checkpoint, commit
from tests.ingestion import test_ingest as behind_the_breaker
from tests.ingestion import test_process_batch as flows
from tests.ingestion.test_process_batch import STREAM, events, lose


@pytest.fixture
def rig() -> flows.Rig:
    return flows.Rig()


async def hold_first_batch(rig: flows.Rig) -> None:
    rig.handle.fails(3, DependencyDown("database"))
    with pytest.raises(DependencyDown):
        await process_batch(events(3, 5), rig.consumer)
    assert rig.account == {"effects": [], "dead": [], "gaps": []}


async def test_a_first_batch_that_the_host_skips_is_read_back(rig: flows.Rig) -> None:
    rig.hub.add(STREAM, *events(3, 9))
    await hold_first_batch(rig)
    await process_batch(events(6, 9), rig.consumer)
    assert rig.account == {"effects": [3, 4, 5, 6, 7, 8, 9], "dead": [], "gaps": []}


async def test_a_skipped_first_batch_that_the_hub_no_longer_has_is_a_gap(rig: flows.Rig) -> None:
    rig.hub.add(STREAM, *events(6, 9))
    await hold_first_batch(rig)
    await process_batch(events(6, 9), rig.consumer)
    assert rig.account == {"effects": [6, 7, 8, 9], "dead": [], "gaps": [3, 4, 5]}


async def test_a_first_batch_that_is_never_redelivered_is_found_by_a_sweep(rig: flows.Rig) -> None:
    rig.hub.add(STREAM, *events(3, 5))
    await hold_first_batch(rig)
    await process_undelivered(rig.consumer)
    assert rig.account == {"effects": [3, 4, 5], "dead": [], "gaps": []}


async def test_no_event_is_handled_before_the_first_checkpoint_is_written(rig: flows.Rig) -> None:
    async def handle(event: Event) -> Effect:
        checkpoint = rig.store.stream.checkpoint
        assert checkpoint is not None
        assert (checkpoint.start, checkpoint.sequence, checkpoint.offset) == (3, 2, "")
        assert (checkpoint.epoch, checkpoint.owner) == (1, "me")
        return Effect(event.sequence)

    await process_batch(list(reversed(events(3, 5))), replace(rig.consumer, handle=handle))
    assert rig.account["effects"] == [3, 4, 5]


async def test_a_lost_reply_does_not_write_the_first_checkpoint_twice(rig: flows.Rig) -> None:
    rig.store.after = [lose]
    await process_batch(events(3, 5), rig.consumer)
    assert len(rig.store.commits) == 2
    assert rig.account["effects"] == [3, 4, 5]


async def test_only_one_of_two_concurrent_readers_writes_the_first_checkpoint(
    rig: flows.Rig,
) -> None:
    other = replace(rig.consumer, writer=Writer("other", 1), new_txid=lambda: "another")
    await asyncio.gather(
        process_batch(events(3, 5), rig.consumer), process_batch(events(3, 5), other)
    )
    assert rig.account["effects"] == [3, 4, 5]
    first_checkpoints = [c for c in rig.store.commits if c.checkpoint.sequence < c.checkpoint.start]
    assert len(first_checkpoints) == 1


async def test_a_fenced_reader_does_not_write_the_first_checkpoint(rig: flows.Rig) -> None:
    late = replace(rig.consumer, writer=Writer("late", 0))

    async def overtaken() -> None:
        await process_batch(events(3, 5), rig.consumer)

    rig.store.before = [overtaken]
    with pytest.raises(Fenced):
        await process_batch(events(3, 5), late)


async def test_the_first_checkpoint_is_written_although_the_breaker_is_open() -> None:
    rig = behind_the_breaker.Rig()
    rig.hub.add(STREAM, *events(3, 9))
    seen = await rig.breakers.load()
    stopped = isolate(seen.breaker, "deploying", NOW, rig.breaker.times)
    assert stopped is not None
    seen = await rig.breakers.replace(seen, stopped)
    with pytest.raises(BreakerOpen):
        await rig.ingest(3, 5)
    assert rig.handled == []
    await rig.breakers.replace(seen, replace(seen.breaker, mode=seen.breaker.mode.CLOSED))
    await rig.ingest(6, 9)
    assert sorted(rig.store.rows[STREAM].effects) == [3, 4, 5, 6, 7, 8, 9]


async def test_the_first_checkpoint_is_written_although_the_breaker_cannot_be_read() -> None:
    rig = behind_the_breaker.Rig()
    rig.hub.add(STREAM, *events(3, 9))
    ask: Callable[[], Awaitable[object]] = rig.breakers.load

    async def fail() -> None:
        raise StoreUnavailable("breaker")

    rig.breakers.load = fail  # type: ignore[assignment, method-assign]
    with pytest.raises(StoreUnavailable):
        await rig.ingest(3, 5)
    rig.breakers.load = ask  # type: ignore[assignment, method-assign]
    await rig.ingest(6, 9)
    assert sorted(rig.store.rows[STREAM].effects) == [3, 4, 5, 6, 7, 8, 9]


async def test_no_event_is_handled_while_the_first_checkpoint_cannot_be_written(
    rig: flows.Rig,
) -> None:
    commit: Callable[[Stream, StoredCheckpoint, Commit], Awaitable[StoredCheckpoint]] = (
        rig.store.commit
    )

    async def fail(stream: Stream, saved: StoredCheckpoint, commit: Commit) -> StoredCheckpoint:
        raise StoreUnavailable(f"{stream.key} {saved} {commit}")

    rig.store.commit = fail  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        await process_batch(events(3, 5), rig.consumer)
    assert rig.handle.handled == []
    rig.store.commit = commit  # type: ignore[assignment, method-assign]
    await process_batch(events(3, 5), rig.consumer)
    assert rig.account["effects"] == [3, 4, 5]


@pytest.mark.parametrize("behind", [None, -1, 3])
@pytest.mark.parametrize("ahead", [-1, 0, 4])
def test_a_checkpoint_counts_more_than_none_and_a_further_one_more(
    behind: int | None, ahead: int
) -> None:
    """A checkpoint of -1 has no event yet, but was written."""
    if behind is not None and behind >= ahead:
        return
    names = [Stream("ns", hub, "$Default", "0") for hub in ("hub", "HUB")]
    before = None if behind is None else checkpoint(behind)
    for one, other in (names, reversed(names)):
        assert furthest({one: before, other: checkpoint(ahead)}) == other


async def test_names_that_could_not_be_compared_are_read_again_with_those_that_came_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryIngestionStore(lambda: NOW)
    lower = Stream("ns", "hub", "$Default", "0")
    for hub, last in (("hub", 3), ("HUB", 5)):
        each = replace(lower, hub=hub)
        await store.commit(each, await store.load(each), commit(None, last))
    streams, load = StoredStreams(store), store.load

    async def fail(_stream: Stream) -> StoredCheckpoint:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(store, "load", fail)
    with pytest.raises(StoreUnavailable):
        await streams.find(lower)
    monkeypatch.setattr(store, "load", load)
    third = replace(lower, hub="Hub")
    await store.commit(third, await store.load(third), commit(None, 9))
    await streams.find(replace(lower, hub="other"))
    assert await streams.find(lower) == third
