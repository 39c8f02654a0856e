"""The contract of EventStore, tested on each implementation."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from shared.ingestion.errors import AccountingBroken, CommitRefused, Fenced
from shared.ingestion.events.accounting import CommitStatus, commit_status
from shared.ingestion.model import Commit, Effect, OutboxMessage, Stream
from shared.ingestion.store.events import EventStore, StoredCheckpoint
from tests.builders import NOW
from tests.contract.conftest import now
from tests.contract.ingestion import checkpoint, commit, effect, gap, letter, new_stream


async def messages(store: EventStore, stream: Stream, limit: int = 999) -> list[str]:
    return [stored.message.message_id for stored in await store.outbox(stream, limit)]


async def first_commit(store: EventStore, stream: Stream) -> StoredCheckpoint:
    saved = await store.load(stream)
    return await store.commit(stream, saved, commit(None, 1, [effect(stream, 1)]))


async def test_a_stream_begins_without_a_checkpoint(store: EventStore) -> None:
    saved = await store.load(new_stream())
    assert saved.checkpoint is None
    assert abs(saved.read_at - now()) < timedelta(seconds=5)


@pytest.mark.parametrize("partition_id", ["0", "a/b\\c#d?e", "ü%|=7C"])
async def test_a_checkpoint_is_stored_to_the_microsecond(
    store: EventStore, partition_id: str
) -> None:
    stream = new_stream(partition_id)
    written = checkpoint(2**40, start=7, epoch=2**33)
    answer = await store.commit(stream, await store.load(stream), Commit(None, written))
    saved = await store.load(stream)
    assert answer.checkpoint == saved.checkpoint == written
    assert answer.version == saved.version
    assert abs(saved.read_at - now()) < timedelta(seconds=5)
    assert abs(answer.read_at - now()) < timedelta(seconds=5)


async def test_the_result_of_a_commit_is_the_basis_of_the_next_one(store: EventStore) -> None:
    stream = new_stream()
    saved = await first_commit(store, stream)
    for sequence in (2, 3):
        each = commit(saved.checkpoint, sequence, [effect(stream, sequence)])
        saved = await store.commit(stream, saved, each)
    assert await messages(store, stream) == [
        f"{stream.hub}:0:{sequence}:0" for sequence in (1, 2, 3)
    ]


async def test_a_commit_based_on_an_older_checkpoint_is_refused(store: EventStore) -> None:
    stream = new_stream()
    begun = await store.load(stream)
    saved = await first_commit(store, stream)
    with pytest.raises(CommitRefused):
        await store.commit(stream, begun, commit(None, 1, [effect(stream, 1)]))
    await store.commit(stream, saved, commit(saved.checkpoint, 2, [effect(stream, 2)]))
    with pytest.raises(CommitRefused):
        await store.commit(stream, saved, commit(saved.checkpoint, 3, [effect(stream, 3)]))
    assert len(await messages(store, stream)) == 2


async def test_a_higher_epoch_can_commit_and_a_lower_one_cannot(store: EventStore) -> None:
    stream = new_stream()
    saved = await first_commit(store, stream)
    each = commit(saved.checkpoint, 2, [effect(stream, 2)], epoch=5)
    saved = await store.commit(stream, saved, each)
    late = commit(saved.checkpoint, 3, [effect(stream, 3)], epoch=4)
    with pytest.raises(Fenced):
        await store.commit(stream, saved, late)
    assert (await store.load(stream)).checkpoint == saved.checkpoint
    assert len(await messages(store, stream)) == 2


async def test_only_one_of_many_concurrent_commits_wins(store: EventStore) -> None:
    stream = new_stream()
    saved = await first_commit(store, stream)

    async def attempt(epoch: int) -> bool:
        each = commit(saved.checkpoint, 2, [effect(stream, 2, value="v")], epoch=epoch)
        try:
            await store.commit(stream, saved, each)
        except CommitRefused:
            return False
        return True

    won = await asyncio.gather(*[attempt(epoch) for epoch in range(1, 9)])
    assert sum(won) == 1
    stored_checkpoint = (await store.load(stream)).checkpoint
    assert stored_checkpoint is not None
    assert stored_checkpoint.epoch == 1 + won.index(True)


async def test_a_row_that_already_exists_rolls_back_the_whole_commit(store: EventStore) -> None:
    stream = new_stream()
    saved = await first_commit(store, stream)
    dead = commit(saved.checkpoint, 4, [effect(stream, 2, value="v")], [letter(4)], [gap(3, 3)])
    saved = await store.commit(stream, saved, dead)
    for again in (
        commit(saved.checkpoint, 5, [effect(stream, 5), effect(stream, 2, value="other")]),
        commit(saved.checkpoint, 5, [effect(stream, 5)], [letter(4)]),
    ):
        with pytest.raises(AccountingBroken):
            await store.commit(stream, saved, again)
    assert (await store.load(stream)).version == saved.version
    assert len(await messages(store, stream)) == 2


async def test_a_transaction_of_the_maximum_size_is_committed(store: EventStore) -> None:
    stream = new_stream()
    saved = await store.load(stream)
    count = min(store.limits.rows_max - 1, 250)
    full = commit(None, count - 1, [effect(stream, n) for n in range(count)])
    await store.commit(stream, saved, full)
    assert await messages(store, stream) == [f"{stream.hub}:0:{n}:0" for n in range(count)]


async def test_a_commit_whose_reply_was_lost_is_recognized_by_its_transaction_id(
    store: EventStore,
) -> None:
    stream = new_stream()
    saved = await first_commit(store, stream)
    each = commit(saved.checkpoint, 2, [effect(stream, 2, value="v")])
    assert commit_status(each, (await store.load(stream)).checkpoint) is CommitStatus.NOT_APPLIED
    await store.commit(stream, saved, each)
    with pytest.raises(CommitRefused):
        await store.commit(stream, saved, each)
    assert commit_status(each, (await store.load(stream)).checkpoint) is CommitStatus.APPLIED


TEXTS = ["", "ascii", 'quote " and \\ and \n\t', "ü€🚀" * 7_000, "x" * 65_536]


@pytest.mark.parametrize("text", TEXTS, ids=[f"{len(text)}" for text in TEXTS])
async def test_messages_are_stored_unchanged(store: EventStore, text: str) -> None:
    stream = new_stream()
    sent = Effect(0, text * 5, (OutboxMessage("id/1 ü", text),))
    await store.commit(stream, await store.load(stream), commit(None, 0, [sent]))
    (stored,) = await store.outbox(stream, 9)
    assert stored.message == sent.messages[0]


async def test_messages_are_read_in_the_order_of_their_events(store: EventStore) -> None:
    stream = new_stream()
    saved = await store.load(stream)
    effects = [effect(stream, n, messages=12) for n in (100, 9, 10)]
    await store.commit(stream, saved, commit(None, 100, effects))
    expected = [m.message_id for n in (1, 2, 0) for m in effects[n].messages]
    assert await messages(store, stream) == expected
    assert await messages(store, stream, 13) == expected[:13]


async def test_messages_that_were_sent_can_be_removed_more_than_once(store: EventStore) -> None:
    stream, other = new_stream("0"), new_stream("1")
    for each in (stream, other):
        effects = [effect(each, n, value="v") for n in range(4)]
        await store.commit(each, await store.load(each), commit(None, 3, effects))
    first, second, *rest = await store.outbox(stream, 9)
    await store.sent(stream, [first])
    await store.sent(stream, [first, second])
    assert await store.outbox(stream, 9) == rest
    await store.sent(stream, [])
    await store.sent(stream, rest)
    assert await store.outbox(stream, 9) == []
    assert len(await messages(store, other)) == 4


async def test_an_effect_without_rows_moves_the_checkpoint(store: EventStore) -> None:
    stream = new_stream()
    saved = await store.load(stream)
    saved = await store.commit(stream, saved, commit(None, 5, [Effect(n) for n in range(6)]))
    assert saved.checkpoint is not None
    assert saved.checkpoint.sequence == 5
    assert await messages(store, stream) == []


async def test_a_stream_can_begin_before_its_first_event(store: EventStore) -> None:
    stream = new_stream()
    beginning = Commit(None, checkpoint(0, epoch=3))
    beginning = replace(beginning, checkpoint=replace(beginning.checkpoint, sequence=-1, offset=""))
    saved = await store.commit(stream, await store.load(stream), beginning)
    loaded = await store.load(stream)
    assert loaded.checkpoint == saved.checkpoint == beginning.checkpoint
    assert await store.streams() != []
    with pytest.raises(CommitRefused):
        await store.commit(stream, StoredCheckpoint(None, NOW), beginning)
    with pytest.raises(Fenced):
        await store.commit(stream, saved, commit(saved.checkpoint, 0, epoch=2))
    await store.commit(stream, saved, commit(saved.checkpoint, 0, [effect(stream, 0)], epoch=3))
    assert await messages(store, stream) == [f"{stream.hub}:0:0:0"]


async def test_a_message_has_its_sequence_number_and_its_waiting_time(store: EventStore) -> None:
    stream = new_stream()
    saved = await store.load(stream)
    await store.commit(stream, saved, commit(None, 7, [effect(stream, 7, messages=2)]))
    messages = await store.outbox(stream, 99)
    assert [(stored.sequence, stored.taken) for stored in messages] == [(7, 0), (7, 0)]
    assert all(abs(stored.waited) < timedelta(seconds=5) for stored in messages)


async def test_only_one_of_two_instances_can_take_a_message_over(store: EventStore) -> None:
    stream = new_stream()
    effects = [effect(stream, n) for n in range(3)]
    await store.commit(stream, await store.load(stream), commit(None, 2, effects))
    first, second, third = await store.outbox(stream, 99)

    async def attempt() -> bool:
        try:
            await store.take(stream, [first, second])
        except CommitRefused:
            return False
        return True

    assert sum(await asyncio.gather(*[attempt() for _ in range(6)])) == 1
    again = await store.outbox(stream, 99)
    assert [stored.taken for stored in again] == [1, 1, 0]
    with pytest.raises(CommitRefused):
        await store.take(stream, [third, first])
    assert [stored.taken for stored in await store.outbox(stream, 99)] == [1, 1, 0], (
        "one caller takes all of its messages"
    )
    await store.take(stream, again)
    assert [stored.message for stored in await store.outbox(stream, 99)] == [
        stored.message for stored in again
    ]


async def test_a_message_that_was_sent_cannot_be_taken_over(store: EventStore) -> None:
    stream = new_stream()
    await first_commit(store, stream)
    (stored,) = await store.outbox(stream, 9)
    await store.sent(stream, [stored])
    with pytest.raises(CommitRefused):
        await store.take(stream, [stored])
    assert await store.outbox(stream, 9) == []


async def test_taking_a_message_over_restarts_its_waiting_time(store: EventStore) -> None:
    stream = new_stream()
    await first_commit(store, stream)
    await asyncio.sleep(2.1)  # the Date header of a response has whole seconds
    (before,) = await store.outbox(stream, 9)
    assert before.waited >= timedelta(seconds=1)
    await store.take(stream, [before])
    (after,) = await store.outbox(stream, 9)
    assert after.waited < before.waited


async def test_work_on_a_stream_is_visible_to_all_instances(store: EventStore) -> None:
    stream, other = new_stream("0"), new_stream("1")
    assert await store.idle_for(stream) is None
    saved = await first_commit(store, stream)
    await asyncio.gather(*[store.mark_at_work(stream) for _ in range(4)])
    idle = await store.idle_for(stream)
    assert idle is not None
    assert abs(idle) < timedelta(seconds=5)
    assert await store.idle_for(other) is None
    await store.commit(stream, saved, commit(saved.checkpoint, 2))
    assert [each for each in await store.streams() if each == stream] == [stream]
