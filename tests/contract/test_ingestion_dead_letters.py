"""The contract of EventStore, tested on each implementation."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from shared.ingestion.errors import AccountingBroken, CommitRefused
from shared.ingestion.model import DeadLetter, Effect, Gap, Stream
from shared.ingestion.store.events import EventStore
from tests.builders import NOW
from tests.contract.ingestion import commit, effect, event, gap, letter, new_stream


async def filled(
    store: EventStore, letters: list[DeadLetter], gaps: list[Gap], stream: Stream | None = None
) -> Stream:
    stream = stream or new_stream()
    last = max([d.sequence for d in letters] + [g.last for g in gaps], default=0)
    saved = await store.load(stream)
    await store.commit(stream, saved, commit(None, last, dead_letters=letters, gaps=gaps))
    return stream


async def numbers(store: EventStore, stream: Stream, after: int | None, limit: int) -> list[int]:
    letters = await store.dead_letters(stream, after, limit)
    assert all(stored.stream == stream for stored in letters)
    return [stored.letter.sequence for stored in letters]


async def test_dead_letters_are_read_in_pages_by_sequence_number(store: EventStore) -> None:
    stream = await filled(store, [letter(n) for n in (9, 10, 0, 2, 100)], [])
    assert await numbers(store, stream, None, 3) == [0, 2, 9]
    assert await numbers(store, stream, 9, 3) == [10, 100]
    assert await numbers(store, stream, 0, 1) == [2]
    assert await numbers(store, stream, 100, 3) == []


async def test_all_fields_of_a_dead_letter_are_stored(store: EventStore) -> None:
    body = bytes(range(256)) * 200
    written = [
        letter(0, body),
        letter(1, b""),
        DeadLetter(2, "", event(2).enqueued_at, event(3).enqueued_at, letter(2).kind, "'%\n…🚀", 3),
    ]
    stream = await filled(store, written, [])
    assert [stored.letter for stored in await store.dead_letters(stream, None, 9)] == written
    for each in written:
        stored = await store.dead_letter(stream, each.sequence)
        assert stored is not None
        assert stored.letter == each
    for missing in (-1, 3, 2**63 - 1):
        assert await store.dead_letter(stream, missing) is None


async def test_each_stream_has_its_own_dead_letters_and_gaps(store: EventStore) -> None:
    ours, theirs = new_stream("1"), new_stream("10")
    await filled(store, [letter(1)], [gap(2, 4)], ours)
    await filled(store, [letter(1), letter(5)], [], theirs)
    stored = await store.dead_letter(ours, 1)
    assert stored is not None
    await store.remove(stored)
    assert await numbers(store, ours, None, 9) == []
    assert await numbers(store, theirs, None, 9) == [1, 5]
    assert await store.gaps(theirs, None, 9) == []


async def test_only_streams_with_a_commit_are_listed(store: EventStore) -> None:
    first, second, never = new_stream("0"), new_stream("1/ü#?"), new_stream("2")
    await filled(store, [letter(1)], [], first)
    await filled(store, [], [gap(0, 3)], second)
    await store.load(never)
    streams = await store.streams()
    assert {first, second} <= set(streams)
    assert never not in streams
    assert sorted(streams, key=lambda stream: stream.key) == list(streams)


async def test_a_redriven_letter_becomes_its_effect_and_messages(store: EventStore) -> None:
    stream = await filled(store, [letter(1), letter(2)], [])
    stored = await store.dead_letter(stream, 1)
    assert stored is not None
    redone = effect(stream, 1, messages=2, value="late")
    await store.redrive(stored, redone)
    assert await numbers(store, stream, None, 9) == [2]
    assert [stored.message for stored in await store.outbox(stream, 9)] == list(redone.messages)
    checkpoint = (await store.load(stream)).checkpoint
    assert checkpoint is not None
    assert checkpoint.sequence == 2, "a redrive moves no checkpoint"


async def test_an_effect_without_rows_still_removes_the_dead_letter(store: EventStore) -> None:
    stream = await filled(store, [letter(1)], [])
    stored = await store.dead_letter(stream, 1)
    assert stored is not None
    await store.redrive(stored, Effect(1))
    assert await numbers(store, stream, None, 9) == []


@pytest.mark.parametrize("first", ["redrive", "remove"])
async def test_only_one_of_two_writers_can_redrive_or_remove_a_dead_letter(
    store: EventStore, first: str
) -> None:
    stream = await filled(store, [letter(1)], [])
    mine, yours = await store.dead_letter(stream, 1), await store.dead_letter(stream, 1)
    assert mine is not None
    assert yours is not None
    redone = effect(stream, 1, value="v")
    await (store.remove(mine) if first == "remove" else store.redrive(mine, redone))
    with pytest.raises(CommitRefused):
        await store.redrive(yours, redone)
    with pytest.raises(CommitRefused):
        await store.remove(yours)
    assert len(await store.outbox(stream, 9)) == (first == "redrive")


async def test_a_rejected_redrive_changes_nothing(store: EventStore) -> None:
    stream = await filled(store, [letter(1)], [])
    stored = await store.dead_letter(stream, 1)
    assert stored is not None
    with pytest.raises(AccountingBroken):
        await store.redrive(stored, effect(stream, 2))
    assert await numbers(store, stream, None, 9) == [1]
    assert await store.outbox(stream, 9) == []


async def test_gaps_are_read_by_sequence_number(store: EventStore) -> None:
    gaps = [gap(9, 9), gap(0, 3), gap(100, 2**40)]
    stream = await filled(store, [], gaps)
    by_number = sorted(gaps, key=lambda each: each.first)
    assert await store.gaps(stream, None, 9) == by_number
    assert await store.gaps(stream, None, 2) == by_number[:2]
    assert await store.gaps(stream, 0, 9) == by_number[1:]


@pytest.mark.parametrize(
    "written",
    [
        [],
        [3],
        list(range(0, 90)),
        [0, 7, 10**6, 10**12, 10**12 + 900],  # far apart
        [*range(0, 1500), 10**9],  # many, long ago
        [*range(10**9 - 1500, 10**9 + 1), 5],  # many, just now
    ],
    ids=["none", "one", "few", "far apart", "many long ago", "many just now"],
)
async def test_the_newest_dead_letters_are_found_however_their_numbers_are_distributed(
    store: EventStore, written: list[int]
) -> None:
    stream, saved = new_stream(), None
    newest = sorted(written, reverse=True)
    last = max([*written, 10**9 + 5000])
    for start in range(0, max(len(written), 1), 90):  # a transaction of a table has a hundred rows
        part = [letter(n) for n in sorted(written)[start : start + 90]]
        before = await store.load(stream)
        previous = before.checkpoint
        plan = commit(previous, last + start, dead_letters=part)
        saved = await store.commit(stream, before, plan)
    assert saved is not None
    for limit in (1, 50):
        letters = await store.newest_dead_letters(stream, limit)
        assert [stored.letter.sequence for stored in letters] == newest[:limit]
        assert all(stored.stream == stream for stored in letters)
    for stored in letters[:1]:
        await store.remove(stored)  # the version is needed to remove it
    assert await store.newest_dead_letters(new_stream(), 5) == []


async def test_dead_letters_and_gaps_can_be_read_since_a_time(store: EventStore) -> None:
    second = timedelta(seconds=1)
    letters = [replace(letter(n), failed_at=NOW + n * second) for n in (1, 2, 3, 4)]
    gaps = [replace(gap(10 * n, 10 * n), found_at=NOW + n * second) for n in (1, 2, 3)]
    stream = await filled(store, letters, gaps)
    since = NOW + 2 * second
    since_then = await store.dead_letters(stream, None, 9, since)
    assert [stored.letter.sequence for stored in since_then] == [2, 3, 4]
    assert [s.letter.sequence for s in await store.dead_letters(stream, 2, 1, since)] == [3]
    assert [each.first for each in await store.gaps(stream, None, 9, since)] == [20, 30]
