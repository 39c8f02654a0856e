"""The pipeline of one partition: breaker, handler, commit, counts, outbox."""

from __future__ import annotations

import logging
import math
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from operator import attrgetter

from shared.ingestion.errors import BadEvent, BreakerOpen, Fenced, OutOfTime, StoreUnavailable
from shared.ingestion.events import outbox, process_batch
from shared.ingestion.events.breaker_client import BreakerClient
from shared.ingestion.events.handling import Evidence, doubted, evidence
from shared.ingestion.events.process_batch import Consumer, Report
from shared.ingestion.model import LONG_AGO, Effect, Event
from shared.ingestion.ports import Handler, SendMessages
from shared.ingestion.store.rows import REASON_LENGTH_MAX
from shared.values.concurrency import WithHeartbeat, without_heartbeat

log = logging.getLogger(__name__)

BEAT_SECONDS = 5.0
"""How often a long batch reports its results to the breaker and checks whether it may go on."""
WORK_MARK_SECONDS = 15.0
"""How often a long batch records that its stream is being worked on."""
MARKS_PER_LOG_LINE = 4
STOPPED = (BreakerOpen, OutOfTime)
"""The errors that stop a batch although nothing has failed."""


@dataclass(frozen=True, slots=True)
class PartitionPipeline:
    """What the events of a partition pass through. After ``seconds_max`` of ``elapsed``, no event
    of a batch is started, because the Functions host aborts a batch that takes too long."""

    consumer: Consumer
    breaker: BreakerClient
    send: SendMessages
    elapsed: Callable[[], float]
    with_heartbeat: WithHeartbeat = without_heartbeat
    seconds_max: float = math.inf

    @property
    def partition_id(self) -> str:
        return self.consumer.stream.partition_id

    @property
    def name(self) -> str:
        return f"{self.consumer.stream.hub}/{self.partition_id}"


Work = Callable[[Consumer], Awaitable[Report]]


