"""A partition's batch behind the breaker: admitted, accounted for, counted, its outbox sent."""

from __future__ import annotations

import logging
import math
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from operator import attrgetter

from shared.ingestion.breaker.breaker import LONG_AGO
from shared.ingestion.breaker.guard import BreakerGuard
from shared.ingestion.concurrency import WithHeartbeat, without_heartbeat
from shared.ingestion.errors import (
    BadEvent,
    BreakerOpen,
    Fenced,
    OutOfTime,
    StoreUnavailable,
)
from shared.ingestion.events import outbox, process_batch
from shared.ingestion.events.ports import Handler, OutboxSender
from shared.ingestion.events.process_batch import Consumer, Report
from shared.ingestion.model import Effect, Event

log = logging.getLogger(__name__)

BEAT_SECONDS = 5.0
"""How often a batch that takes long tells the breaker how it goes, and asks whether to go on."""
WORK_MARK_SECONDS = 15.0
"""How often it notes that somebody is at work on its stream."""
MARKS_PER_LOG_LINE = 4
STOPPED = (BreakerOpen, OutOfTime)
"""What a batch raises that was stopped: no failure of anything."""


@dataclass(frozen=True, slots=True)
class PartitionPipeline:
    """All that a partition's events pass through. ``elapsed`` counts seconds, from anywhere.

    After ``seconds_max`` no further event of a batch begins. Where the host ends a function that
    takes too long, a batch would otherwise be begun anew for ever without ever being committed.
    """

    consumer: Consumer
    guard: BreakerGuard
    sender: OutboxSender
    elapsed: Callable[[], float]
    with_heartbeat: WithHeartbeat = without_heartbeat
    seconds_max: float = math.inf

    @property
    def name(self) -> str:
        return f"{self.consumer.stream.hub}/{self.consumer.stream.partition_id}"


@dataclass(slots=True)
class HandlerCalls:
    """The handler's calls of one batch, timed, and counted when they end.

    What ended since ``reported`` is not yet in the breaker's count; all of it is of the bucket that
    ``bucket`` is in.
    """

    pipeline: PartitionPipeline
    probing: bool = False
    ends: float = math.inf
    """When no further event may begin."""
    successes: int = 0
    failures: int = 0
    slow: int = 0
    last_error: str = ""
    reported: tuple[int, int, int] = (0, 0, 0)
    bucket: datetime = LONG_AGO
    bucket_ends: float = -math.inf
    urgent: bool = False
    """Something failed or was slow since the breaker was told."""
    beat_due: float = math.inf
    """When a call that ends beats itself: a handler that never waits lets nobody else do it."""
    mark_due: float = -math.inf
    marks: int = 0
    stopped: str = ""
    """Why no further event may begin."""

    def of(self, handle: Handler) -> Handler:
        elapsed, rule = self.pipeline.elapsed, self.pipeline.guard.rule

        async def counted(event: Event) -> Effect:
            if self.stopped:
                raise BreakerOpen(self.stopped)
            began = elapsed()
            if began >= self.ends:
                raise OutOfTime(_out_of_time(self.pipeline))
            try:
                effect = await handle(event)
            except Exception as error:
                ended = self._end(began)
                if rule.counts_bad_events or not isinstance(error, BadEvent):
                    self.fail(error)
                if ended >= self.beat_due:
                    await self.beat()
                raise
            ended = self._end(began)
            self.successes += 1
            if ended >= self.beat_due:
                await self.beat()
            return effect

        return counted

    @property
    def mostly_failed(self) -> bool:
        return self.failures > self.successes

    def fail(self, error: Exception) -> None:
        self.failures += 1
        self.urgent = True
        self.last_error = f"{type(error).__name__}: {error}"

    def _end(self, began: float) -> float:
        """A call has ended; what it was is counted next."""
        now = self.pipeline.elapsed()
        if now >= self.bucket_ends:
            self.count()
        if now - began > self.pipeline.guard.rule.slow_seconds:
            self.slow += 1
            self.urgent = True
        return now

    def count(self) -> None:
        """Hand what ended since the last time over to the guard, and begin anew."""
        guard = self.pipeline.guard
        calls = (self.successes, self.failures, self.slow)
        successes, failures, slow = [
            new - old for new, old in zip(calls, self.reported, strict=True)
        ]
        if not self.probing and (successes or failures or slow):
            guard.count(
                self.bucket,
                successes=successes,
                failures=failures,
                slow=slow,
                last_error=self.last_error if failures else "",
            )
        self.reported, self.bucket = calls, guard.now
        seconds = guard.rule.bucket_seconds
        self.bucket_ends = self.pipeline.elapsed() + seconds - self.bucket.timestamp() % seconds

    async def beat(self) -> None:
        """Tell of the batch while it runs, and find out whether it may go on."""
        now = self.pipeline.elapsed()
        self.beat_due = now + 2 * BEAT_SECONDS
        try:
            if now >= self.mark_due:
                await self._mark(now)
            await self._report()
            gate = await self.pipeline.guard.look(self.pipeline.consumer.stream.partition_id)
        except StoreUnavailable as error:
            log.warning("[breaker_not_told] %s: %s", self.pipeline.name, error)
            return
        if gate.shut and not self.stopped:
            self.stopped = f"{self.pipeline.name} is held, the breaker is {gate.reason}"
            log.warning("[batch_stopped] %s: the breaker is %s", self.pipeline.name, gate.reason)

    async def _mark(self, now: float) -> None:
        """Note that the stream is at work; once a minute the log hears of it too."""
        await self.pipeline.consumer.store.mark_at_work(self.pipeline.consumer.stream)
        self.mark_due, self.marks = now + WORK_MARK_SECONDS, self.marks + 1
        if self.marks % MARKS_PER_LOG_LINE == 0:
            ended = self.successes + self.failures
            log.info("[batch_at_work] %s: %s call(s) have ended so far", self.pipeline.name, ended)

    async def _report(self) -> None:
        if self.probing:
            await self.pipeline.guard.keep_probe()
        else:
            await self.report()

    async def report(self) -> None:
        """Add to what all instances count what is worth it, and open the breaker where it is."""
        self.count()
        urgent, self.urgent = self.urgent, False
        if not urgent and not self.pipeline.guard.is_behind:
            return
        try:
            await self.pipeline.guard.after_batch()
        except StoreUnavailable:
            self.urgent = self.urgent or urgent
            raise


