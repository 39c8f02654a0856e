"""Simulates a fleet of processors that crash, sleep, race and lose replies, on growing partitions.

Shares are even and work is complete soon after faults stop.

The simulation runs the real flows, the whole way from a lease to a commit. Simulated are the hub,
with its owner levels, partitions that cannot be attached to, and connections that carry nothing;
the store, whose replies get lost (a call that seemed lost may still arrive seconds later) and whose
clock is set back; ownership rows that are deleted; and processes that crash, sleep, or cannot reach
the store for minutes, and whose clocks are wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Sequence,
)
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import count, pairwise
from random import Random
from types import coroutine
from typing import Any, TypeVar

import pytest

from local.twins.event_hub import MemoryHubReader
from local.twins.ingestion import MemoryIngestionStore, MemoryOwnershipStore
from shared.ingestion.errors import (
    BadEvent,
    DependencyDown,
    HubSilent,
    HubUnavailable,
    IngestionError,
    RowChanged,
    StoreUnavailable,
)
from shared.ingestion.events import outbox
from shared.ingestion.events.accounting import Writer
from shared.ingestion.events.process_batch import Consumer, process_batch
from shared.ingestion.model import (
    Commit,
    Effect,
    Event,
    OutboxMessage,
    Ownership,
    Stream,
    message_id,
)
from shared.ingestion.ownership.load_balancing import BalancingTimes
from shared.ingestion.ownership.processor import Processor
from shared.ingestion.ownership.read_partition import PartitionReader
from shared.ingestion.store.events import StoredCheckpoint
from shared.ingestion.store.owners import OwnershipSnapshot, OwnershipStore
from shared.values.concurrency import TaskRunner
from tests.builders import NOW
from tests.simulation.faults import failing_as, once, pausing, stream_of
from tests.simulation.scheduler import Crash, Outage, Scheduler, Task, pause
from tests.simulation.seeds import seeds

T = TypeVar("T")
ROWS_MAX = (8, 100)
HOSTILE_SECONDS = 120
TIMES = BalancingTimes(renew_seconds=10, expire_seconds=30)
CYCLE_SECONDS = 5
SKEW_SECONDS_MAX = 600
SLEEP_SECONDS_MAX = 90
CUT_OFF_SECONDS_MAX = 90
SILENT_SECONDS_MAX = 60
"""The longest time during which no processor can attach to a partition and its connections carry
nothing."""
NOTICED_SECONDS = 20
"""The time after which a receiver reports that it cannot attach, or that its connection is
broken."""
BACK_SECONDS = 600
LATE_SECONDS_MAX = 40
STOP_RATE = 0.04
BATCH_MAX = 150
LANES_MAX = 4
LOST = "(lost)"
"""The owner that is recorded for a deleted row, with the epoch of the last commit."""
GOOD, BAD, FULL, TOO_LARGE = b"good", b"bad", b"full", b"too large"
"""The kinds of events. They become an effect, a dead letter, the largest effect that fits into a
transaction, and an effect with one row more, which becomes a dead letter."""


@dataclass
class Instance:
    """A process, whose tasks crash and sleep together. Its own clock is wrong by ``skew``."""

    name: str
    skew: timedelta
    tasks: list[Task] = field(default_factory=list)
    asleep_until: datetime = NOW
    cut_off_until: datetime = NOW
    """Until this time the process cannot reach the ownership rows."""
    consumers: dict[tuple[str, int], Consumer] = field(default_factory=dict)


@pausing("load", error=StoreUnavailable, replies=False)
@pausing("take", "sent", error=StoreUnavailable)
class Store(MemoryIngestionStore):
    """Remembers every commit. A call that failed before it arrived may arrive late."""

    def __init__(self, world: World) -> None:
        super().__init__(lambda: world.store_now, world.rows_max)
        self.world = world
        self.commits: dict[Stream, list[Commit]] = {}

    async def commit(
        self, stream: Stream, saved: StoredCheckpoint, commit: Commit
    ) -> StoredCheckpoint:
        with failing_as(StoreUnavailable("commit")):
            try:
                await pause()
            except BaseException:
                self.world.arrive_late(self._arrive(stream, saved, commit))
                raise
            answer = await self._apply(stream, saved, commit)
            await pause()
        return answer

    async def _apply(
        self, stream: Stream, saved: StoredCheckpoint, commit: Commit
    ) -> StoredCheckpoint:
        answer = await super().commit(stream, saved, commit)
        self.commits.setdefault(stream, []).append(commit)
        return answer

    async def _arrive(self, stream: Stream, saved: StoredCheckpoint, commit: Commit) -> None:
        try:
            await self._apply(stream, saved, commit)
        except RowChanged:
            return


@pausing("owners", error=StoreUnavailable)
class Owners(MemoryOwnershipStore):
    """Remembers every row that was written. Claims may arrive late, too."""

    def __init__(self, world: World) -> None:
        super().__init__(lambda: world.store_now)
        self.world = world
        self.written: list[Ownership] = []
        self.refused: set[tuple[str, str]] = set()
        """The partitions and owners whose last write was refused."""
        self.in_flight: Counter[str] = Counter()

    async def write(self, claim: Ownership) -> Ownership:
        self.in_flight[claim.partition_id] += 1
        try:
            return await self._write(claim)
        finally:
            self.in_flight[claim.partition_id] -= 1

    async def _write(self, claim: Ownership) -> Ownership:
        with failing_as(StoreUnavailable("claim")):
            try:
                await pause()
            except BaseException:
                self.world.arrive_late(self._arrive(claim))
                raise
            self.refused.discard((claim.partition_id, claim.owner))
            try:
                row = await self._apply(claim)
            except RowChanged:
                self.refused.add((claim.partition_id, claim.owner))
                raise
            await pause()
        return row

    async def _apply(self, claim: Ownership) -> Ownership:
        row = await super().write(claim)
        self.written.append(row)
        return row

    async def _arrive(self, claim: Ownership) -> None:
        try:
            await self._apply(claim)
        except IngestionError:
            return

    def lose(self, partition_id: str) -> bool:
        """A person deletes a row while no claim to it is on its way."""
        on_its_way = self.in_flight[partition_id] or self.world.late
        if on_its_way or partition_id not in self.by_partition:
            return False
        checkpoint = self.world.store.rows[stream_of(partition_id)].checkpoint
        committed = checkpoint.epoch if checkpoint else 0
        self.written.append(replace(self.delete(partition_id), owner=LOST, epoch=committed))
        return True


@dataclass(frozen=True)
class OwnersAsReached(OwnershipStore):
    """The ownership rows from the point of view of one process, which may be unable to reach
    them."""

    world: World
    instance: Instance

    async def owners(self) -> OwnershipSnapshot:
        self._check()
        return await self.world.owners.owners()

    async def write(self, claim: Ownership) -> Ownership:
        self._check()
        return await self.world.owners.write(claim)

    def _check(self) -> None:
        if self.world.now < self.instance.cut_off_until:
            raise StoreUnavailable("cut off")


@pausing("read_back", "state", error=HubUnavailable, replies=False)
class Hub(MemoryHubReader):
    """Partitions with owner levels. A reader under a lower level is refused, usually at once."""

    def __init__(self, world: World) -> None:
        super().__init__(read_max=10)
        self.world = world
        self.levels: dict[str, int] = {}

    async def partition_ids(self) -> tuple[str, ...]:
        with failing_as(HubUnavailable("properties")):
            await pause()
        return tuple(str(n) for n in range(self.world.partitions))

    async def receive(
        self,
        partition_id: str,
        after: int | None,
        epoch: int,
        deliver: Callable[[Sequence[Event]], Awaitable[None]],
    ) -> None:
        position = -1 if after is None else after
        with failing_as(HubUnavailable("attach")):
            await pause()
        await self._attach(partition_id, epoch)
        try:
            while True:
                log = self.events[stream_of(partition_id)]
                batch = [e for e in log if e.sequence > position][
                    : self.world.random.randint(1, BATCH_MAX)
                ]
                if batch:
                    position = batch[-1].sequence
                with failing_as(HubUnavailable("receive")):
                    await pause()
                await self._transfer(partition_id, epoch)
                await deliver(batch)
        finally:
            if self.levels.get(partition_id) == epoch:
                del self.levels[partition_id]

    async def _attach(self, partition_id: str, epoch: int) -> None:
        """A silent partition times out; a higher epoch refuses the reader at once."""
        until = self.world.now + timedelta(seconds=NOTICED_SECONDS)
        while self.world.is_silent(partition_id):
            if self.world.now >= until:
                raise HubSilent("no link")
            await pause(sheltered=True)
        if epoch < self.levels.get(partition_id, -1):
            raise HubUnavailable("somebody reads under a higher epoch")
        self.levels[partition_id] = epoch

    async def _transfer(self, partition_id: str, epoch: int) -> None:
        """A connection that once was silent carries nothing any more."""
        if self.world.is_silent(partition_id):
            until = self.world.now + timedelta(seconds=NOTICED_SECONDS)
            while self.world.now < until:
                await pause(sheltered=True)
            raise HubUnavailable("no frame received for the idle timeout")
        level = self.levels.get(partition_id, -1)
        if level > epoch and self.world.random.random() < 0.8:  # otherwise it is already on its way
            raise HubUnavailable("somebody reads under a higher epoch")


class FleetScheduler(Scheduler):
    """Does not run the tasks of a process that sleeps."""

    world: World

    def choose(self) -> Task | None:
        asleep = {
            id(task)
            for instance in self.world.instances.values()
            if instance.asleep_until > self.world.now
            for task in instance.tasks
        }
        awake = [task for task in self.tasks if id(task) not in asleep]
        return self.random.choice(awake) if awake else None


class SimulatedReading:
    """A task of the scheduler that can be canceled like one of an event loop."""

    def __init__(
        self,
        world: World,
        instance: Instance,
        lease: Ownership,
        work: Coroutine[Any, Any, None],
    ) -> None:
        self.world, self.instance, self.lease = world, instance, lease
        self.error: BaseException | None = None
        world.readings.append(self)
        self.task = world.start_task(instance, work, self._ended)

    def _ended(self, _result: object, error: BaseException | None) -> None:
        self.error = error

    def cancel(self) -> None:
        self.world.end_task(self.instance, self.task)

    async def ended(self) -> None:
        await pause(sheltered=True)

    @property
    def goes_on(self) -> bool:
        return self.task in self.world.scheduler.tasks

    @property
    def is_awake(self) -> bool:
        return self.instance.asleep_until <= self.world.now


class World:
    """Time, a hub, and two to four processes. A process that crashes is replaced by one with a new
    name."""

    def __init__(self, seed: int, fault_rate: float) -> None:
        self.scheduler = FleetScheduler(seed, fault_rate)
        self.scheduler.world = self
        self.random = self.scheduler.random
        self.now, self.started = NOW, 0
        self.instances: dict[str, Instance] = {}
        self.partitions = self.random.randint(1, 6)
        self.rows_max = self.random.choice(ROWS_MAX)
        self.readings: list[SimulatedReading] = []
        self.store, self.owners, self.hub = Store(self), Owners(self), Hub(self)
        self.txids = count()
        self.next_sequence: dict[str, int] = {}
        self.poison = self.random.choice(["none", "few", "first", "last", "all"])
        self.received: dict[str, list[str]] = {}
        self.late: list[tuple[datetime, Coroutine[Any, Any, None]]] = []
        self.back_seconds = 0
        self.silent_until: dict[str, datetime] = {}
        self.two_read_since: dict[str, datetime] = {}
        self.two_read_longest = timedelta()
        self.handling: dict[tuple[str, str, int, str | None], int] = {}
        self.begun: dict[tuple[str, str, int, str | None], int] = {}
        self.disorder: list[str] = []
        for partition in range(self.partitions):
            self.enqueue(str(partition), 20)
        for _ in range(self.random.randint(2, 4)):
            self.start_instance()

    # --- the hub ---

    def enqueue(self, partition_id: str, number: int) -> None:
        first = self.next_sequence.get(partition_id, 0)
        events = [self._event(n, first, first + number - 1) for n in range(first, first + number)]
        self.hub.add(stream_of(partition_id), *events)
        self.next_sequence[partition_id] = first + number

    def _event(self, n: int, first: int, last: int) -> Event:
        bad = {
            "none": False,
            "few": self.random.random() < 0.05,
            "first": n == first,
            "last": n == last,
            "all": True,
        }[self.poison]
        body = BAD if bad else self.random.choices((GOOD, FULL, TOO_LARGE), (98, 1, 1))[0]
        return Event(n, f"@{n}", self.now, body, self.random.choice("abc"))

    def is_silent(self, partition_id: str) -> bool:
        return self.now < self.silent_until.get(partition_id, NOW)

    # --- processes ---

    def start_instance(self) -> None:
        skew = timedelta(seconds=self.random.uniform(-SKEW_SECONDS_MAX, SKEW_SECONDS_MAX))
        instance = Instance(f"i{self.started}", skew)
        self.started += 1
        self.instances[instance.name] = instance
        self.start_task(instance, self._balance(instance), lambda _result, _error: None)

    def start_task(
        self,
        instance: Instance,
        work: Coroutine[Any, Any, Any],
        ended: Callable[[Any, BaseException | None], None],
    ) -> Task:
        def on_end(result: Any, error: BaseException | None) -> None:
            if isinstance(error, Crash | Outage):  # an outage here struck outside of any call
                self.kill(instance)
            elif error is not None and not isinstance(error, IngestionError):
                raise AssertionError(f"{instance.name} ended with an unexpected error") from error
            ended(result, error)

        self.scheduler.start(work, on_end)
        instance.tasks.append(self.scheduler.tasks[-1])
        return self.scheduler.tasks[-1]

    def end_task(self, instance: Instance, task: Task) -> None:
        if task in self.scheduler.tasks:
            self.scheduler.tasks.remove(task)
            task.work.close()
        instance.tasks.remove(task)

    def kill(self, instance: Instance) -> None:
        del self.instances[instance.name]
        for task in instance.tasks:
            if task in self.scheduler.tasks:
                self.scheduler.tasks.remove(task)
                task.work.close()
        self.start_instance()

    def put_to_sleep(self) -> None:
        instance = self.random.choice(list(self.instances.values()))
        instance.asleep_until = self.now + timedelta(
            seconds=self.random.uniform(1, SLEEP_SECONDS_MAX)
        )

    def cut_off(self) -> None:
        instance = self.random.choice(list(self.instances.values()))
        seconds = self.random.uniform(1, CUT_OFF_SECONDS_MAX)
        instance.cut_off_until = self.now + timedelta(seconds=seconds)

    def silence(self) -> None:
        """Silence one partition, or all of them, as if the consumer group were deleted for a
        while."""
        until = self.now + timedelta(seconds=self.random.uniform(1, SILENT_SECONDS_MAX))
        partitions = list(map(str, range(self.partitions)))
        if self.random.random() < 0.5:
            partitions = [self.random.choice(partitions)]
        self.silent_until |= dict.fromkeys(partitions, until)

    def arrive_late(self, call: Coroutine[Any, Any, None]) -> None:
        if self.random.random() < 0.5:
            at = self.now + timedelta(seconds=self.random.uniform(0, LATE_SECONDS_MAX))
            self.late.append((at, call))
        else:
            call.close()

    # --- what a process does ---

    async def _balance(self, instance: Instance) -> None:
        processor = self.processor(instance)
        while True:
            with failing_as(RuntimeError("an outage outside of any call")):
                await processor.cycle()
                refused = {p for p, owner in self.owners.refused if owner == instance.name}
                kept = refused & processor.held.keys()
                assert not kept, f"{instance.name} reads partitions that the store refused: {kept}"
                if self.scheduler.fault_rate and self.random.random() < STOP_RATE:
                    await processor.stop()  # and start again
            until = self.now + timedelta(seconds=CYCLE_SECONDS * self.random.uniform(0.8, 1.2))
            while self.now < until:
                await pause(sheltered=True)

    def processor(self, instance: Instance) -> Processor:
        reader = PartitionReader(
            stream_of,
            self.store,
            self.hub,
            self.hub,
            lambda events, lease: self._process(instance, events, lease),
            self._pause,
            lambda _lease, _error: None,
        )
        return Processor(
            instance.name,
            OwnersAsReached(self, instance),
            self.hub,
            self._committed_epoch,
            lambda lease: SimulatedReading(self, instance, lease, reader.read(lease)),
            lambda: (self.now + instance.skew).timestamp(),  # noqa: PLW0108 - at each call
            TIMES,
            run_tasks=interleaved(self.random, LANES_MAX),
        )

    async def _committed_epoch(self, partition_id: str) -> int:
        saved = await self.store.load(stream_of(partition_id))
        return saved.checkpoint.epoch if saved.checkpoint else 0

    async def _process(self, instance: Instance, events: Sequence[Event], lease: Ownership) -> None:
        consumer = self._consumer(instance, lease)
        for key in {event.partition_key for event in events}:
            self.begun.pop((instance.name, lease.partition_id, lease.epoch, key), None)
        await process_batch(events, consumer)
        with failing_as(ConnectionError("queue")):
            await outbox.send_messages(
                consumer.stream, self.store, self.send, consumer.leases, limit=20
            )

    def _consumer(self, instance: Instance, lease: Ownership) -> Consumer:
        """A process keeps the consumer of each lease, and with it what the consumer remembers."""
        key = lease.partition_id, lease.epoch
        if key not in instance.consumers:
            instance.consumers[key] = self._new_consumer(instance, lease)
        return instance.consumers[key]

    def _new_consumer(self, instance: Instance, lease: Ownership) -> Consumer:
        return Consumer(
            stream_of(lease.partition_id),
            Writer(instance.name, lease.epoch),
            self.store,
            self.hub,
            lambda event: self._handle_in_turn(event, instance, lease),
            once,
            interleaved(self.random, LANES_MAX),
            lambda: f"tx{next(self.txids)}",
        )

    async def _handle_in_turn(self, event: Event, instance: Instance, lease: Ownership) -> Effect:
        """Check that an event of a key starts after the previous one has ended. The same event may
        start again."""
        key = instance.name, lease.partition_id, lease.epoch, event.partition_key
        if key in self.handling:
            self.disorder.append(
                f"{event.sequence} while {self.handling[key]} was being handled, key {key}"
            )
        if event.sequence < self.begun.get(key, -1):
            self.disorder.append(f"{event.sequence} after {self.begun[key]}, key {key}")
        self.handling[key] = self.begun[key] = event.sequence
        try:
            return await self._handle(event, lease.partition_id)
        finally:
            self.handling.pop(key, None)

    async def _handle(self, event: Event, partition_id: str) -> Effect:
        with failing_as(DependencyDown("handler")):
            await pause()
        if event.body == BAD:
            raise BadEvent("bad")
        text = f"{partition_id}|{event.partition_key}"
        ids = message_ids(event, stream_of(partition_id), self.rows_max)
        return Effect(event.sequence, messages=tuple(OutboxMessage(each, text) for each in ids))

    async def send(self, messages: Sequence[OutboxMessage]) -> None:
        await pause()
        for message in messages:
            self.received.setdefault(message.body, []).append(message.message_id)
        await pause()

    async def _pause(self, failures: int) -> None:
        until = self.now + timedelta(seconds=min(0.5 * 2**failures, 10) * self.random.random())
        while self.now < until:
            await pause(sheltered=True)

    # --- time ---

    def run(self, seconds: float) -> None:
        end = self.now + timedelta(seconds=seconds)
        while self.now < end:
            self.step()

    @property
    def store_now(self) -> datetime:
        return self.now - timedelta(seconds=self.back_seconds)

    def step(self) -> None:
        self.now += timedelta(seconds=self.random.random() * 0.4)
        for _ in range(2 * len(self.scheduler.tasks)):
            self.scheduler.step()
        for late in [each for each in self.late if each[0] <= self.now]:
            self.late.remove(late)
            _finish(late[1])
        self._measure_readers()
        if self.scheduler.fault_rate:
            self._trouble()

    def _measure_readers(self) -> None:
        """Measure for how long two processes that are awake read the same partition."""
        self.readings = [reading for reading in self.readings if reading.goes_on]
        readers = Counter(each.lease.partition_id for each in self.readings if each.is_awake)
        two = [partition_id for partition_id, count in readers.items() if count > 1]
        self.two_read_since = {p: self.two_read_since.get(p, self.now) for p in two}
        for since in self.two_read_since.values():
            self.two_read_longest = max(self.two_read_longest, self.now - since)

    def _trouble(self) -> None:
        chance = self.random.random()
        if chance < 0.1:
            partition = str(self.random.randrange(self.partitions))
            self.enqueue(partition, self.random.choice([1, 1, 1, 5, 5, 5, 5, 150]))
        elif chance < 0.105:
            self.put_to_sleep()
        elif chance < 0.107:
            self.enqueue(str(self.partitions), 1)
            self.partitions += 1
        elif chance < 0.112:
            self.cut_off()
        elif chance < 0.116:
            self.silence()
        elif chance < 0.120:
            self.owners.lose(str(self.random.randrange(self.partitions)))
        elif chance < 0.121:
            self.back_seconds += BACK_SECONDS

    @property
    def calm_since(self) -> datetime:
        """When the last sleeping process woke up, the store was reachable again, and the hub was no
        longer silent."""
        ends = [max(i.asleep_until, i.cut_off_until) for i in self.instances.values()]
        noticed = timedelta(seconds=NOTICED_SECONDS)
        return max(*ends, *(until + noticed for until in self.silent_until.values()))

    def close(self) -> None:
        self.scheduler.close()
        for _, call in self.late:
            call.close()


def interleaved(random: Random, lanes_max: int) -> TaskRunner:
    """Like ``task_runner``, but in one task of the scheduler: the other workers start when the
    first one waits."""

    async def together(work: Iterable[Callable[[], Awaitable[None]]]) -> None:
        waiting = iter(work)

        async def worker() -> None:
            for piece in waiting:
                await piece()

        await _in_turns(random, worker, lanes_max)

    return together


@coroutine
def _in_turns(
    random: Random, worker: Callable[[], Coroutine[Any, Any, None]], count: int
) -> Generator[bool, None, None]:
    """Run one of the workers at a time. A fault strikes the one that is running."""
    going = [worker()]
    child, fault, begun = going[0], None, False
    try:
        while going:
            try:
                sheltered = child.throw(fault) if fault else child.send(None)
            except StopIteration:
                going.remove(child)
                fault = None
            else:
                if not begun:
                    begun = True
                    going += [worker() for _ in range(count - 1)]
                fault = yield from _turn(sheltered)
            if going and fault is None:
                child = random.choice(going)
    finally:
        for each in going:
            each.close()


def _turn(sheltered: bool) -> Generator[bool, None, Outage | Crash | None]:
    try:
        yield sheltered
    except (Outage, Crash) as fault:
        return fault
    return None


def message_ids(event: Event, stream: Stream, rows_max: int) -> list[str]:
    """The ids of the messages of an event. Each message is a row, and the checkpoint takes one
    more."""
    counts = {BAD: 0, GOOD: 1, FULL: rows_max - 1, TOO_LARGE: rows_max}
    return [message_id(stream, event.sequence, n) for n in range(counts[event.body])]


def _finish(call: Coroutine[Any, Any, None]) -> None:
    """Complete a late call, which must not pause."""
    try:
        call.send(None)
    except StopIteration:
        return
    raise AssertionError("a late call paused")


def check_commits(world: World) -> None:
    """Each partition's checkpoint only advances, under epochs that never decrease."""
    for commits in world.store.commits.values():
        for before, after in pairwise([commit.checkpoint for commit in commits]):
            assert after.sequence > before.sequence, f"the checkpoint went back: {before} {after}"
            assert after.epoch >= before.epoch, f"a commit under an old epoch: {before} {after}"
        assert [c.previous for c in commits] == [None, *(c.checkpoint for c in commits[:-1])]


