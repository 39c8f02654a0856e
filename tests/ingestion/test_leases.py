"""Who sends the messages of the outbox, and from when on another may."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from shared.ingestion.errors import CommitRefused, DependencyDown
from shared.ingestion.events import ingest, outbox
from shared.ingestion.events.outbox import LEASE, OutboxLeases
from shared.ingestion.events.ports import StoredMessage
from shared.ingestion.events.process_batch import run
from shared.ingestion.model import OutboxMessage, Stream
from tests.ingestion.test_flows import STREAM, Rig, events
from tests.ingestion.test_ingest import Rig as BreakerRig

SECOND = timedelta(seconds=1)


class Queue:
    def __init__(self) -> None:
        self.sent: list[str] = []
        self.down = False

    async def send(self, messages: Sequence[OutboxMessage]) -> None:
        if self.down:
            raise DependencyDown("queue")
        self.sent += [message.message_id for message in messages]


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def queue() -> Queue:
    return Queue()


async def another_drains(rig: Rig, queue: Queue) -> int:
    return await outbox.drain(STREAM, rig.store, queue, OutboxLeases())


async def test_what_a_batch_committed_nobody_else_sends_until_its_lease_ends(
    rig: Rig, queue: Queue
) -> None:
    await run(events(0, 2), rig.consumer)
    rig.store.now += LEASE - SECOND
    assert await another_drains(rig, queue) == 0
    assert queue.sent == []
    rig.store.now += SECOND
    assert await another_drains(rig, queue) == 3
    assert queue.sent == ["hub:0:0", "hub:0:1", "hub:0:2"]


async def test_who_committed_sends_at_once_and_again_where_that_failed(
    rig: Rig, queue: Queue
) -> None:
    await run(events(0, 2), rig.consumer)
    queue.down = True
    with pytest.raises(DependencyDown):
        await outbox.drain(STREAM, rig.store, queue, rig.consumer.leases)
    queue.down = False
    await outbox.drain(STREAM, rig.store, queue, rig.consumer.leases)
    assert len(queue.sent) == 3


async def test_who_comes_back_late_does_not_send_what_another_took_over(
    rig: Rig, queue: Queue
) -> None:
    await run(events(0, 2), rig.consumer)
    rig.store.now += LEASE
    others = OutboxLeases()
    queue.down = True
    with pytest.raises(DependencyDown):
        await outbox.drain(STREAM, rig.store, queue, others)
    queue.down = False
    assert await outbox.drain(STREAM, rig.store, queue, rig.consumer.leases) == 0
    assert await outbox.drain(STREAM, rig.store, queue, others) == 3


async def test_of_two_who_find_messages_left_behind_one_sends_them(rig: Rig, queue: Queue) -> None:
    await run(events(0, 2), rig.consumer)
    rig.store.now += LEASE
    read = rig.store.outbox

    async def both_read(stream: Stream, limit: int) -> Sequence[StoredMessage]:
        found = await read(stream, limit)
        rig.store.outbox = read  # type: ignore[method-assign]
        await another_drains(rig, queue)
        return found

    rig.store.outbox = both_read  # type: ignore[method-assign]
    assert await another_drains(rig, queue) == 0
    assert queue.sent == ["hub:0:0", "hub:0:1", "hub:0:2"]


async def test_a_lease_that_ends_soon_is_renewed_before_anything_is_sent(
    rig: Rig, queue: Queue
) -> None:
    await run(events(0, 0), rig.consumer)
    rig.store.now += LEASE / 2
    queue.down = True
    with pytest.raises(DependencyDown):
        await outbox.drain(STREAM, rig.store, queue, rig.consumer.leases)
    (stored,) = await rig.store.outbox(STREAM, 9)
    assert (stored.taken, stored.waited) == (1, timedelta(0))
    rig.store.now += LEASE - SECOND
    queue.down = False
    assert await another_drains(rig, queue) == 0


async def test_newer_messages_wait_behind_those_that_another_is_to_send(
    rig: Rig, queue: Queue
) -> None:
    await run(events(0, 1), rig.consumer)
    other = replace(rig.consumer, leases=OutboxLeases(), new_txid=lambda: "other")
    rig.store.now += LEASE / 2
    await run(events(2, 3), other)
    assert await outbox.drain(STREAM, rig.store, queue, other.leases) == 0
    rig.store.now += LEASE / 2
    assert await outbox.drain(STREAM, rig.store, queue, other.leases) == 4
    assert queue.sent == [f"hub:0:{n}" for n in range(4)]


async def test_nothing_is_remembered_of_what_was_sent(rig: Rig, queue: Queue) -> None:
    await run(events(0, 249), rig.consumer)
    await outbox.drain(STREAM, rig.store, queue, rig.consumer.leases)
    assert rig.consumer.leases.mine == {}
    await run(events(250, 251), rig.consumer)
    rig.store.now += LEASE
    await another_drains(rig, queue)
    await outbox.drain(STREAM, rig.store, queue, rig.consumer.leases)
    assert rig.consumer.leases.mine == {}, "nor of what another sent"


async def test_a_part_of_a_process_that_comes_while_another_sends_leaves_it_to_that(
    rig: Rig,
) -> None:
    leases = rig.consumer.leases
    sent: list[str] = []

    class Slow:
        async def send(self, messages: Sequence[OutboxMessage]) -> None:
            sent.extend([message.message_id for message in messages])
            if len(sent) == 2:
                await run(events(2, 3), rig.consumer)
                assert await outbox.drain(STREAM, rig.store, self, leases) == 0

    await run(events(0, 1), rig.consumer)
    assert await outbox.drain(STREAM, rig.store, Slow(), leases) == 4
    assert sent == [f"hub:0:{n}" for n in range(4)]


async def test_a_store_that_refuses_leaves_the_messages_to_whoever_took_them(
    rig: Rig, queue: Queue
) -> None:
    async def refuse(stream: Stream, messages: Sequence[StoredMessage]) -> None:
        raise CommitRefused(f"{stream.key}: {len(messages)}")

    await run(events(0, 1), rig.consumer)
    rig.store.now += LEASE
    rig.store.take = refuse  # type: ignore[method-assign]
    assert await another_drains(rig, queue) == 0
    assert queue.sent == []


async def test_the_tail_sends_what_a_dead_instance_left_but_not_before_its_lease_ends() -> None:
    rig = BreakerRig()
    rig.hub.add(STREAM, *events(0, 3))
    rig.send_error = DependencyDown("the instance dies here")
    with pytest.raises(DependencyDown):
        await rig.ingest(0, 3)
    rig.send_error = None
    rig.lines.clear()  # another instance looks after the tail
    await rig.watch.run(["0"], rig.line)
    assert rig.sent == []
    await ingest.run(events(0, 3), rig.line())  # nor where the batch comes again to another
    assert rig.sent == []
    rig.wait(60)
    await rig.watch.run(["0"], rig.line)
    assert rig.sent == [f"hub:0:{n}" for n in range(4)]


async def test_a_store_clock_set_back_makes_nobody_wait_for_it(rig: Rig, queue: Queue) -> None:
    """A row from further ahead than a lease lasts was written before the clock was set back."""
    await run(events(0, 2), rig.consumer)
    rig.store.now -= timedelta(minutes=10)
    assert await another_drains(rig, queue) == 3
