"""A partition's batch behind the breaker: admitted, accounted for, counted, its outbox sent."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from shared.ingestion.errors import BadEvent, BreakerOpen, Fenced, StoreUnavailable
from shared.ingestion.failure_window import TripRule
from shared.ingestion.flows import outbox, process_batch
from shared.ingestion.flows.guard import BreakerGuard
from shared.ingestion.flows.process_batch import Consumer, Report
from shared.ingestion.model import Effect, Event
from shared.ingestion.ports import Handler, MessageSender

log = logging.getLogger(__name__)

OUTBOX_LIMIT = 100


@dataclass(frozen=True, slots=True)
class Line:
    """All that a partition's events pass through. ``elapsed`` counts seconds, from anywhere."""

    consumer: Consumer
    guard: BreakerGuard
    sender: MessageSender
    elapsed: Callable[[], float]

    @property
    def name(self) -> str:
        return f"{self.consumer.stream.hub}/{self.consumer.stream.partition_id}"


@dataclass(slots=True)
class Calls:
    """The handler's calls of one batch, counted and timed."""

    rule: TripRule
    elapsed: Callable[[], float]
    successes: int = 0
    failures: int = 0
    slow: int = 0
    last_error: str = ""

    def of(self, handle: Handler) -> Handler:
        elapsed, slow_seconds = self.elapsed, self.rule.slow_seconds

        async def counted(event: Event) -> Effect:
            began = elapsed()
            try:
                effect = await handle(event)
            except BadEvent as error:
                if self.rule.counts_bad_events:
                    self.fail(error)
                raise
            except Exception as error:
                self.fail(error)
                raise
            finally:
                if elapsed() - began > slow_seconds:
                    self.slow += 1
            self.successes += 1
            return effect

        return counted

    @property
    def mostly_failed(self) -> bool:
        return self.failures > self.successes

    def fail(self, error: Exception) -> None:
        self.failures += 1
        self.last_error = f"{type(error).__name__}: {error}"


async def run(events: Sequence[Event], line: Line) -> None:
    """Account for a batch. Raises what holds the partition, BreakerOpen among it.

    While the breaker probes, events pass a few at a time, each few reported before the next. A
    single bad event among them says nothing of what they are handled with. Those that came again
    are neither held nor a trial.
    """
    await process_batch.begin(events, line.consumer)
    left, only_new = sorted(events, key=attrgetter("sequence")), False
    while left:
        gate = await line.guard.admit(line.consumer.stream.partition_id, may_probe=only_new)
        if gate.events_max is not None and not only_new:
            left, only_new = await _new(left, line), True
            continue
        if gate.shut:
            raise BreakerOpen(f"{line.name} is held, the breaker is {gate.reason}")
        part = left[: gate.events_max]
        left = left[len(part) :]
        await _watched(part, line, probing=gate.events_max is not None)


async def _new(events: list[Event], line: Line) -> list[Event]:
    """Those above the checkpoint. The others are only looked at: a hub that was made anew shows
    in them, and nothing is handled for them."""
    saved = await line.consumer.store.load(line.consumer.stream)
    known = saved.checkpoint.sequence if saved.checkpoint else -1
    first_new = bisect_right(events, known, key=attrgetter("sequence"))
    if first_new:
        await process_batch.run(events[:first_new], line.consumer)
    return events[first_new:]


async def _watched(part: Sequence[Event], line: Line, *, probing: bool) -> None:
    """Process, and tell the breaker how it went before anything is raised."""
    calls = Calls(line.guard.rule, line.elapsed)
    consumer = replace(line.consumer, handle=calls.of(line.consumer.handle))
    try:
        report = await process_batch.run(part, consumer)
        tell(line, report)
        if not report.nothing_to_send:
            await drain(line)
    except Fenced:
        raise  # somebody else goes on, nothing is broken
    except Exception as error:
        if calls.failures == 0:  # not the handler's: the store's, the hub's or the queue's
            calls.fail(error)
        await _told(calls, line, probing, after=error)
        raise
    await _told(calls, line, probing)


async def _told(calls: Calls, line: Line, probing: bool, after: Exception | None = None) -> None:
    try:
        if probing:
            failed = after is not None or calls.mostly_failed
            failure = calls.last_error if failed else None
            if failed or calls.successes:
                await line.guard.after_probe(calls.successes, failure)
        elif calls.successes or calls.failures:
            line.guard.count(
                line.guard.looked_at,
                successes=calls.successes,
                failures=calls.failures,
                slow=calls.slow,
                last_error=calls.last_error,
            )
            if calls.failures or calls.slow or line.guard.is_behind:
                await line.guard.after_batch()
    except StoreUnavailable as error:
        if after is None:
            raise
        log.warning("[breaker_not_told] %s: %s", line.name, error)


async def drain(line: Line) -> int:
    """Send all that commits left to be sent."""
    sent = 0
    while found := await outbox.drain(
        line.consumer.stream, line.consumer.store, line.sender, OUTBOX_LIMIT
    ):
        sent += found
        if found < OUTBOX_LIMIT:
            break
    return sent


def tell(line: Line, report: Report) -> None:
    """Say what was committed; gaps are errors, for events are gone."""
    for gap in report.gaps:
        log.error(
            "[gap] %s: %s event(s) from %s to %s: %s",
            line.name,
            gap.count,
            gap.first,
            gap.last,
            gap.reason,
        )
    if report.dead_letters:
        log.warning("[dead_lettered] %s: %s event(s)", line.name, report.dead_letters)
    if report.effects or report.read_back:
        log.info(
            "[ingested] %s: %s event(s), %s record(s) ignored, %s read back, up to %s",
            line.name,
            report.effects,
            report.ignored,
            report.read_back,
            report.checkpoint.sequence if report.checkpoint else None,
        )