async def run(events: Sequence[Event], pipeline: PartitionPipeline) -> None:
    """Account for a batch. Raises what holds the partition, BreakerOpen among it.

    While the breaker probes, events pass a few at a time, each few reported before the next. A
    single bad event among them says nothing of what they are handled with. Those that came again
    are neither held nor a trial.
    """
    ends = pipeline.elapsed() + pipeline.seconds_max
    await process_batch.begin(events, pipeline.consumer)
    left, only_new = sorted(events, key=attrgetter("sequence")), False
    while left:
        gate = await pipeline.guard.admit(pipeline.consumer.stream.partition_id, may_probe=only_new)
        if gate.events_max is not None and not only_new:
            left, only_new = await _new(left, pipeline), True
            continue
        if gate.shut:
            raise BreakerOpen(f"{pipeline.name} is held, the breaker is {gate.reason}")
        part = left[: gate.events_max]
        left = left[len(part) :]
        work = partial(process_batch.run, part)
        await _watched(work, pipeline, ends, probing=gate.events_max is not None)


async def _new(events: list[Event], pipeline: PartitionPipeline) -> list[Event]:
    """Those above the checkpoint. The others are only looked at: a hub that was made anew shows
    in them, and nothing is handled for them."""
    saved = await pipeline.consumer.store.load(pipeline.consumer.stream)
    known = saved.checkpoint.sequence if saved.checkpoint else -1
    first_new = bisect_right(events, known, key=attrgetter("sequence"))
    if first_new:
        await process_batch.run(events[:first_new], pipeline.consumer)
    return events[first_new:]


async def sweep(pipeline: PartitionPipeline, events_max: int | None) -> None:
    """Account for what nobody delivered, as for a batch: counted, stopped and sent like one.

    ``events_max`` is how many the breaker lets through; None: all.
    """
    work = partial(process_batch.sweep, events_max=events_max)
    ends = pipeline.elapsed() + pipeline.seconds_max
    await _watched(work, pipeline, ends, probing=events_max is not None)


Work = Callable[[Consumer], Awaitable[Report]]


def _out_of_time(pipeline: PartitionPipeline) -> str:
    return (
        f"{pipeline.name}: {pipeline.seconds_max:g} s are over. What has been handled is accounted "
        "for, the rest comes again. If this repeats, make the handler faster, or have fewer events "
        "in a batch: maxEventBatchSize in host.json"
    )


async def _watched(work: Work, pipeline: PartitionPipeline, ends: float, *, probing: bool) -> None:
    """Process, and tell the breaker how it goes, and before anything is raised how it went."""
    calls = HandlerCalls(pipeline, probing, ends, beat_due=pipeline.elapsed() + 2 * BEAT_SECONDS)
    pipeline.consumer.remembered.at_work += 1
    try:
        await pipeline.with_heartbeat(_processed(work, pipeline, calls), calls.beat)
    except Fenced:
        raise  # somebody else goes on, nothing is broken
    except Exception as error:
        if calls.failures == 0 and not isinstance(error, STOPPED):
            calls.count()
            calls.fail(error)  # not the handler's: the store's, the hub's or the queue's
        await _report_end(calls, after=error)
        raise
    finally:
        pipeline.consumer.remembered.at_work -= 1
    await _report_end(calls)


async def _processed(work: Work, pipeline: PartitionPipeline, calls: HandlerCalls) -> None:
    report = await work(replace(pipeline.consumer, handle=calls.of(pipeline.consumer.handle)))
    log_report(pipeline, report)
    if not report.nothing_to_send:
        await drain(pipeline)


async def _report_end(calls: HandlerCalls, after: Exception | None = None) -> None:
    try:
        if not calls.probing:
            await calls.report()
            return
        failed = calls.mostly_failed or (after is not None and not isinstance(after, STOPPED))
        if failed or calls.successes:
            failure = calls.last_error if failed else None
            await calls.pipeline.guard.after_probe(calls.successes, failure)
    except StoreUnavailable as error:
        if after is None:
            raise
        log.warning("[breaker_not_told] %s: %s", calls.pipeline.name, error)


async def drain(pipeline: PartitionPipeline) -> int:
    """Send all that this process is the one to send, and what others left behind."""
    consumer = pipeline.consumer
    return await outbox.drain(consumer.stream, consumer.store, pipeline.sender, consumer.leases)


def log_report(pipeline: PartitionPipeline, report: Report) -> None:
    """Say what was committed; gaps are errors, for events are gone."""
    for gap in report.gaps:
        log.error(
            "[gap] %s: %s event(s) from %s to %s: %s",
            pipeline.name,
            gap.count,
            gap.first,
            gap.last,
            gap.reason,
        )
    if report.dead_letters:
        log.warning("[dead_lettered] %s: %s event(s)", pipeline.name, report.dead_letters)
    if report.effects or report.read_back:
        log.info(
            "[ingested] %s: %s event(s), %s record(s) ignored, %s read back, up to %s",
            pipeline.name,
            report.effects,
            report.ignored,
            report.read_back,
            report.checkpoint.sequence if report.checkpoint else None,
        )