@dataclass(slots=True)
class HandlerCalls:
    """Counts and times the handler's calls of one batch. The breaker's client has those in
    ``counted``; the others belong to the bucket of ``bucket_time``."""

    pipeline: PartitionPipeline
    probing: bool = False
    ends: float = math.inf
    """From this moment on, the handler starts no further event."""
    evidence: Evidence | None = None
    successes: int = 0
    failures: int = 0
    failed: dict[int, datetime] = field(default_factory=dict)
    """When each event failed first, by the store's clock."""
    slow: int = 0
    last_error: str = ""
    counted: tuple[int, int, int] = (0, 0, 0)
    bucket_time: datetime = LONG_AGO
    bucket_ends: float = -math.inf
    urgent: bool = False
    beat_due: float = math.inf
    """When a call's end also runs the heartbeat, for a handler that never awaits."""
    mark_due: float = -math.inf
    marks: int = 0
    stopped: str = ""
    """Why no further event may start."""

    def counting(self, handle: Handler) -> Handler:
        """The handler. Each of its calls is counted, and its duration is measured."""
        elapsed, breaker = self.pipeline.elapsed, self.pipeline.breaker

        async def handle_and_count(event: Event) -> Effect:
            if self.stopped:
                raise BreakerOpen(self.stopped)
            began = elapsed()
            if began >= self.ends:
                raise OutOfTime(self._out_of_time)
            try:
                effect = await handle(event)
            except Exception as error:
                ended = self._end(began)
                if breaker.rule.counts_bad_events or not isinstance(error, BadEvent):
                    self.fail(error, event)
                if ended >= self.beat_due:
                    await self.beat()
                raise
            ended = self._end(began)
            self.succeed(effect)
            if ended >= self.beat_due:
                await self.beat()
            return effect

        return handle_and_count

    @property
    def _out_of_time(self) -> str:
        return (
            f"{self.pipeline.name}: the batch took longer than {self.pipeline.seconds_max:g} s. "
            "The events handled so far are committed, and the others are delivered again. If this "
            "repeats, make the handler faster, or lower maxEventBatchSize in host.json"
        )

    @property
    def mostly_failed(self) -> bool:
        """Whether more events failed than succeeded, apart from the one at fault."""
        judged = {self.evidence.last_probe} if self.evidence else set()
        return len(self.failed.keys() - judged) > self.successes

    def succeed(self, effect: Effect) -> None:
        """Count a success. An event that was set aside proves nothing about a dependency."""
        if not getattr(effect, "set_aside", ""):
            self.successes += 1
            self.pipeline.breaker.succeeded += 1

    def fail(self, error: Exception, event: Event | None = None) -> None:
        """Count a failure. An event in doubt counts in its first batch only."""
        doubt = self.pipeline.consumer.remembered.doubt
        if event is not None:
            self.failed.setdefault(event.sequence, self.pipeline.breaker.now)
        if event is None or doubt is None or doubt.sequence != event.sequence:
            self.failures += 1
        self.urgent = True
        self.last_error = f"{type(error).__name__}: {error}"

    def _end(self, began: float) -> float:
        now = self.pipeline.elapsed()
        if now >= self.bucket_ends:
            self.count()
        if now - began > self.pipeline.breaker.rule.slow_seconds:
            self.slow += 1
            self.urgent = True
        return now

    def count(self) -> None:
        """Pass the calls since the last count to the breaker's client, and start a new count."""
        breaker = self.pipeline.breaker
        calls = (self.successes, self.failures, self.slow)
        new = [now - before for now, before in zip(calls, self.counted, strict=True)]
        if not self.probing and any(new):
            successes, failures, slow = new
            error = self.last_error if failures else ""
            breaker.count(self.bucket_time, successes, failures, slow, error)
        self.counted, self.bucket_time = calls, breaker.now
        seconds = breaker.rule.bucket_seconds
        seconds_over = self.bucket_time.timestamp() % seconds
        self.bucket_ends = self.pipeline.elapsed() + seconds - seconds_over

    async def beat(self) -> None:
        """Report the progress of the running batch, and find out whether the batch may go on."""
        name, now = self.pipeline.name, self.pipeline.elapsed()
        self.beat_due = now + 2 * BEAT_SECONDS
        try:
            if now >= self.mark_due:
                await self._mark(now)
            await self._report_progress()
            admission = await self.pipeline.breaker.check(self.pipeline.partition_id)
        except StoreUnavailable as error:
            log.warning("[breaker_not_told] %s: the heartbeat failed: %s", name, error)
            return
        if admission.is_held and not self.stopped:
            self.stopped = f"{name} is held: the breaker is {admission.reason}"
            log.warning("[batch_stopped] %s: the breaker is %s", name, admission.reason)

    async def _mark(self, now: float) -> None:
        await self.pipeline.consumer.store.mark_at_work(self.pipeline.consumer.stream)
        self.mark_due, self.marks = now + WORK_MARK_SECONDS, self.marks + 1
        if self.marks % MARKS_PER_LOG_LINE == 0:
            ended = self.successes + self.failures
            log.info("[batch_at_work] %s: %s call(s) have ended so far", self.pipeline.name, ended)

    async def _report_progress(self) -> None:
        if self.probing:
            await self.pipeline.breaker.keep_probe()
        else:
            await self.report()

    async def report(self) -> None:
        """Share the calls if one failed or was slow or a bucket is over. May open the breaker."""
        self.count()
        urgent, self.urgent = self.urgent, False
        if not urgent and not self.pipeline.breaker.is_behind:
            return
        try:
            await self.pipeline.breaker.after_batch()
        except StoreUnavailable:
            self.urgent = self.urgent or urgent
            raise

    async def watch(self, work: Work) -> None:
        """Process events with a heartbeat, and report to the breaker before an error is raised."""
        remembered = self.pipeline.consumer.remembered
        remembered.at_work += 1
        remembered.in_doubt = None
        self.beat_due = self.pipeline.elapsed() + 2 * BEAT_SECONDS
        try:
            self.evidence = await self._evidence()
            await self.pipeline.with_heartbeat(self._process(work), self.beat)
        except Fenced:
            raise  # another processor has taken over, which is not a failure
        except Exception as error:
            if not self.failures and not self.failed and not isinstance(error, STOPPED):
                self.count()
                self.fail(error)  # the store, the hub or the queue failed, not the handler
            await self._report_end(after=error)
            raise
        finally:
            remembered.at_work -= 1
        remembered.doubt = None
        await self._report_end()

    async def _evidence(self) -> Evidence:
        doubt, breaker = self.pipeline.consumer.remembered.doubt, self.pipeline.breaker
        others_succeeded = doubt is not None and await breaker.succeeded_since(doubt.since)
        return evidence(
            doubt,
            lambda: breaker.succeeded,
            others_succeeded=others_succeeded,
            probing=self.probing,
        )

    async def _process(self, work: Work) -> None:
        consumer = self.pipeline.consumer
        handle = self.counting(consumer.handle)
        report = await work(replace(consumer, handle=handle, evidence=self.evidence))
        log_report(self.pipeline, report)
        if not report.nothing_to_send:
            await send_outbox(self.pipeline)

    async def _report_end(self, after: Exception | None = None) -> None:
        try:
            if after is not None:
                await self._after_doubt()
            if not self.probing:
                await self.report()
                return
            failed = self.mostly_failed or (after is not None and not isinstance(after, STOPPED))
            if failed or self.successes:
                failure = self.last_error if failed else None
                await self.pipeline.breaker.after_probe(self.successes, failure)
        except StoreUnavailable as error:
            if after is None:
                raise
            name = self.pipeline.name
            log.warning("[breaker_not_told] %s: the results were not reported: %s", name, error)

    async def _after_doubt(self) -> None:
        """Remember the event in doubt. Open the breaker if nothing else succeeds."""
        remembered, breaker = self.pipeline.consumer.remembered, self.pipeline.breaker
        if remembered.in_doubt is None:
            return
        since = self.failed.get(remembered.in_doubt, breaker.now)
        doubt = doubted(remembered.doubt, remembered.in_doubt, since, probing=self.probing)
        remembered.doubt = doubt
        if not self.probing:
            what = f"event {doubt.sequence} of {self.pipeline.name} fails, and no call succeeds"
            reason = f"{what}: {self.last_error}"[:REASON_LENGTH_MAX]
            await breaker.after_doubt(doubt.since, reason)


