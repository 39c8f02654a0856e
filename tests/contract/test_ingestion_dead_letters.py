"""What every DeadLetterStore promises, asked of each implementation."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from shared.ingestion.errors import AccountingBroken, CommitRefused
from shared.ingestion.model import DeadLetter, Effect, Gap, Stream
from tests.builders import NOW
from tests.contract.ingestion import Store, commit, effect, event, gap, letter, new_stream


async def filled(
    store: Store, letters: list[DeadLetter], gaps: list[Gap], stream: Stream | None = None
) -> Stream:
    stream = stream or new_stream()
    last = max([d.sequence for d in letters] + [g.last for g in gaps], default=0)
    saved = await store.load(stream)
    await store.commit(stream, saved, commit(None, last, dead_letters=letters, gaps=gaps))
    return stream


async def numbers(store: Store, stream: Stream, after: int | None, limit: int) -> list[int]:
    found = await store.dead_letters(stream, after, limit)
    assert all(stored.stream == stream for stored in found)
    return [stored.letter.sequence for stored in found]


async def test_dead_letters_come_by_number_page_by_page(store: Store) -> None:
    stream = await filled(store, [letter(n) for n in (9, 10, 0, 2, 100)], [])
    assert await numbers(store, stream, None, 3) == [0, 2, 9]
    assert await numbers(store, stream, 9, 3) == [10, 100]
    assert await numbers(store, stream, 0, 1) == [2]
    assert await numbers(store, stream, 100, 3) == []


async def test_a_dead_letter_is_kept_whole(store: Store) -> None:
    body = bytes(range(256)) * 200
    written = [
        letter(0, body),
        letter(1, b""),
        DeadLetter(2, "", event(2).enqueued_at, event(3).enqueued_at, letter(2).kind, "'%\n…🚀", 3),
    ]
    stream = await filled(store, written, [])
    assert [stored.letter for stored in await store.dead_letters(stream, None, 9)] == written
    for each in written:
        found = await store.dead_letter(stream, each.sequence)
        assert found is not None
        assert found.letter == each
    assert await store.dead_letter(stream, 3) is None


async def test_other_streams_keep_their_own(store: Store) -> None:
    ours, theirs = new_stream("1"), new_stream("10")
    await filled(store, [letter(1)], [gap(2, 4)], ours)
    await filled(store, [letter(1), letter(5)], [], theirs)
    found = await store.dead_letter(ours, 1)
    assert found is not None
    await store.remove(found)
    assert await numbers(store, ours, None, 9) == []
    assert await numbers(store, theirs, None, 9) == [1, 5]
    assert await store.gaps(theirs, None, 9) == []


async def test_streams_are_those_that_began(store: Store) -> None:
    first, second, never = new_stream("0"), new_stream("1/ü#?"), new_stream("2")
    await filled(store, [letter(1)], [], first)
    await filled(store, [], [gap(0, 3)], second)
    await store.load(never)
    streams = await store.streams()
    assert {first, second} <= set(streams)
    assert never not in streams
    assert sorted(streams, key=lambda stream: stream.key) == list(streams)


async def test_a_redriven_letter_becomes_its_effect_and_messages(store: Store) -> None:
    stream = await filled(store, [letter(1), letter(2)], [])
    found = await store.dead_letter(stream, 1)
    assert found is not None
    redone = effect(stream, 1, messages=2, value="late")
    await store.redrive(found, redone)
    assert await numbers(store, stream, None, 9) == [2]
    assert [stored.message for stored in await store.outbox(stream, 9)] == list(redone.messages)
    checkpoint = (await store.load(stream)).checkpoint
    assert checkpoint is not None
    assert checkpoint.sequence == 2, "redriving moves no checkpoint"


async def test_an_effect_without_rows_still_ends_a_dead_letter(store: Store) -> None:
    stream = await filled(store, [letter(1)], [])
    found = await store.dead_letter(stream, 1)
    assert found is not None
    await store.redrive(found, Effect(1))
    assert await numbers(store, stream, None, 9) == []


@pytest.mark.parametrize("first", ["redrive", "remove"])
async def test_of_two_who_end_a_dead_letter_one_does(store: Store, first: str) -> None:
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


async def test_a_redrive_that_no_transaction_takes_changes_nothing(store: Store) -> None:
    stream = await filled(store, [letter(1)], [])
    found = await store.dead_letter(stream, 1)
    assert found is not None
    with pytest.raises(AccountingBroken):
        await store.redrive(found, effect(stream, 2))
    assert await numbers(store, stream, None, 9) == [1]
    assert await store.outbox(stream, 9) == []


async def test_gaps_come_by_number(store: Store) -> None:
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
        [*range(0, 1500), 10**9],  # a crowd, long ago
        [*range(10**9 - 1500, 10**9 + 1), 5],  # a crowd, just now
    ],
    ids=["none", "one", "few", "far apart", "crowd long ago", "crowd just now"],
)
async def test_the_newest_dead_letters_are_found_wherever_they_lie(
    store: Store, written: list[int]
) -> None:
    stream, saved = new_stream(), None
    newest = sorted(written, reverse=True)
    last = max([*written, 10**9 + 5000])
    for start in range(0, max(len(written), 1), 90):  # a table takes a hundred rows
        part = [letter(n) for n in sorted(written)[start : start + 90]]
        standing = await store.load(stream)
        previous = standing.checkpoint
        plan = commit(previous, last + start, dead_letters=part)
        saved = await store.commit(stream, standing, plan)
    assert saved is not None
    for limit in (1, 50):
        found = await store.newest_dead_letters(stream, limit)
        assert [stored.letter.sequence for stored in found] == newest[:limit]
        assert all(stored.stream == stream for stored in found)
    for stored in found[:1]:
        await store.remove(stored)  # they carry their version
    assert await store.newest_dead_letters(new_stream(), 5) == []


async def test_dead_letters_and_gaps_since_a_time(store: Store) -> None:
    second = timedelta(seconds=1)
    letters = [replace(letter(n), failed_at=NOW + n * second) for n in (1, 2, 3, 4)]
    gaps = [replace(gap(10 * n, 10 * n), found_at=NOW + n * second) for n in (1, 2, 3)]
    stream = await filled(store, letters, gaps)
    since = NOW + 2 * second
    found = await store.dead_letters(stream, None, 9, since)
    assert [stored.letter.sequence for stored in found] == [2, 3, 4]
    assert [s.letter.sequence for s in await store.dead_letters(stream, 2, 1, since)] == [3]
    assert [each.first for each in await store.gaps(stream, None, 9, since)] == [20, 30]
