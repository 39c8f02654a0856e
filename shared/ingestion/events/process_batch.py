"""A batch of events, committed: nothing lost, nothing twice, whoever else is at work.

1. Read the checkpoint, skip what it covers; a stream that has none gets one right before its first
event, so that a batch that fails before its first commit is missed later. 2. Read back what is
missing; what the hub no longer has is a gap. 3. Handle the events. 4. Commit prefix by prefix, each
under the version that was read. Who loses that race starts again, with the outcomes that it has
already.

A reader whose own commit came last has no need to read: it remembers what it wrote, and goes on
from there where the batch is the very next one. Had anybody else written since, the commit is
refused like any that lost a race.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from shared.ingestion.concurrency import Retrying, TaskRunner
from shared.ingestion.errors import AccountingBroken, CommitRefused, StoreUnavailable
from shared.ingestion.events.accounting import (
    CommitLimits,
    CommitStatus,
    Writer,
    commit_status,
    plan_commits,
)
from shared.ingestion.events.failure_cause import Outages
from shared.ingestion.events.handling import BatchOutcomes, handle_events
from shared.ingestion.events.outbox import OutboxLeases
from shared.ingestion.events.ports import Handler, HubReader, IngestionStore, StoredCheckpoint
from shared.ingestion.events.survey import (
    Span,
    beginning,
    check_made_before,
    follows,
    holes,
    survey,
    tail,
)
from shared.ingestion.model import Checkpoint, Commit, DeadLetter, Event, Gap, Stream

RACES_MAX = 10
"""Races lost in a row before the batch goes back to the host."""
LOST_REPLIES_MAX = 5


@dataclass(slots=True)
class LastCommit:
    """A stream's checkpoint as this reader's last commit left it; nothing after a failure.

    ``same_hub``: whether it was found that the hub is the one that the checkpoint is of. A hub
    that is made anew later cuts its readers off; whoever reads it on looks again.
    """

    saved: StoredCheckpoint | None = None
    same_hub: bool = False
    begun: bool = False
    """Whether the stream is known to have a checkpoint."""
    at_work: int = 0
    """How many batches and sweeps this process is at."""

    def take(self, events: Sequence[Event], writer: Writer) -> StoredCheckpoint | None:
        """What the batch goes on from; None where it does not follow, for then it is to be seen
        what stands: events may have come again, or the hub been made anew. Raises Fenced."""
        saved, self.saved = self.saved, None
        if not events or saved is None or saved.checkpoint is None:
            return None
        writer.epoch_over(saved.checkpoint.epoch)
        return saved if follows(saved.checkpoint, events) else None


@dataclass(frozen=True, slots=True)
class Consumer:
    """One stream's reader and all that it works with. ``new_txid`` never repeats itself."""

    stream: Stream
    writer: Writer
    store: IngestionStore
    hub: HubReader
    handle: Handler
    retry: Retrying
    run_tasks: TaskRunner
    new_txid: Callable[[], str]
    limits: CommitLimits | None = None
    """Narrower than the store's own, where they are to be."""
    remembered: LastCommit = field(default_factory=LastCommit)
    leases: OutboxLeases = field(default_factory=OutboxLeases)
    outages: Outages = ()
    """Errors that a user names as outages, besides those that ``classify`` knows."""


@dataclass(slots=True)
class Report:
    """What one call committed; ``gaps`` are worth an alert."""

    effects: int = 0
    messages: int = 0
    ignored: int = 0
    dead_letters: int = 0
    gaps: list[Gap] = field(default_factory=list)
    read_back: int = 0
    checkpoint: Checkpoint | None = None

    @property
    def nothing_to_send(self) -> bool:
        """Events were new, and none left a message. Of a batch that came again nobody knows
        whether its messages were sent the last time."""
        return self.messages == 0 and self.effects + self.dead_letters > 0

    def add(self, commit: Commit) -> None:
        self.effects += len(commit.effects)
        self.messages += sum([len(each.messages) for each in commit.effects if each.messages])
        self.ignored += sum([each.ignored for each in commit.effects if each.ignored])
        self.dead_letters += len(commit.dead_letters)
        self.gaps.extend(commit.gaps)
        self.checkpoint = commit.checkpoint


@dataclass(frozen=True, slots=True)
class _Pass:
    """What can be accounted for now: events up to ``last``, and the gaps between them."""

    events: tuple[Event, ...]
    holes: tuple[Span, ...]
    last: int