async def ingest_batch(events: Sequence[Event], pipeline: PartitionPipeline) -> None:
    """Account for a batch. Raises the errors of ``process_batch``, BreakerOpen and OutOfTime. While
    the breaker probes, events are processed in small groups; those delivered again are no probe."""
    ends = pipeline.elapsed() + pipeline.seconds_max
    await process_batch.begin(events, pipeline.consumer)
    waiting, only_new = sorted(events, key=attrgetter("sequence")), False
    while waiting:
        admission = await pipeline.breaker.admit(pipeline.partition_id, may_probe=only_new)
        if admission.events_max is not None and not only_new:
            waiting, only_new = await _new(waiting, pipeline), True
            continue
        if admission.is_held:
            raise BreakerOpen(f"{pipeline.name} is held: the breaker is {admission.reason}")
        part = waiting[: admission.events_max]
        waiting = waiting[len(part) :]
        work = partial(process_batch.process_batch, part)
        await HandlerCalls(pipeline, admission.events_max is not None, ends).watch(work)


async def _new(events: list[Event], pipeline: PartitionPipeline) -> list[Event]:
    """The events above the checkpoint. The others may show that the hub was recreated."""
    saved = await pipeline.consumer.store.load(pipeline.consumer.stream)
    accounted_for = saved.checkpoint.sequence if saved.checkpoint else -1
    first_new = bisect_right(events, accounted_for, key=attrgetter("sequence"))
    if first_new:
        await process_batch.process_batch(events[:first_new], pipeline.consumer)
    return events[first_new:]


async def ingest_undelivered(pipeline: PartitionPipeline, events_max: int | None) -> None:
    """Account for at most ``events_max`` (None: all) events that were never delivered."""
    work = partial(process_batch.process_undelivered, events_max=events_max)
    ends = pipeline.elapsed() + pipeline.seconds_max
    await HandlerCalls(pipeline, events_max is not None, ends).watch(work)


async def send_outbox(pipeline: PartitionPipeline) -> int:
    """Send the messages of this process, and those that other processes left behind."""
    consumer = pipeline.consumer
    return await outbox.send_messages(
        consumer.stream, consumer.store, pipeline.send, consumer.leases
    )


def log_report(pipeline: PartitionPipeline, report: Report) -> None:
    """Log what was committed. Lost events are logged as errors."""
    for gap in report.gaps:
        log.log(
            logging.ERROR if gap.is_loss else logging.INFO,
            "%s %s: %s event(s) from %s to %s: %s",
            "[gap]" if gap.is_loss else "[compacted]",
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
            "[ingested] %s: %s event(s), %s record(s) ignored, %s read back, up to %s, "
            "%s set aside",
            pipeline.name,
            report.effects,
            report.ignored,
            report.read_back,
            report.checkpoint.sequence if report.checkpoint else None,
            report.set_aside,
        )
