"""Simulates a host that restarts functions, runs them out of order, twice at a time, or not at all.

The functions run behind the breaker, with a tail timer, an outbox, and a dependency that is down
for a while. Handlers and the queue may take longer than the breaker's window, than the tail's
minute, and than the lease of a message. A hub removes old events, and may be recreated.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count
from typing import TypeVar

import pytest

from local.twins.event_hub import MemoryHubReader
from local.twins.ingestion import MemoryBreakerStore, MemoryIngestionStore
from shared.ingestion.breaker.failure_window import TripRule
from shared.ingestion.breaker.state import Breaker, BreakerMode, BreakerTimes
from shared.ingestion.errors import (
    BadEvent,
    BreakerOpen,
    DependencyDown,
    HubUnavailable,
    RowChanged,
    SentInPart,
    StoreUnavailable,
    StreamRecreated,
)
from shared.ingestion.events import ingest
from shared.ingestion.events.accounting import Writer
from shared.ingestion.events.breaker_client import BreakerClient
from shared.ingestion.events.ingest import BEAT_SECONDS, PartitionPipeline
from shared.ingestion.events.outbox import LEASE
from shared.ingestion.events.process_batch import Consumer
from shared.ingestion.events.retention import EffectRetention
from shared.ingestion.events.tail import TailWatch
from shared.ingestion.model import (
    Commit,
    Effect,
    Event,
    OutboxMessage,
    Stream,
    message_id,
)
from shared.ingestion.ports import Handler
from shared.ingestion.store.events import StoredCheckpoint
from shared.notifications.ports import NotSent
from shared.values.concurrency import Heartbeat
from tests.builders import NOW
from tests.simulation.faults import failing_as, once, one_by_one, pausing, stream_of
from tests.simulation.scheduler import Crash, Outage, Scheduler, pause, sleep_until
from tests.simulation.seeds import seeds

T = TypeVar("T")
PARTITIONS = ("0", "1", "2")
RULE = TripRule(failures_max=20)
TIMES = BreakerTimes(break_seconds=10, break_seconds_max=40, probe_events=3, probe_seconds=15)
SEEN_AFTER = timedelta(seconds=30)
"""After this time a running batch has recorded its activity, even if the first record was lost."""
KEEP = timedelta(seconds=40)
RECOVERY_MAX = timedelta(minutes=15)
ROWS_MAX = (8, 12, 100)
NOT_BYTES_EVERY = 19
"""Each event whose number is a multiple of this has an AMQP body that is not bytes."""
EXPECTED = (
    Outage,
    Crash,
    ExceptionGroup,
    DependencyDown,
    HubUnavailable,
    StoreUnavailable,
    RowChanged,
    BreakerOpen,
)


@dataclass(frozen=True)
class Sender:
    """Sends on behalf of an instance."""

    world: World
    instance: str

    async def send(self, messages: Sequence[OutboxMessage]) -> None:
        await self.world.send(self.instance, messages)


@pausing(
    "load",
    "commit",
    "take",
    "mark_at_work",
    "sent",
    "put_mark",
    "remove_marks",
    "purge_effects",
    error=StoreUnavailable,
)
class Store(MemoryIngestionStore):
    """Remembers the removed effects. Each commit must follow the previous one."""

    def __init__(self, clock: Callable[[], datetime], rows_max: int) -> None:
        super().__init__(clock, rows_max)
        self.written_at: dict[tuple[Stream, int], datetime] = {}
        self.removed: dict[Stream, set[int]] = defaultdict(set)

    async def commit(
        self, stream: Stream, saved: StoredCheckpoint, commit: Commit
    ) -> StoredCheckpoint:
        before, after = self.rows[stream].checkpoint, commit.checkpoint
        answer = await super().commit(stream, saved, commit)
        assert commit.previous == before
        assert before is None or before.start == after.start
        assert before is None or before.sequence < after.sequence
        assert before is None or before.enqueued_at <= after.enqueued_at
        self.written_at.update({(stream, e.sequence): self._clock() for e in commit.effects})
        return answer

    async def purge_effects(self, stream: Stream, up_to: int, limit: int) -> int:
        effects = self.rows[stream].effects
        before = set(effects)
        removed = await super().purge_effects(stream, up_to, limit)
        self.removed[stream] |= before - set(effects)
        for sequence in before - set(effects):
            age = self._clock() - self.written_at[stream, sequence]
            assert age >= KEEP, f"effect {sequence} was removed after {age}"
        return removed


@pausing("load", "replace", "put_tally", error=StoreUnavailable)
class Breakers(MemoryBreakerStore): ...


@pausing("read_back", "state", error=HubUnavailable)
class Hub(MemoryHubReader): ...


async def pause_or(error: Exception) -> None:
    with failing_as(error):
        await pause()


class World:
    """A hub that grows, and a host that delivers its events as hosts do."""

    def __init__(self, seed: int, fault_rate: float) -> None:
        self.scheduler = Scheduler(seed, fault_rate, self.clock)
        self.random = self.scheduler.random
        self.now = NOW
        self.slow = (0.0, 0.004, 0.02)[seed // 2 % 3]
        """The probability that a call is slow."""
        self.handling: dict[tuple[str, int], list[datetime]] = defaultdict(list)
        """The events that batches are handling, and the start of each handling."""
        self.sending: dict[str, str] = {}
        """The messages that are being sent, and the instance that sends each."""
        self.store = Store(self.clock, self.random.choice(ROWS_MAX))
        self.breakers = Breakers(self.clock)
        self.hub = Hub(read_max=7)
        self.first = self.random.choice([0, 7])
        self.ends = dict.fromkeys(PARTITIONS, self.first)
        """The numbers of the next events."""
        self.produced: dict[str, list[Event]] = defaultdict(list)
        self.forgotten: dict[str, set[int]] = defaultdict(set)
        self.recreated = False
        self.noticed = 0
        self.down = False
        self.sent: list[str] = []
        self.announced: list[int] = []
        self.txids = count()
        self.instances = [
            BreakerClient(f"i{n}", self.breakers, self.announce, RULE, TIMES, self.elapsed)
            for n in range(3)
        ]
        self.positions = dict.fromkeys(PARTITIONS, self.first)
        self.owners = dict.fromkeys(PARTITIONS, self.instances[0])
        self.watch = TailWatch(one_by_one)
        self.busy: set[str] = set()
        self.begun: set[str] = set()
        """Partitions of which a batch was committed, or held by a failing dependency. From then on
        the host may skip events."""
        self.repeating = ""
        """A partition of which the host only redelivers events."""
        self.pipelines: dict[tuple[str, str], PartitionPipeline] = {}
        self.swept_during_a_batch: list[str] = []

    def clock(self) -> datetime:
        return self.now

    def elapsed(self) -> float:
        return (self.now - NOW).total_seconds()

    # --- ports

    async def take_time(self) -> None:
        if self.random.random() < self.slow:
            seconds = self.random.choice([3, 20, 45, 90, 150])
            await sleep_until(self.now + timedelta(seconds=seconds))

    def handle_of(self, partition_id: str) -> Handler:
        async def handle(event: Event) -> Effect:
            since, key = self.now, (partition_id, event.sequence)
            self.handling[key].append(since)
            try:
                await self.take_time()
                return await self.handle(event)
            finally:
                self.handling[key].remove(since)

        return handle

    def sweep_of(self, partition_id: str) -> Handler:
        """The handler of a sweep. The sweep must notice a running batch once that has had time to
        record its activity."""

        async def handle(event: Event) -> Effect:
            begun = [
                at for key, each in self.handling.items() for at in each if key[0] == partition_id
            ]
            oldest = min(begun, default=self.now)
            if self.now - oldest >= SEEN_AFTER:
                self.swept_during_a_batch.append(partition_id)
            return await self.handle(event)

        return handle

    async def handle(self, event: Event) -> Effect:
        await pause_or(DependencyDown("database"))
        if self.down:
            raise DependencyDown("database")
        if event.body == b"poison":
            raise BadEvent("poison")
        name = message_id(stream_of(event.body.decode()), event.sequence)
        return Effect(event.sequence, "kept", (OutboxMessage(name, "m"),))

    async def send(self, instance: str, messages: Sequence[OutboxMessage]) -> None:
        names = [message.message_id for message in messages]
        others = {self.sending.get(name, instance) for name in names} - {instance}
        assert not others, f"{instance} sends messages that {others} is sending"
        self.sending.update(dict.fromkeys(names, instance))
        try:
            if self.random.random() < self.slow:
                await sleep_until(self.now + self.random.choice([0.1, 0.3, 0.45]) * LEASE)
            await pause_or(DependencyDown("queue"))
            half = len(names) // 2
            self.sent += names[:half]
            await pause_or(SentInPart("queue", frozenset(range(half))))
            self.sent += names[half:]
        finally:
            for name in names:
                self.sending.pop(name, None)

    async def beside(self, work: Awaitable[T], beat: Heartbeat) -> T:
        """Beat until the work has ended or crashed."""
        over, beating = False, False

        async def beats() -> None:
            nonlocal beating
            while not over:
                await sleep_until(self.now + timedelta(seconds=BEAT_SECONDS))
                if not over:
                    beating = True
                    await beat()
                    beating = False

        self.scheduler.start(beats(), faultless=True)
        try:
            result = await work
        except Exception:
            over = True
            while beating:
                await pause(sheltered=True)
            raise
        finally:
            over = True
        while beating:
            await pause(sheltered=True)
        return result

    async def announce(self, breaker: Breaker) -> None:
        await pause_or(NotSent("webhook"))
        self.announced.append(breaker.epoch)

    def pipeline(self, partition_id: str, client: BreakerClient) -> PartitionPipeline:
        """An instance keeps its pipelines, and with them what they remember."""
        key = partition_id, client.instance
        if key not in self.pipelines:
            self.pipelines[key] = self._new_pipeline(partition_id, client)
        return self.pipelines[key]

    def _new_pipeline(self, partition_id: str, client: BreakerClient) -> PartitionPipeline:
        consumer = Consumer(
            stream_of(partition_id),
            Writer(client.instance),
            self.store,
            self.hub,
            self.handle_of(partition_id),
            once,
            one_by_one,
            lambda: f"t{next(self.txids)}",
        )
        return PartitionPipeline(
            consumer, client, Sender(self, client.instance).send, self.elapsed, self.beside
        )

    # --- the host

    def produce(self, partition_id: str) -> None:
        first = self.ends[partition_id]
        self.ends[partition_id] += self.random.randint(1, 12)
        for sequence in range(first, self.ends[partition_id]):
            poison = self.random.random() < 0.02
            body = b"poison" if poison else partition_id.encode()
            key = self.random.choice([None, "a", "b"])
            event = Event(sequence, str(sequence), self.now, body, key)
            if sequence % NOT_BYTES_EVERY == 0:
                event = replace(event, unreadable="the body is an AMQP map")
            self.hub.add(stream_of(partition_id), event)
            self.produced[partition_id].append(event)
        if self.random.random() < 0.02:
            self.forget(partition_id)

    def forget(self, partition_id: str) -> None:
        """The hub removes old events of a partition, read or not."""
        stream = stream_of(partition_id)
        if self.store.rows[stream].checkpoint is not None:
            before = self.ends[partition_id] - self.random.choice([0, 2, 20])
            left = self.hub.events[stream]
            self.forgotten[partition_id] |= {e.sequence for e in left if e.sequence < before}
            self.hub.forget(stream, before)

    def recreate(self, *, longer: bool) -> None:
        """The hub is deleted and created again under the same name, so its numbers start over.

        With ``longer`` it has more events than the old one before it is read, so that its end does
        not reveal it, and the host continues where it was, with new readers. Otherwise it starts
        at the beginning, with readers that know the old hub.
        """
        self.scheduler.close()
        self.scheduler.tasks.clear()
        self.busy.clear()
        if longer:
            self.pipelines.clear()
        self.recreated, self.now = True, self.now + timedelta(hours=1)
        for partition_id in PARTITIONS:
            stream = stream_of(partition_id)
            self.hub.recreate(stream, self.now)
            self.positions[partition_id] = self.positions[partition_id] if longer else 0
            for n in range(self.ends[partition_id] + 5 if longer else max(self.first, 1)):
                self.hub.add(stream, Event(n, f"@new{n}", self.now, partition_id.encode(), "a"))

    def deliver(self, partition_id: str) -> None:
        """Deliver a batch from the host's position. The host may skip events, go back, or deliver
        twice.

        Usually it runs one batch at a time: it waits for a slow batch, or rarely gives the events
        to another instance as well.
        """
        if partition_id in self.busy and self.random.random() < 0.99:
            return
        batch, chance = self._batch(partition_id), self.random.random()
        if not batch:
            return
        if chance > 0.95:
            self.owners[partition_id] = self.random.choice(self.instances)
        zombies = [self.random.choice(self.instances)] if chance > 0.9 else []
        for client in (self.owners[partition_id], *zombies):
            self.busy.add(partition_id)
            work = ingest.ingest_batch(batch, self.pipeline(partition_id, client))
            self.scheduler.start(work, self.delivered(partition_id, batch[-1].sequence + 1))

    def _batch(self, partition_id: str) -> list[Event]:
        begun, position = partition_id in self.begun, self.positions[partition_id]
        chance = self.random.random()
        if chance < 0.05:
            position = max(position - self.random.randint(1, 30), 0)
        elif chance < 0.1 and begun:
            position = min(position + 3, self.ends[partition_id])
        self.positions[partition_id] = position
        log = self.hub.events[stream_of(partition_id)]
        if partition_id == self.repeating:
            checkpoint = self.store.rows[stream_of(partition_id)].checkpoint
            accounted_for = checkpoint.sequence if checkpoint else -1
            position, log = 0, [event for event in log if event.sequence <= accounted_for]
        size = self.random.choice([1, 5, 15, 150 if begun else 15])
        batch = [event for event in log if event.sequence >= position][:size]
        if begun and self.random.random() < 0.03:
            batch = [event for event in batch if self.random.random() < 0.7]
        return batch

    def delivered(
        self, partition_id: str, position: int
    ) -> Callable[[object, BaseException | None], None]:
        def ended(_result: object, error: BaseException | None) -> None:
            self.expects(error)
            self.busy.discard(partition_id)
            if error is None or isinstance(error, DependencyDown | BreakerOpen):
                self.begun.add(partition_id)
            if error is None:
                self.positions[partition_id] = max(position, self.positions[partition_id])

        return ended

    def expects(self, error: BaseException | None) -> None:
        assert error is None or isinstance(error, EXPECTED) or self.recreated, repr(error)
        self.noticed += isinstance(error, StreamRecreated)

    def look_at_tails(self) -> None:
        client = self.random.choice(self.instances)

        def ended(_result: object, error: BaseException | None) -> None:
            self.expects(error)

        def line_of(partition_id: str) -> PartitionPipeline:
            line = self.pipeline(partition_id, client)
            return replace(
                line, consumer=replace(line.consumer, handle=self.sweep_of(partition_id))
            )

        self.scheduler.start(self.watch.check_partitions(PARTITIONS, line_of), ended)
        retention = EffectRetention(self.store, KEEP, self.elapsed)
        self.scheduler.start(retention.clean_up(), ended)

    def run(self, seconds: float, *, produces: bool = True, skips_tail: bool = False) -> None:
        end = self.now + timedelta(seconds=seconds)
        next_tail = self.now + timedelta(seconds=5)
        while self.now < end:
            self.now += timedelta(seconds=self.random.random() / 2)
            partition_id = self.random.choice(PARTITIONS)
            if produces and self.random.random() < 0.3:
                self.produce(partition_id)
            if not skips_tail:
                self.deliver(partition_id)
            if self.now >= next_tail:
                self.look_at_tails()
                next_tail = self.now + timedelta(seconds=5)
            for _ in range(40):
                self.scheduler.step()
        while self.scheduler.tasks:
            if self.scheduler.choose() is None:
                self.now += timedelta(seconds=1)
            self.scheduler.step()

    # --- what must hold

    @property
    def caught_up(self) -> bool:
        closed = self.breakers.stored.mode is BreakerMode.CLOSED
        return closed and all(self._ends_at(stream_of(each)) for each in PARTITIONS)

    def _ends_at(self, stream: Stream) -> bool:
        checkpoint, last = self.store.rows[stream].checkpoint, self.ends[stream.partition_id] - 1
        return last < self.first or (checkpoint is not None and checkpoint.sequence == last)

    def check(self) -> None:
        assert not self.swept_during_a_batch
        for partition_id in PARTITIONS:
            stream = stream_of(partition_id)
            rows, removed = self.store.rows[stream], self.store.removed[stream]
            lost = {n for gap in rows.gaps.values() for n in range(gap.first, gap.last + 1)}
            assert lost <= self.forgotten[partition_id], "a gap is an event that the hub removed"
            ends = Counter([*rows.effects, *removed, *rows.dead_letters, *lost])
            assert ends == Counter(range(self.first, self.ends[partition_id])), (
                f"partition {partition_id}: an event is missing or occurs twice"
            )
            bad = {
                event.sequence
                for event in self.produced[partition_id]
                if event.body == b"poison" or event.unreadable
            }
            assert set(rows.dead_letters) == bad - lost, "an outage must not make a dead letter"
            assert rows.outbox == {}
            expected = [message_id(stream, n) for n in sorted([*rows.effects, *removed])]
            ours = [name for name in self.sent if name.split(":")[1] == partition_id]
            assert list(dict.fromkeys(ours)) == expected, "they are first sent in order"


def check_recreated(seed: int) -> None:
    """After the hub was recreated, none of its events counts as one of the old hub. Its readers
    stop with an error.

    Events that were delivered or read before may still be committed.
    """
    world = World(seed, fault_rate=0.01)
    world.run(30)
    world.recreate(longer=seed % 2 == 1)
    world.run(60, produces=False)
    for partition_id in PARTITIONS:
        rows = world.store.rows[stream_of(partition_id)]
        old = range(world.first, world.ends[partition_id])
        assert set(old).issuperset([*rows.effects, *rows.dead_letters])
    assert world.noticed > 0


def check_seed(seed: int) -> None:
    if seed % 6 >= 4:
        check_recreated(seed)
        return
    world = World(seed, fault_rate=(0.0, 0.01, 0.03)[seed % 3])
    for down in (seed % 4 == 2, True, False):
        world.down = down
        world.repeating = PARTITIONS[2] if seed % 2 and down else world.repeating
        world.run(120 if world.slow else 40)
    world.scheduler.fault_rate = 0
    while not world.caught_up and world.now < NOW + RECOVERY_MAX:
        world.produce(PARTITIONS[0])  # so that the probe has new events
        world.run(20, produces=False)
    world.run(TIMES.announce_seconds + 20, produces=False, skips_tail=True)  # only the timer works
    end = world.now + RECOVERY_MAX
    while not world.caught_up and world.now < end:
        world.produce(PARTITIONS[0])
        world.run(20, produces=False, skips_tail=True)
    world.check()
    row = world.breakers.stored
    assert row.mode is BreakerMode.CLOSED, row
    assert row.announced_epoch == row.epoch
    assert set(world.announced) == set(range(1, row.epoch + 1))


@pytest.mark.parametrize("seed", seeds(12))
def test_each_event_is_accounted_for_once_and_each_message_is_sent(seed: int) -> None:
    check_seed(seed)