async def run(events: Sequence[Event], consumer: Consumer) -> Report:
    """Account for a batch and for whatever is missing before it.

    Raises what holds the partition (an outage, in the store, the hub or a dependency; CommitRefused
    after ``RACES_MAX`` lost races): commits made until then stand, and the same batch goes on from
    there. Raises Fenced, StreamRecreated.
    """
    remembered = consumer.remembered.take(events, consumer.writer)
    if remembered is not None:
        await _check_hub(remembered, consumer)
        newest = events[-1].sequence
        return await _account(events, newest, consumer, remembered, long_ago=True)
    newest = max([event.sequence for event in events], default=-1)
    saved = await consumer.store.load(consumer.stream)
    await _check_hub(saved, consumer)
    saved = await _begun(saved, events, consumer)
    return await _account(events, newest, consumer, saved)


async def _check_hub(saved: StoredCheckpoint, consumer: Consumer) -> None:
    """Once in the consumer's life. A stream that begins is of the hub whose events came."""
    if consumer.remembered.same_hub:
        return
    if saved.checkpoint is not None:
        hub = await consumer.hub.state(consumer.stream)
        check_made_before(saved.checkpoint, hub.created_at)
    consumer.remembered.same_hub = True


async def begin(events: Sequence[Event], consumer: Consumer) -> None:
    """See that the stream has a checkpoint, before anything else can fail and hold the batch.

    Asks the store once in the consumer's life. Raises StoreUnavailable, Fenced.
    """
    remembered = consumer.remembered
    if remembered.begun or not events:
        return
    found = await consumer.store.load(consumer.stream)
    remembered.saved = await _begun(found, events, consumer)
    remembered.same_hub = found.checkpoint is None


async def _begun(
    saved: StoredCheckpoint, events: Sequence[Event], consumer: Consumer
) -> StoredCheckpoint:
    """The same checkpoint, or that of the beginning, which is written where there is none."""
    if saved.checkpoint is None and events:
        first = beginning(min(events, key=lambda event: event.sequence))
        writer = consumer.writer
        epoch = writer.epoch_over(first.epoch)
        mine = replace(first, epoch=epoch, owner=writer.owner, txid=consumer.new_txid())
        try:
            saved = await _write(saved, Commit(None, mine), consumer)
        except CommitRefused:  # another was first
            saved = await consumer.store.load(consumer.stream)
    consumer.remembered.begun = saved.checkpoint is not None
    return saved


async def sweep(consumer: Consumer, events_max: int | None = None) -> Report:
    """Account for what the hub has and nobody delivered, or for so many numbers of it. A stream
    that never began is left alone.

    The checkpoint is read before the hub: the other way round it could be ahead of what the hub
    had, and a healthy stream look recreated. Raises as ``run`` does.
    """
    saved = await consumer.store.load(consumer.stream)
    if saved.checkpoint is None:
        return Report()
    hub = await consumer.hub.state(consumer.stream)
    if tail(saved.checkpoint, hub) is None:
        return Report(checkpoint=saved.checkpoint)
    saved = await consumer.store.load(consumer.stream)  # later than the events, for a gap's time
    newest = hub.last_enqueued
    if events_max is not None and saved.checkpoint is not None:
        newest = min(newest, saved.checkpoint.sequence + events_max)
    return await _account((), newest, consumer, saved)


async def _account(
    events: Sequence[Event],
    newest: int,
    consumer: Consumer,
    saved: StoredCheckpoint,
    *,
    long_ago: bool = False,
) -> Report:
    """Pass by pass, each from where the last one's commit left the checkpoint.

    ``long_ago``: the checkpoint is remembered. The events follow it, but nobody knows when that
    was: its ``read_at`` is not about now.
    """
    report, settled, races = Report(), BatchOutcomes(), 0
    step = _Pass(tuple(events), (), newest) if long_ago else None
    while step := step or await _next_pass(saved, events, newest, consumer, report):
        try:
            await _settle(step, consumer, saved.read_at, settled)
            saved = await _commit(saved, step, consumer, settled, report, long_ago=long_ago)
            races, long_ago = 0, False
        except CommitRefused:
            races += 1
            if races == RACES_MAX:
                raise
            saved = await _begun(await consumer.store.load(consumer.stream), events, consumer)
            long_ago = False
        step = None
    report.checkpoint = saved.checkpoint
    consumer.remembered.saved = saved
    return report


