"""A partition's pipeline behind the breaker: admitting, holding, counting, sending, and sweeping
the tail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count
from typing import TypeVar

import pytest

from local.twins.event_hub import MemoryHubReader
from local.twins.ingestion import MemoryBreakerStore, MemoryIngestionStore
from shared.ingestion.breaker.failure_window import Tally, TripRule
from shared.ingestion.breaker.state import Breaker, BreakerMode, BreakerTimes, isolate
from shared.ingestion.errors import (
    BadEvent,
    BreakerOpen,
    DependencyDown,
    Fenced,
    HubUnavailable,
    StoreUnavailable,
    StreamRecreated,
)
from shared.ingestion.events import ingest
from shared.ingestion.events.accounting import Writer
from shared.ingestion.events.breaker_client import BreakerClient
from shared.ingestion.events.ingest import PartitionPipeline
from shared.ingestion.events.process_batch import Consumer
from shared.ingestion.events.tail import TailWatch
from shared.ingestion.model import Effect, Event, HubState, OutboxMessage, Stream, message_id
from shared.notifications.ports import NotSent
from shared.values.concurrency import task_runner
from tests.builders import NOW, thrice
from tests.ingestion.test_process_batch import events

T = TypeVar("T")
STREAM = Stream("ns", "hub", "$Default", "0")


class Rig:
    """One instance over in-memory adapters. ``now`` is the stores' clock."""

    def __init__(self) -> None:
        self.now = NOW
        self.store = MemoryIngestionStore(lambda: self.now)
        self.hub = MemoryHubReader()
        self.breakers = MemoryBreakerStore(lambda: self.now)
        self.sent: list[str] = []
        self.announced: list[int] = []
        self.handle_error: Exception | None = None
        self.send_error: Exception | None = None
        self.announce_error: Exception | None = None
        self.call_seconds = 0.0
        self.seconds = 0.0
        self.handled: list[int] = []
        self.bad: set[int] = set()
        self.foreign: set[int] = set()
        self.quiet = False
        rule = TripRule(
            failures_max=5,
            failure_ratio_max=None,
            slow_ratio_max=0.5,
            slow_seconds=2,
            throughput_min=4,
        )
        times = BreakerTimes(break_seconds=30, probe_events=2)
        self.breaker = BreakerClient("i1", self.breakers, self, rule, times, self.passed)
        self.lines: dict[str, PartitionPipeline] = {}
        self.watch = TailWatch(task_runner(4))

    def line(self, partition_id: str = "0") -> PartitionPipeline:
        """The pipeline of a partition. An instance keeps its pipelines, and with them what they
        remember."""
        if partition_id not in self.lines:
            self.lines[partition_id] = self.new_line(partition_id)
        return self.lines[partition_id]

    async def line_of(self, partition_id: str) -> PartitionPipeline:
        return self.line(partition_id)

    def new_line(self, partition_id: str = "0") -> PartitionPipeline:
        numbers = count()
        stream = replace(STREAM, partition_id=partition_id)
        consumer = Consumer(
            stream,
            Writer("i1"),
            self.store,
            self.hub,
            self.handle,
            thrice,
            task_runner(4),
            lambda: f"{self.now}-{next(numbers)}",
        )
        return PartitionPipeline(consumer, self.breaker, self, lambda: self.seconds)

    def passed(self) -> float:
        return (self.now - NOW).total_seconds()

    async def handle(self, event: Event) -> Effect:
        self.seconds += self.call_seconds
        self.handled.append(event.sequence)
        if self.handle_error is not None:
            raise self.handle_error
        if event.sequence in self.bad:
            raise BadEvent("nonsense")
        if event.sequence in self.foreign:
            return Effect(event.sequence, set_aside="a log")
        if self.quiet:
            return Effect(event.sequence)
        message = OutboxMessage(message_id(STREAM, event.sequence), "m")
        return Effect(event.sequence, messages=(message,))

    async def send(self, messages: Sequence[OutboxMessage]) -> None:
        if self.send_error is not None:
            raise self.send_error
        self.sent += [message.message_id for message in messages]

    async def announce(self, breaker: Breaker) -> None:
        if self.announce_error is not None:
            raise self.announce_error
        self.announced.append(breaker.epoch)

    async def ingest(self, first: int, last: int) -> None:
        await ingest.ingest_batch(events(first, last), self.line())

    async def mode(self) -> BreakerMode:
        return (await self.breakers.load()).breaker.mode

    def wait(self, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now

    @property
    def checkpoint(self) -> int:
        found = self.store.rows[STREAM].checkpoint
        return found.sequence if found else -1


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_a_batch_is_committed_and_its_messages_are_sent(rig: Rig) -> None:
    await rig.ingest(0, 249)
    assert rig.sent == [f"hub:0:{n}" for n in range(250)]
    assert (rig.checkpoint, len(rig.store.rows[STREAM].outbox)) == (249, 0)


async def test_a_healthy_batch_makes_only_the_necessary_store_calls(rig: Rig) -> None:
    """The batch waits for the round trip of each call."""
    asked: list[str] = []

    def counted(name: str, call: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        async def wrapped(*arguments: object) -> T:
            asked.append(name)
            return await call(*arguments)

        return wrapped

    for store in (rig.store, rig.breakers):
        for name in ("load", "commit", "outbox", "sent", "replace", "put_tally", "tallies"):
            if hasattr(store, name):
                setattr(store, name, counted(name, getattr(store, name)))
    await rig.ingest(0, 9)
    assert asked == ["load", "commit", "load", "commit", "outbox", "sent"], "the beginning first"
    asked.clear()
    rig.quiet = True
    await rig.ingest(10, 19)
    assert asked == ["load", "commit"], "nothing to send"
    asked.clear()
    rig.wait(10)
    await rig.ingest(20, 29)
    assert asked == ["load", "commit", "put_tally", "put_tally", "load", "tallies"]


async def test_unsent_messages_are_sent_when_their_batch_is_redelivered(
    rig: Rig,
) -> None:
    rig.send_error = DependencyDown("queue metrics")
    with pytest.raises(DependencyDown):
        await rig.ingest(0, 3)
    rig.send_error = None
    await rig.ingest(0, 3)
    assert rig.sent == [f"hub:0:{n}" for n in range(4)]


async def test_a_dependency_that_is_down_holds_the_partition_until_it_recovers(rig: Rig) -> None:
    rig.handle_error = DependencyDown("database")
    for _ in range(5):
        with pytest.raises(DependencyDown):
            await rig.ingest(0, 9)
    assert await rig.mode() is BreakerMode.CLOSED
    with pytest.raises(DependencyDown):
        await rig.ingest(0, 9)
    assert (await rig.mode(), rig.announced, rig.checkpoint) == (BreakerMode.OPEN, [1], -1)
    calls = len(rig.handled)
    with pytest.raises(BreakerOpen, match="hub/0 is held: the breaker is open: 6 failures"):
        await rig.ingest(0, 9)
    assert len(rig.handled) == calls, "no event is handled while the breaker is open"
    rig.handle_error = None
    rig.wait(30)
    await rig.ingest(0, 9)
    assert (await rig.mode(), rig.checkpoint, rig.sent[-1]) == (BreakerMode.CLOSED, 9, "hub:0:9")
    assert rig.handled[calls:] == list(range(10)), (
        "a probe with a few events, then the others, each once"
    )


async def test_a_probe_handles_a_few_events_and_reopens_the_breaker_if_they_fail(rig: Rig) -> None:
    await test_a_dependency_that_is_down_holds_the_partition_until_it_recovers(rig)
    rig.wait(10)
    rig.handle_error = BadEvent("nonsense")
    await rig.ingest(10, 15)  # the six events become dead letters
    assert (await rig.mode(), rig.checkpoint) == (BreakerMode.OPEN, 15)
    rig.wait(60)
    with pytest.raises(BreakerOpen):
        await rig.ingest(16, 25)
    assert (rig.checkpoint, await rig.mode()) == (17, BreakerMode.OPEN)
    assert len(rig.store.rows[STREAM].dead_letters) == 8


async def test_one_bad_event_does_not_fail_a_probe(rig: Rig) -> None:
    await test_a_dependency_that_is_down_holds_the_partition_until_it_recovers(rig)
    rig.handle_error = DependencyDown("again")
    for _ in range(6):
        with pytest.raises(DependencyDown):
            await rig.ingest(10, 11)
    rig.wait(60)
    rig.handle_error, rig.bad = None, {10}
    await rig.ingest(10, 19)
    assert (await rig.mode(), rig.checkpoint) == (BreakerMode.CLOSED, 19)
    assert list(rig.store.rows[STREAM].dead_letters) == [10]


async def test_bad_events_can_be_excluded_from_the_failures(rig: Rig) -> None:
    rig.breaker.rule = replace(rig.breaker.rule, counts_bad_events=False, failure_ratio_max=0.5)
    rig.bad = set(range(30))
    await rig.ingest(0, 39)
    rig.wait(20)
    await rig.ingest(40, 49)
    assert await rig.mode() is BreakerMode.CLOSED
    assert len(rig.store.rows[STREAM].dead_letters) == 30
    rig.handle_error = ValueError("unknown failure")
    with pytest.raises(ValueError, match="unknown failure"):
        await rig.ingest(50, 56)
    assert await rig.mode() is BreakerMode.OPEN, "errors other than BadEvent count"


async def test_events_that_are_set_aside_neither_open_the_breaker_nor_keep_it_closed(
    rig: Rig,
) -> None:
    rule = replace(rig.breaker.rule, failures_max=None, failure_ratio_max=0.5, throughput_min=2)
    rig.breaker.rule = rule
    rig.foreign = set(range(30))
    await rig.ingest(0, 25)
    stored = rig.store.rows[STREAM]
    assert (stored.checkpoint.set_aside if stored.checkpoint else None) == 26
    assert (stored.dead_letters, stored.outbox, await rig.mode()) == ({}, {}, BreakerMode.CLOSED)
    rig.bad = {30, 31, 32}
    await rig.ingest(26, 32)
    assert await rig.mode() is BreakerMode.OPEN, "all events that were tried have failed"


async def trip_again(rig: Rig) -> int:
    """Account for the events up to 9, then open the breaker and let the open interval pass. Returns
    the number of handled events."""
    await test_a_dependency_that_is_down_holds_the_partition_until_it_recovers(rig)
    rig.handle_error = DependencyDown("again")
    for _ in range(6):
        with pytest.raises(DependencyDown):
            await rig.ingest(10, 11)
    return len(rig.handled)


async def test_redelivered_events_are_neither_held_nor_used_as_a_probe(rig: Rig) -> None:
    calls = await trip_again(rig)
    await rig.ingest(0, 9)
    with pytest.raises(BreakerOpen):
        await rig.ingest(0, 10)
    rig.wait(60)
    await rig.ingest(0, 9)
    assert (await rig.mode(), len(rig.handled)) == (BreakerMode.OPEN, calls)
    rig.handle_error = None
    await rig.ingest(0, 10)
    assert (await rig.mode(), rig.handled[calls:]) == (BreakerMode.HALF_OPEN, [10])
    await rig.ingest(0, 10)
    assert await rig.mode() is BreakerMode.HALF_OPEN
    await rig.ingest(0, 14)
    assert (await rig.mode(), rig.checkpoint) == (BreakerMode.CLOSED, 14)


async def test_a_partition_without_new_events_leaves_the_probe_to_others(rig: Rig) -> None:
    await trip_again(rig)
    rig.wait(60)
    rig.handle_error = None
    await rig.ingest(10, 10)
    for _ in range(6):
        await rig.ingest(0, 10)
        rig.wait(10)
    await ingest.ingest_batch(events(0, 0), rig.line("1"))
    assert await rig.mode() is BreakerMode.CLOSED


async def test_a_recreated_hub_is_reported_although_the_breaker_is_open(rig: Rig) -> None:
    await trip_again(rig)
    reborn = [replace(each, enqueued_at=NOW + timedelta(hours=9)) for each in events(0, 3)]
    with pytest.raises(StreamRecreated):
        await ingest.ingest_batch(reborn, rig.line())


async def test_the_tallies_of_batches_that_end_together_are_all_written(rig: Rig) -> None:
    """If an older tally were written last, newer failures would be lost."""
    put, first = rig.breakers.put_tally, asyncio.Event()

    async def slow(tally: Tally) -> None:
        if not first.is_set():
            first.set()
            await asyncio.sleep(0.01)
        await put(tally)

    rig.breakers.put_tally = slow  # type: ignore[method-assign]
    rig.handle_error = BadEvent("nonsense")
    lines = [rig.line(each) for each in ("0", "1")]
    await asyncio.gather(*[ingest.ingest_batch(events(0, 1), line) for line in lines])
    (tally,) = await rig.breakers.tallies(NOW)
    assert tally.failures == 4
    assert rig.breaker.unwritten == {}


async def test_too_many_slow_calls_open_the_breaker(rig: Rig) -> None:
    rig.call_seconds = 3
    await rig.ingest(0, 3)
    breaker = (await rig.breakers.load()).breaker
    assert breaker.reason == "4 of 4 calls were slow in 30 s, more than 50%"


async def test_an_unreachable_queue_holds_the_partition_and_loses_no_message(rig: Rig) -> None:
    rig.send_error = DependencyDown("queue metrics")
    for _ in range(6):
        with pytest.raises(DependencyDown):
            await rig.ingest(0, 3)
    assert (rig.checkpoint, await rig.mode()) == (3, BreakerMode.OPEN)
    assert len(rig.handled) == 4, "committed events are not handled again"
    (tally,) = await rig.breakers.tallies(NOW)
    assert tally.last_error == "DependencyDown: queue metrics"
    rig.send_error = None
    rig.hub.add(STREAM, *events(0, 3))
    await rig.watch.check_partitions(["0"], rig.line_of)
    assert rig.sent == [f"hub:0:{n}" for n in range(4)], (
        "messages are sent even while the breaker is open"
    )


@pytest.mark.parametrize(
    ("error", "failures"), [(Fenced("another"), 0), (StoreUnavailable("gone"), 1)]
)
async def test_a_take_over_does_not_count_as_a_failure(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, error: Exception, failures: int
) -> None:
    async def fail(*_arguments: object) -> None:
        raise error

    await rig.ingest(0, 3)
    monkeypatch.setattr(rig.store, "commit", fail)
    with pytest.raises(type(error)):
        await rig.ingest(4, 7)
    tallies = await rig.breakers.tallies(NOW - timedelta(hours=1))
    assert sum(each.failures for each in tallies) == failures


async def test_the_error_of_a_failing_store_is_raised_unchanged(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(tally: Tally) -> None:
        raise StoreUnavailable("tally")

    rig.handle_error = DependencyDown("the first cause")
    rig.breakers.put_tally = fail  # type: ignore[method-assign]
    with pytest.raises(DependencyDown, match="the first cause"):
        await rig.ingest(0, 3)
    assert "[breaker_not_told] hub/0: the results were not reported: tally" in caplog.text


async def test_a_failed_announcement_does_not_stop_batches_and_is_repeated(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.announce_error, rig.handle_error = NotSent("503"), BadEvent("nonsense")
    await rig.ingest(0, 9)
    assert (await rig.mode(), rig.announced, rig.checkpoint) == (BreakerMode.OPEN, [], 9)
    assert "[breaker_not_announced] incident 1: 503" in caplog.text
    rig.announce_error = rig.handle_error = None
    rig.wait(61)
    await rig.ingest(10, 19)
    assert (await rig.mode(), rig.announced) == (BreakerMode.CLOSED, [1])


async def test_an_isolated_breaker_admits_nothing_and_starts_no_probe(rig: Rig) -> None:
    seen = await rig.breakers.load()
    stopped = isolate(seen.breaker, "deploying", NOW, rig.breaker.times)
    assert stopped is not None
    await rig.breakers.replace(seen, stopped)
    rig.wait(3600)
    with pytest.raises(BreakerOpen, match="isolated: deploying"):
        await rig.ingest(0, 3)
    assert (rig.handled, rig.announced) == ([], [1])


async def test_a_gap_is_logged_as_an_error(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    await rig.ingest(0, 1)
    await rig.ingest(4, 5)
    assert "[gap] hub/0: 2 event(s) from 2 to 3: skipped by the host" in caplog.text
    assert [r.levelno for r in caplog.records if "[gap]" in r.message] == [logging.ERROR]


# --- the tail ---------------------------------------------------------------------------------


async def test_undelivered_events_are_read_back_at_the_second_check(rig: Rig) -> None:
    await rig.ingest(0, 3)
    rig.hub.add(STREAM, *events(0, 6))
    await rig.watch.check_partitions(["0"], rig.line_of)
    assert rig.checkpoint == 3, "the trigger may be about to deliver it"
    rig.wait(60)
    await rig.watch.check_partitions(["0"], rig.line_of)
    assert (rig.checkpoint, rig.sent[-1]) == (6, "hub:0:6")


async def test_a_stream_that_makes_progress_is_left_to_the_trigger(rig: Rig) -> None:
    await rig.ingest(0, 3)
    rig.hub.add(STREAM, *events(0, 6))
    await rig.watch.check_partitions(["0"], rig.line_of)
    await rig.ingest(4, 6)
    rig.hub.add(STREAM, *events(7, 8))
    rig.wait(60)
    await rig.watch.check_partitions(["0"], rig.line_of)
    rig.wait(60)
    await rig.watch.check_partitions(["0", "1"], rig.line_of)  # partition 1 has no checkpoint
    assert rig.checkpoint == 8
    assert sorted(rig.handled) == list(range(9))


async def test_the_tail_is_not_swept_while_the_breaker_is_open(rig: Rig) -> None:
    await rig.ingest(0, 3)
    rig.hub.add(STREAM, *events(0, 6))
    await rig.watch.check_partitions(["0"], rig.line_of)
    seen = await rig.breakers.load()
    await rig.breakers.replace(seen, replace(seen.breaker, mode=BreakerMode.ISOLATED))
    await rig.watch.check_partitions(["0"], rig.line_of)
    assert rig.checkpoint == 3


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (HubUnavailable("no answer"), HubUnavailable),
        (HubState(NOW, 0), StreamRecreated),
        (HubState(NOW + timedelta(hours=1), 9), StreamRecreated),
    ],
)
async def test_a_failure_of_one_partition_does_not_stop_the_others(
    rig: Rig, state: HubState | Exception, error: type[Exception]
) -> None:
    other = replace(STREAM, partition_id="1")
    for partition_id in ("0", "1"):
        await ingest.ingest_batch(events(0, 3), rig.line(partition_id))
    rig.hub.add(other, *events(0, 6))
    ask: Callable[[Stream], Awaitable[HubState]] = rig.hub.state

    async def asked(stream: Stream) -> HubState:
        if stream != STREAM:
            return await ask(stream)
        if isinstance(state, Exception):
            raise state
        return state

    rig.hub.state = asked  # type: ignore[method-assign]
    for _ in range(2):
        rig.wait(60)
        with pytest.raises(ExceptionGroup) as raised:
            await rig.watch.check_partitions(["0", "1"], rig.line_of)
        assert [type(e) for e in raised.value.exceptions] == [error]
    checkpoint = rig.store.rows[other].checkpoint
    assert checkpoint is not None
    assert checkpoint.sequence == 6


async def test_the_tail_watch_tells_of_events_in_a_partition_without_a_checkpoint(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is delivered there if the state was lost after all events had been read."""
    rig.hub.add(STREAM, *events(0, 3))
    await rig.watch.check_partitions(["0"], rig.line_of)
    assert "[tail_unread]" not in caplog.text
    rig.wait(600)
    await rig.watch.check_partitions(["0"], rig.line_of)
    assert "[tail_unread] hub/0: the hub has events up to number 3" in caplog.text
    assert rig.handled == []
