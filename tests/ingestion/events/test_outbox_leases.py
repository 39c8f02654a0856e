"""The leases of outbox messages: which process sends them, and when another may take over."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from shared.ingestion.errors import DependencyDown, SentInPart
from shared.ingestion.events import outbox
from shared.ingestion.events.outbox import LEASE, OutboxLeases
from shared.ingestion.events.process_batch import process_batch
from shared.ingestion.model import OutboxMessage
from tests.ingestion.events.test_process_batch import Rig
from tests.ingestion.flows import STREAM, events

SECOND = timedelta(seconds=1)


class Queue:
    def __init__(self) -> None:
        self.sent: list[str] = []
        self.down = False
        self.refused: set[str] = set()

    async def send(self, messages: Sequence[OutboxMessage]) -> None:
        names = [message.message_id for message in messages]
        if self.refused:
            sent = frozenset(n for n, name in enumerate(names) if name not in self.refused)
            self.sent += [names[place] for place in sorted(sent)]
            raise SentInPart("queue", sent)
        if self.down:
            raise DependencyDown("queue")
        self.sent += [message.message_id for message in messages]


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def queue() -> Queue:
    return Queue()


async def drain(rig: Rig, queue: Queue, leases: OutboxLeases | None = None) -> int:
    """Send with the leases of the process that committed, or with others."""
    return await outbox.send_messages(STREAM, rig.store, queue.send, leases or rig.consumer.leases)


async def another_drains(rig: Rig, queue: Queue) -> int:
    return await drain(rig, queue, OutboxLeases())


async def test_the_outbox_is_sent_in_order_and_emptied(rig: Rig, queue: Queue) -> None:
    await process_batch(events(8, 12), rig.consumer)
    leases = rig.consumer.leases
    counts = [
        await outbox.send_messages(STREAM, rig.store, queue.send, leases, limit=3) for _ in range(2)
    ]
    assert (counts, leases.mine) == ([5, 0], {})
    assert queue.sent == [f"hub:0:{n}" for n in range(8, 13)]


async def test_no_other_process_sends_committed_messages_until_their_lease_ends(
    rig: Rig, queue: Queue
) -> None:
    await process_batch(events(0, 2), rig.consumer)
    rig.store.now += LEASE - SECOND
    assert await another_drains(rig, queue) == 0
    assert queue.sent == []
    rig.store.now += SECOND
    assert await another_drains(rig, queue) == 3
    assert queue.sent == ["hub:0:0", "hub:0:1", "hub:0:2"]


@pytest.mark.parametrize("refused", [set(), {2}, {0, 3}, {0, 1, 2, 3}])
async def test_only_the_messages_that_were_not_sent_are_sent_again(
    rig: Rig, queue: Queue, refused: set[int]
) -> None:
    await process_batch(events(0, 3), rig.consumer)
    queue.refused, queue.down = {f"hub:0:{n}" for n in refused}, not refused
    for _ in range(3):
        with pytest.raises(DependencyDown):
            await drain(rig, queue)
    queue.refused, queue.down = set(), False
    assert await drain(rig, queue) == (len(refused) or 4), "at once"
    assert sorted(queue.sent) == [f"hub:0:{n}" for n in range(4)]


async def test_a_process_does_not_send_messages_that_another_took_over(
    rig: Rig, queue: Queue
) -> None:
    await process_batch(events(0, 2), rig.consumer)
    rig.store.now += LEASE
    others = OutboxLeases()
    queue.down = True
    with pytest.raises(DependencyDown):
        await drain(rig, queue, others)
    queue.down = False
    assert await drain(rig, queue) == 0
    assert await drain(rig, queue, others) == 3


async def test_a_process_that_stood_still_leaves_messages_whose_lease_may_expire(
    rig: Rig, queue: Queue
) -> None:
    await process_batch(events(0, 2), rig.consumer)
    passed = [0.0, 11.0, 11.0, 20.0]
    rig.consumer.leases.elapsed = iter(passed).__next__
    assert await drain(rig, queue) == 0
    assert await drain(rig, queue) == 3


async def test_a_lease_that_ends_soon_is_renewed_before_sending(rig: Rig, queue: Queue) -> None:
    await process_batch(events(0, 0), rig.consumer)
    rig.store.now += LEASE / 2
    queue.down = True
    with pytest.raises(DependencyDown):
        await drain(rig, queue)
    (stored,) = await rig.store.outbox(STREAM, 9)
    assert (stored.taken, stored.waited) == (1, timedelta(0))
    rig.store.now += LEASE - SECOND
    queue.down = False
    assert await another_drains(rig, queue) == 0


async def test_sent_messages_are_forgotten(rig: Rig, queue: Queue) -> None:
    await process_batch(events(0, 249), rig.consumer)
    await drain(rig, queue)
    assert rig.consumer.leases.mine == {}
    await process_batch(events(250, 251), rig.consumer)
    rig.store.now += LEASE
    await another_drains(rig, queue)
    await drain(rig, queue)
    assert rig.consumer.leases.mine == {}, (
        "messages that another process sent must be forgotten, too"
    )


async def test_a_second_call_leaves_its_messages_to_the_one_that_is_sending(
    rig: Rig,
) -> None:
    leases = rig.consumer.leases
    sent: list[str] = []

    async def slow(messages: Sequence[OutboxMessage]) -> None:
        sent.extend([message.message_id for message in messages])
        if len(sent) == 2:
            await process_batch(events(2, 3), rig.consumer)
            assert await outbox.send_messages(STREAM, rig.store, slow, leases) == 0

    await process_batch(events(0, 1), rig.consumer)
    assert await outbox.send_messages(STREAM, rig.store, slow, leases) == 4
    assert sent == [f"hub:0:{n}" for n in range(4)]