async def _next_pass(
    saved: StoredCheckpoint,
    events: Sequence[Event],
    newest: int,
    consumer: Consumer,
    report: Report,
) -> _Pass | None:
    """What to account for next: up to the second hole, with the first one filled. None at the end.

    One hole at a time bounds what is in memory, however many events the host skipped.
    """
    checkpoint = saved.checkpoint
    if checkpoint is None:
        return None
    consumer.writer.epoch_over(checkpoint.epoch)
    if newest <= checkpoint.sequence and report.checkpoint == checkpoint:
        return None  # up to where this call has come itself
    fresh = survey(checkpoint, events).fresh
    if newest <= checkpoint.sequence:
        return None
    missing = holes(fresh, Span(checkpoint.sequence + 1, newest))
    if not missing:
        return _Pass(fresh, (), newest)
    hole = missing[0]
    back = await consumer.hub.read_back(consumer.stream, hole)
    if back.complete_to < hole.first:
        raise AccountingBroken(f"reading back from {hole.first} said nothing of it")
    report.read_back += len(back.events)
    last = back.complete_to
    if last >= hole.last:
        last = missing[1].first - 1 if len(missing) > 1 else newest
    found = [event for event in back.events if hole.first <= event.sequence <= hole.last]
    now = survey(checkpoint, [e for e in (*fresh, *found) if e.sequence <= last]).fresh
    return _Pass(now, holes(now, Span(checkpoint.sequence + 1, last)), last)


async def _settle(step: _Pass, consumer: Consumer, now: datetime, settled: BatchOutcomes) -> None:
    settled.held.clear()
    await handle_events(
        step.events,
        consumer.handle,
        consumer.retry,
        consumer.run_tasks,
        now,
        settled,
        consumer.outages,
    )


async def _read_again(
    saved: StoredCheckpoint, consumer: Consumer, settled: BatchOutcomes
) -> StoredCheckpoint:
    """The same checkpoint, read now: what failed is to say when. Raises CommitRefused where it is
    another one by now."""
    now = await consumer.store.load(consumer.stream)
    for sequence, outcome in settled.outcomes.items():
        if isinstance(outcome, DeadLetter):
            settled.outcomes[sequence] = replace(outcome, failed_at=now.read_at)
    if now.checkpoint != saved.checkpoint:
        raise CommitRefused(f"{consumer.stream.key}: somebody else went on")
    return now


async def _commit(
    saved: StoredCheckpoint,
    step: _Pass,
    consumer: Consumer,
    settled: BatchOutcomes,
    report: Report,
    *,
    long_ago: bool,
) -> StoredCheckpoint:
    """Write what is settled; what comes before a failure that holds the partition is committed."""
    commits = _plan(saved, step, consumer, settled)
    if long_ago and any(commit.dead_letters for commit in commits):
        saved = await _read_again(saved, consumer, settled)
        commits = _plan(saved, step, consumer, settled)
    for commit in commits:
        saved = await _write(saved, commit, consumer)
        consumer.leases.committed(commit.effects)
        report.add(commit)
    if settled.held:
        raise settled.held[min(settled.held)]
    return saved


def _plan(
    saved: StoredCheckpoint, step: _Pass, consumer: Consumer, settled: BatchOutcomes
) -> tuple[Commit, ...]:
    outcomes, events, end = settled.outcomes, step.events, step.last + 1
    if settled.held:
        end = min([e.sequence for e in events if e.sequence not in outcomes], default=end)
        events = tuple([e for e in events if e.sequence < end])
    reason = "skipped by the host and no longer in the hub"
    return plan_commits(
        saved.checkpoint,
        events,
        [outcomes[event.sequence] for event in events],
        [Gap(s.first, s.last, saved.read_at, reason) for s in step.holes if s.last < end],
        consumer.writer,
        consumer.new_txid(),
        saved.read_at,
        consumer.limits or consumer.store.limits,
    )


async def _write(saved: StoredCheckpoint, commit: Commit, consumer: Consumer) -> StoredCheckpoint:
    """Commit, and find out what became of it where the reply was lost.

    A refusal can be the echo of our own commit: the lost call arrived after all.
    """
    for _ in range(LOST_REPLIES_MAX):
        try:
            return await consumer.store.commit(consumer.stream, saved, commit)
        except (StoreUnavailable, CommitRefused):
            saved = await consumer.store.load(consumer.stream)
            became = commit_status(commit, saved.checkpoint)
        if became is CommitStatus.APPLIED:
            return saved
        if became is CommitStatus.OVERTAKEN:
            raise CommitRefused(f"{consumer.stream.key}: somebody else went on")
    raise StoreUnavailable(f"{consumer.stream.key}: {LOST_REPLIES_MAX} replies lost in a row")