def check_epochs(world: World) -> None:
    """Each partition has one owner per epoch, and only that owner commits under the epoch."""
    newest: dict[str, Ownership] = {}
    owners: set[tuple[str, int, str]] = set()
    for row in world.owners.written:
        before = newest.get(row.partition_id)
        if before and before.owner == LOST:
            assert row.epoch > before.epoch, "an epoch of a commit was claimed again"
        elif before and row.owner != LOST:
            assert row.epoch >= before.epoch, "an epoch went back"
            same = row.owner in ("", before.owner) or row.epoch > before.epoch
            assert same, f"two owners of {row.partition_id} under {row.epoch}"
        newest[row.partition_id] = row
        owners.add((row.partition_id, row.epoch, row.owner))
    for stream, commits in world.store.commits.items():
        for commit in commits:
            at = commit.checkpoint
            assert (stream.partition_id, at.epoch, at.owner) in owners


def check_accounts(world: World) -> None:
    """Each number of each partition occurs once. Bad and too large events are dead letters, and
    there are no gaps."""
    for partition in map(str, range(world.partitions)):
        rows = world.store.rows[stream_of(partition)]
        counted: Counter[int] = Counter([*rows.effects, *rows.dead_letters])
        assert counted == Counter(range(world.next_sequence[partition])), partition
        bodies = {e.sequence: e.body for e in world.hub.events[stream_of(partition)]}
        dead = {number for number, body in bodies.items() if body in (BAD, TOO_LARGE)}
        assert set(rows.dead_letters) == dead
        assert not rows.gaps


