"""The contract of EventStore, tested on each implementation."""

from __future__ import annotations

from datetime import timedelta

from shared.ingestion.model import Mark
from shared.ingestion.store.events import EventStore
from tests.builders import NOW
from tests.contract.ingestion import commit, effect, gap, letter, new_stream

MARKS = [Mark(NOW + timedelta(microseconds=n), 2**40 + n) for n in (1, 2, 10, 10**12)]


async def test_marks_are_read_by_time_to_the_microsecond_and_can_be_removed(
    store: EventStore,
) -> None:
    stream, other = new_stream(), new_stream("1")
    assert await store.marks(stream) == []
    for mark in (*reversed(MARKS), MARKS[0]):
        await store.put_mark(stream, mark)
    await store.put_mark(other, MARKS[0])
    assert await store.marks(stream) == MARKS
    await store.remove_marks(stream, MARKS[:2])
    await store.remove_marks(stream, MARKS[:3])
    await store.remove_marks(stream, [])
    assert await store.marks(stream) == MARKS[3:]
    assert await store.marks(other) == MARKS[:1]


async def test_purging_removes_only_effects_up_to_a_sequence_number_and_a_few_at_a_time(
    store: EventStore,
) -> None:
    stream, other = new_stream(), new_stream("1")
    for each in (stream, other):
        new_effects = [effect(each, n, value=f"v{n}") for n in range(7)]
        written = commit(None, 9, new_effects, [letter(7), letter(9)], [gap(8, 8)])
        await store.commit(each, await store.load(each), written)
    before = await store.load(stream)
    removed = [await store.purge_effects(stream, 4, 3) for _ in range(3)]
    assert removed == [3, 2, 0]
    after = await store.load(stream)
    assert (after.checkpoint, after.version) == (before.checkpoint, before.version)
    assert len(await store.outbox(stream, 99)) == 7
    assert len(await store.dead_letters(stream, None, 9)) == 2
    assert len(await store.gaps(stream, None, 9)) == 1
    assert await store.purge_effects(stream, 9, 9) == 2
    assert await store.purge_effects(other, 9, 9) == 7
