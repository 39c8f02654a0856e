"""Simulates a faulty host and store: each event ends up in exactly one of effect, dead letter and
gap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count, pairwise

import pytest

from local.twins.event_hub import MemoryHubReader
from local.twins.ingestion import MemoryIngestionStore, StreamRows
from shared.ingestion.errors import (
    BadEvent,
    CommitRefused,
    DependencyDown,
    Fenced,
    HubUnavailable,
    SentInPart,
    StoreUnavailable,
    StreamRecreated,
    TransientFailure,
)
from shared.ingestion.events import outbox
from shared.ingestion.events.accounting import Writer
from shared.ingestion.events.outbox import LEASE, OutboxLeases
from shared.ingestion.events.process_batch import Consumer, process_batch, process_undelivered
from shared.ingestion.model import (
    Commit,
    Effect,
    Event,
    FailureKind,
    OutboxMessage,
    Stream,
    message_id,
)
from shared.ingestion.store.events import StoredCheckpoint
from shared.ingestion.store.rows import CommitLimits
from tests.builders import NOW, thrice
from tests.simulation.faults import failing_as, pausing, stream_of
from tests.simulation.scheduler import Crash, Outage, Scheduler, pause
from tests.simulation.seeds import seeds

STREAM = stream_of("0")
NOT_BYTES_EVERY = 19
"""Each event whose number is a multiple of this has an AMQP body that is not bytes."""
ROWS_MAX = (8, 100)
"""The rows of a transaction: few, so that most batches need several, or as many as a table
takes."""


@pausing("load", "commit", "take", "sent", error=StoreUnavailable)
class Store(MemoryIngestionStore):
    """Remembers every commit."""

    def __init__(self, clock: Callable[[], datetime], rows_max: int) -> None:
        super().__init__(clock, rows_max)
        self.commits: list[Commit] = []

    async def commit(
        self, stream: Stream, saved: StoredCheckpoint, commit: Commit
    ) -> StoredCheckpoint:
        answer = await super().commit(stream, saved, commit)
        self.commits.append(commit)
        return answer


@pausing("read_back", "state", error=HubUnavailable)
class Hub(MemoryHubReader):
    """A partition that grows and expires. Reading it back may fail."""


@dataclass(frozen=True)
class Sender:
    """Sends on behalf of the owner of an epoch."""

    world: World
    epoch: int

    async def send(self, messages: Sequence[OutboxMessage]) -> None:
        await self.world.send(self.epoch, messages)


HOLDING = (
    StoreUnavailable,
    HubUnavailable,
    DependencyDown,
    ConnectionError,
    CommitRefused,  # after too many lost races in a row
)
"""Errors after which the host delivers the batch again."""


class World:
    """One partition, its readers, and a host that repeats, skips and reassigns."""

    def __init__(self, seed: int, fault_rate: float) -> None:
        self.scheduler = Scheduler(seed, fault_rate)
        self.random = self.scheduler.random
        self.limits = CommitLimits(rows_max=self.random.choice(ROWS_MAX))
        self.store = Store(self.now, self.limits.rows_max)
        self.hub = Hub(read_max=self.random.choice([3, 10]))
        self.txids = count()
        self.epoch = 0
        self.recreated_at: int | None = None
        self.noticed = 0
        self.first = self.random.choice([0, 7])
        self.next_sequence = self.first
        self.steps = 0
        self.in_flight: dict[str, tuple[int, datetime]] = {}
        """Messages that are being sent, the epoch of their sender, and the start of the sending."""
        self.forgotten: set[int] = set()
        self.host_checkpoint = self.first - 1
        self.poison = self.random.choice(["none", "few", "first", "last", "all"])
        self.received: list[str] = []
        self.enqueue(10)
        self.steal()

    @property
    def rows(self) -> StreamRows:
        return self.store.rows[STREAM]

    def now(self) -> datetime:
        """Each event takes a second to arrive, each step a tenth of a second, and recreating the
        hub an hour."""
        hours = self.recreated_at is not None
        return NOW + timedelta(seconds=self.next_sequence + self.steps / 10, hours=hours)

    def enqueue(self, number: int) -> None:
        for place in range(number):
            n = self.next_sequence
            body = b"bad" if self._is_poison(place, number - 1) else b"good"
            event = Event(n, f"@{n}", self.now(), body, self.random.choice("ab"))
            if n % NOT_BYTES_EVERY == 0:
                event = replace(event, body=b"null", unreadable="the body is an AMQP null")
            self.hub.add(STREAM, event)
            self.next_sequence += 1

    def _is_poison(self, place: int, last: int) -> bool:
        return {
            "none": False,
            "few": self.random.random() < 0.05,
            "first": place == 0,
            "last": place == last,
            "all": True,
        }[self.poison]

    def recreate(self, *, longer: bool, noticed: bool) -> None:
        """The hub is deleted and created again under the same name, so its numbers start over.

        With ``longer`` it has more events than the old one before it is read, so that its end does
        not reveal it. The readers of the old hub are disconnected. If the host has ``noticed`` the
        change, it starts at the beginning, with readers that know the old hub. Otherwise it
        continues right after our checkpoint.
        """
        self.scheduler.close()
        self.scheduler.tasks.clear()
        self.recreated_at = self.next_sequence
        self.hub.recreate(STREAM, self.now())
        checkpoint = self.rows.checkpoint
        self.host_checkpoint = checkpoint.sequence if checkpoint and not noticed else -1
        count = self.next_sequence + 5 if longer else max(self.first, 1)
        for n in range(count):
            self.hub.add(STREAM, Event(n, f"@new{n}", self.now(), b"new", "a"))
        self.steal(self.latest if noticed else None)

    def forget(self) -> None:
        """The hub's retention removes the oldest events, read or not, sometimes all of them."""
        left = self.random.choice([0, 2, 20])
        before = self.next_sequence - left
        self.forgotten.update(e.sequence for e in self.hub.events[STREAM] if e.sequence < before)
        self.hub.forget(STREAM, before)

    def consumer(self, epoch: int) -> Consumer:
        writer = Writer(f"owner{epoch}", epoch)
        return Consumer(
            STREAM,
            writer,
            self.store,
            self.hub,
            self.handle,
            thrice,
            self.together,
            lambda: f"tx{next(self.txids)}",
            self.limits,
            leases=OutboxLeases(elapsed=lambda: self.now().timestamp()),
        )

    async def together(self, work: Iterable[Callable[[], Awaitable[None]]]) -> None:
        """Run the work in the order of the events, or key by key, as if other tasks had run
        first."""
        for piece in work if self.random.random() < 0.5 else list(work):
            await piece()

    async def handle(self, event: Event) -> Effect:
        wrong = self.random.choice([TransientFailure, DependencyDown, ConnectionError])
        with failing_as(wrong("handler")):
            await pause()
        if event.body == b"bad":
            raise BadEvent("bad")
        message = OutboxMessage(message_id(STREAM, event.sequence), "m")
        return Effect(event.sequence, messages=(message,))

    async def send(self, epoch: int, messages: Sequence[OutboxMessage]) -> None:
        names = [message.message_id for message in messages]
        in_time = self.now() - LEASE / 2  # a longer call has been abandoned
        begun = [self.in_flight[name] for name in names if name in self.in_flight]
        others = {other for other, at in begun if at > in_time} - {epoch}
        assert not others, f"the owner of epoch {epoch} sends messages that {others} is sending"
        self.in_flight.update(dict.fromkeys(names, (epoch, self.now())))
        try:
            await pause()
            half = len(names) // 2
            self.received.extend(names[:half])
            with failing_as(SentInPart("queue", frozenset(range(half)))):
                await pause()
            self.received.extend(names[half:])
            await pause()
        finally:
            for name in names:
                if self.in_flight.get(name, (epoch,))[0] == epoch:
                    self.in_flight.pop(name, None)

    # --- the host ---

    def steal(self, consumer: Consumer | None = None) -> None:
        """Start a new owner. The old one, if it is alive, does not know about it. With
        ``consumer``, that reader continues after it was disconnected."""
        self.epoch += 1
        epoch = self.epoch
        self.latest = consumer or self.consumer(epoch)

        def ended(_result: object, error: BaseException | None) -> None:
            recreated = self.recreated_at is not None and isinstance(error, StreamRecreated)
            assert recreated or isinstance(error, Crash | Outage | Fenced), error
            self.noticed += isinstance(error, StreamRecreated)
            if epoch == self.epoch:
                self.steal()

        self.scheduler.start(self.owner(self.latest), ended)

    async def owner(self, consumer: Consumer) -> None:
        """Deliver batch after batch. The host's own checkpoint is only a hint and may jump."""
        position = self.host_checkpoint + 1
        while True:
            batch = self._batch(position)
            await pause()
            try:
                if batch:
                    await process_batch(batch, consumer)
                elif self.random.random() < 0.3:
                    await process_undelivered(consumer)
                with failing_as(ConnectionError("queue")):
                    sender = Sender(self, consumer.writer.epoch or 0)
                    await outbox.send_messages(
                        STREAM, self.store, sender, consumer.leases, limit=20
                    )
            except HOLDING:
                if not self._times_out():
                    continue  # the host retries the same batch without end
            if batch:
                position = batch[-1].sequence + 1
                self.host_checkpoint = position - 1

    def _batch(self, position: int) -> list[Event]:
        if self.scheduler.fault_rate and self.random.random() < 0.05:
            position += self.random.choice([-5, 3, 9])
        size = self.random.choice([1, 5, 30, 150])
        log = self.hub.events[STREAM]
        batch = [event for event in log if event.sequence >= position][:size]
        if self.scheduler.fault_rate and self.random.random() < 0.05:
            batch = [event for event in batch if self.random.random() < 0.7]
        return batch

    def _times_out(self) -> bool:
        return bool(self.scheduler.fault_rate) and self.random.random() < 0.1

    # --- time ---

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.steps += 1
            self.scheduler.step()
            chance = self.random.random()
            if self.scheduler.fault_rate and chance < 0.02:
                self.enqueue(self.random.choice([1, 3, 8, 8, 150]))
            elif self.scheduler.fault_rate and chance < 0.025:
                self.steal()
            elif self.scheduler.fault_rate and chance < 0.03:
                self.forget()

    def calm(self, steps_max: int = 40_000) -> None:
        """Stop the faults. The last owner must finish within ``steps_max`` steps."""
        self.scheduler.fault_rate = 0
        for _ in range(steps_max // 100):
            self.run(100)
            if self._at_end():
                break
        self.scheduler.close()

    def _at_end(self) -> bool:
        checkpoint = self.rows.checkpoint
        done = checkpoint is not None and checkpoint.sequence == self.next_sequence - 1
        return done and not self.rows.outbox


def check_commits(world: World) -> None:
    """The checkpoint only advances, under epochs that never decrease, and each commit follows the
    previous one."""
    commits = world.store.commits
    for before, after in pairwise([commit.checkpoint for commit in commits]):
        assert after.sequence > before.sequence, f"the checkpoint went back: {before} {after}"
        assert after.epoch >= before.epoch, f"a fenced owner committed: {before} {after}"
        assert after.enqueued_at >= before.enqueued_at
        assert after.start == before.start
    assert [commit.previous for commit in commits[1:]] == [c.checkpoint for c in commits[:-1]]
    assert all(commit.rows <= world.limits.rows_max for commit in commits)


def check_account(world: World) -> None:
    """Each number occurs once. Gaps are events that have expired, and dead letters are events that
    failed."""
    checkpoint, rows = world.rows.checkpoint, world.rows
    assert checkpoint is not None
    counted: Counter[int] = Counter([*rows.effects, *rows.dead_letters])
    for gap in rows.gaps.values():
        numbers = range(gap.first, gap.last + 1)
        counted.update(numbers)
        assert world.forgotten.issuperset(numbers), f"recorded as a gap too early: {gap}"
    assert counted == Counter(range(checkpoint.start, checkpoint.sequence + 1))
    assert all(
        letter.body == b"bad" or letter.kind is not FailureKind.POISON
        for letter in rows.dead_letters.values()
    )
    not_bytes = [n for n, d in rows.dead_letters.items() if d.kind is FailureKind.NOT_BYTES]
    expired = world.forgotten.difference([*rows.effects, *rows.dead_letters])
    assert set(not_bytes) == {
        n
        for n in range(checkpoint.start, checkpoint.sequence + 1)
        if n % NOT_BYTES_EVERY == 0 and n not in expired
    }


def check_outbox(world: World) -> None:
    """All messages of the effects were received, the first time in order."""
    expected = [message_id(STREAM, sequence) for sequence in sorted(world.rows.effects)]
    assert list(dict.fromkeys(world.received)) == expected


def check_recreated(seed: int) -> None:
    """After the hub was recreated, none of its events counts as one of the old hub. Its reader
    stops with an error.

    Events that were delivered or read before may still be committed.
    """
    world = World(seed, fault_rate=0.02)
    world.run(500)
    old = set(range(world.first, world.next_sequence))
    world.recreate(longer=seed % 20 == 9, noticed=seed % 40 >= 20)
    for _ in range(2000):
        world.scheduler.step()
    world.scheduler.close()
    rows = world.rows
    assert old.issuperset([*rows.effects, *rows.dead_letters]), f"seed {seed}"
    assert world.noticed > 0, f"seed {seed}: {rows.checkpoint}"


def check_seed(seed: int) -> None:
    if seed % 10 == 9:
        check_recreated(seed)
        return
    world = World(seed, fault_rate=(0.005, 0.02, 0.05)[seed % 3])
    world.run(1500)
    check_commits(world)
    world.calm()
    assert world._at_end(), f"seed {seed}: {world.rows.checkpoint} of {world.next_sequence - 1}"
    check_commits(world)
    check_account(world)
    check_outbox(world)


@pytest.mark.parametrize("seed", seeds(80))
def test_each_event_is_accounted_for_exactly_once(seed: int) -> None:
    check_seed(seed)