def check_order(world: World) -> None:
    """The events of each key were handled in order, one at a time. Their messages arrived at least
    once, the first time in order."""
    assert not world.disorder, world.disorder
    for partition in map(str, range(world.partitions)):
        stream = stream_of(partition)
        for key in "abc":
            events = world.hub.events[stream]
            sent = [e for e in events if e.partition_key == key and e.body in (GOOD, FULL)]
            got = dict.fromkeys(world.received.get(f"{partition}|{key}", []))
            ids = [message_ids(event, stream, world.rows_max) for event in sent]
            assert list(got) == [each for some in ids for each in some]


def check_readers(world: World) -> None:
    """A processor that cannot reach the store stops reading in the first cycle after its lease has
    expired."""
    cycles = 2 * 1.2 * CYCLE_SECONDS
    longest = world.two_read_longest.total_seconds()
    assert longest <= TIMES.expire_seconds + cycles, (
        f"two processors read one partition for {longest:g} s"
    )


def balanced(world: World) -> bool:
    rows = world.owners.by_partition.values()
    shares = Counter(row.owner for row in rows)
    floor = world.partitions // len(world.instances)
    return (
        sum(shares.values()) == world.partitions
        and set(shares) <= set(world.instances)
        and all(floor <= shares[name] <= floor + 1 for name in world.instances)
    )


