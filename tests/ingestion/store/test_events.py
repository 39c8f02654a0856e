"""The contract of EventStore, tested on each engine: commits, the outbox, dead letters, gaps and
retention. Random calls are in test_stateful_streams.py."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from shared.ingestion.errors import AccountingBroken
from shared.ingestion.model import DeadLetter, Effect, Gap, Stream
from shared.ingestion.store.events import EventStore, StoredDeadLetter
from shared.ingestion.store.rows import OUTBOX
from tests.builders import NOW
from tests.ingestion.commits import commit, effect, letter, new_stream
from tests.ingestion.conftest import Backend, wins


async def ids(store: EventStore, stream: Stream, limit: int = 999) -> list[str]:
    return [stored.message.message_id for stored in await store.outbox(stream, limit)]


async def taken(store: EventStore, stream: Stream) -> list[int]:
    return [stored.taken for stored in await store.outbox(stream, 99)]


async def filled(
    store: EventStore,
    effects: Sequence[Effect] = (),
    letters: Sequence[DeadLetter] = (),
    gaps: Sequence[Gap] = (),
    stream: Stream | None = None,
) -> Stream:
    """A stream whose first commit has these outcomes."""
    stream = stream or new_stream()
    numbers = [each.sequence for each in effects] + [each.sequence for each in letters]
    last = max([*numbers, *[each.last for each in gaps]], default=0)
    first = commit(None, last, effects, letters, gaps)
    await store.commit(stream, await store.load(stream), first)
    return stream


async def numbers(store: EventStore, stream: Stream, after: int | None, limit: int) -> list[int]:
    letters = await store.dead_letters(stream, after, limit)
    assert all(stored.stream == stream for stored in letters)
    return [stored.letter.sequence for stored in letters]


async def stored_letter(store: EventStore, stream: Stream, sequence: int) -> StoredDeadLetter:
    stored = await store.dead_letter(stream, sequence)
    assert stored is not None
    return stored


# --- commits ------------------------------------------------------------------------------------


async def test_only_one_of_many_concurrent_commits_wins(store: EventStore) -> None:
    stream = await filled(store)
    saved = await store.load(stream)
    commits = [
        commit(saved.checkpoint, 2, [effect(stream, 2, value="v")], epoch=epoch)
        for epoch in range(1, 9)
    ]
    attempts = [wins(store.commit(stream, saved, each)) for each in commits]
    won = await asyncio.gather(*attempts)
    assert sum(won) == 1
    assert (await store.load(stream)).checkpoint == commits[won.index(True)].checkpoint


async def test_a_transaction_has_as_many_rows_as_the_limit_and_no_more(store: EventStore) -> None:
    stream, rows = new_stream(), min(store.limits.rows_max, 250)
    store.limits = replace(store.limits, rows_max=rows)
    saved = await store.load(stream)
    effects = [effect(stream, n) for n in range(rows)]
    with pytest.raises(AccountingBroken):
        await store.commit(stream, saved, commit(None, rows, effects))
    assert stream not in await store.streams()
    saved = await store.commit(stream, saved, commit(None, rows, effects[1:]))
    assert await ids(store, stream) == [f"{stream.hub}:0:{n}:0" for n in range(1, rows)]
    last = commit(saved.checkpoint, rows + 1, dead_letters=[letter(rows + 1)])
    await store.commit(stream, saved, last)
    dead = await stored_letter(store, stream, rows + 1)
    with pytest.raises(AccountingBroken):
        await store.redrive(dead, effect(stream, rows + 1, messages=rows))
    await store.redrive(dead, effect(stream, rows + 1, messages=rows - 1))


# --- the outbox ---------------------------------------------------------------------------------


async def test_only_one_of_two_instances_can_take_a_message_over(store: EventStore) -> None:
    stream = new_stream()
    await filled(store, [effect(stream, n) for n in range(3)], stream=stream)
    first, second, third = await store.outbox(stream, 99)
    attempts = [wins(store.take(stream, [first, second])) for _ in range(6)]
    assert sum(await asyncio.gather(*attempts)) == 1
    assert not await wins(store.take(stream, [third, first]))
    assert await taken(store, stream) == [1, 1, 0], "one caller takes all of its messages"
    again = await store.outbox(stream, 99)
    await store.take(stream, again)
    assert await taken(store, stream) == [2, 2, 1]
    messages = [stored.message for stored in await store.outbox(stream, 99)]
    assert messages == [stored.message for stored in again]
    await store.sent(stream, again)
    assert not await wins(store.take(stream, again)), "a message that was sent is gone"


async def test_taking_a_message_over_restarts_its_waiting_time(backend: Backend) -> None:
    stream, store = new_stream(), backend.store()
    await filled(store, [effect(stream, 1)], stream=stream)

    async def written_at() -> timedelta:
        (row,) = (await backend.rows.read(OUTBOX, stream.place)).rows
        return row.written_at - NOW

    before = await written_at()
    async with asyncio.timeout(10):
        while await written_at() <= before:
            await store.take(stream, await store.outbox(stream, 9))


# --- dead letters and gaps ----------------------------------------------------------------------


@pytest.mark.parametrize("first", ["redrive", "remove"])
async def test_only_one_of_two_writers_can_redrive_or_remove_a_dead_letter(
    store: EventStore, first: str
) -> None:
    stream = await filled(store, [], [letter(1)])
    mine, yours = [await stored_letter(store, stream, 1) for _ in range(2)]
    with pytest.raises(AccountingBroken):
        await store.redrive(mine, effect(stream, 2))
    assert await numbers(store, stream, None, 9) == [1], "a rejected redrive changes nothing"
    redone = effect(stream, 1, value="v")
    await (store.remove(mine) if first == "remove" else store.redrive(mine, redone))
    assert not await wins(store.redrive(yours, redone))
    assert not await wins(store.remove(yours))
    assert len(await ids(store, stream)) == (first == "redrive")


@pytest.mark.parametrize(
    "written",
    [[], list(range(90)), [0, 7, 10**6, 10**12]],
    ids=["none", "few", "far apart"],
)
async def test_the_newest_dead_letters_are_found_however_their_numbers_are_distributed(
    store: EventStore, written: list[int]
) -> None:
    stream, last = new_stream(), max([*written, 10**9 + 5000])
    each = commit(None, last, dead_letters=[letter(n) for n in written])
    await store.commit(stream, await store.load(stream), each)
    for limit in (1, 50):
        letters = await store.newest_dead_letters(stream, limit)
        assert [stored.letter.sequence for stored in letters] == written[::-1][:limit]
        assert all(stored.stream == stream for stored in letters)
    for stored in letters[:1]:
        await store.remove(stored)  # the version is needed to remove it


# --- retention ----------------------------------------------------------------------------------