def complete(world: World) -> bool:
    streams = {p: world.store.rows[stream_of(p)] for p in map(str, range(world.partitions))}
    return all(
        rows.checkpoint is not None
        and rows.checkpoint.sequence == world.next_sequence[partition] - 1
        and not rows.outbox
        for partition, rows in streams.items()
    )


def quiet(world: World) -> bool:
    """Whether no sleeping processor's lease is about to expire and no late call is outstanding."""
    return not world.late and world.now > world.calm_since + timedelta(seconds=TIMES.expire_seconds)


def recovery_seconds_max(world: World) -> float:
    """The longest recovery: the troubles end, leases expire, each partition is claimed or stolen in
    a cycle of its own, and the backlog is processed."""
    claims = 2 * world.partitions + len(world.instances)
    backlog = max(world.next_sequence.values())
    trouble = max(SLEEP_SECONDS_MAX, CUT_OFF_SECONDS_MAX, SILENT_SECONDS_MAX + NOTICED_SECONDS)
    balancing = trouble + TIMES.expire_seconds + CYCLE_SECONDS * 1.2 * claims
    return balancing + 0.5 * backlog


def check_seed(seed: int) -> None:
    world = World(seed, fault_rate=(0.0005, 0.002, 0.01)[seed % 3])
    try:
        check_world(world)
    finally:
        world.close()


def check_world(world: World) -> None:
    world.run(HOSTILE_SECONDS)
    world.scheduler.fault_rate = 0
    waited, patience = 0.0, recovery_seconds_max(world)
    while not (balanced(world) and complete(world) and quiet(world)):
        world.run(1)
        waited += 1
        assert waited < patience, f"not recovered after {waited} s"
    written = len(world.owners.written)
    world.run(20)
    kept = {r.partition_id: r.epoch for r in world.owners.written[:written]}
    assert kept == {r.partition_id: r.epoch for r in world.owners.by_partition.values()}, (
        "the shares changed again"
    )
    reading = [(r.lease.partition_id, r.lease.epoch) for r in world.readings if r.goes_on]
    assert sorted(reading) == sorted(kept.items()), "each partition must be read by its owner only"
    world.close()
    check_commits(world)
    check_epochs(world)
    check_accounts(world)
    check_order(world)
    check_readers(world)


@pytest.mark.parametrize("seed", seeds(30))
def test_a_fleet_loses_no_event_and_balances_soon_after_faults_stop(seed: int) -> None:
    check_seed(seed)
