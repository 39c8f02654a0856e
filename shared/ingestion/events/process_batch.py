"""Processes a batch so that each event is accounted for exactly once, even with concurrent readers.

1. Skip what the checkpoint covers; write a first one just before the first event.
2. Read missing events back from the hub. Those that it no longer has are a gap.
3. Handle the events.
4. Commit in order, in parts, if the stored checkpoint is unchanged. A reader that loses this race
  starts again with the outcomes that it already has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from shared.ingestion.errors import (
    AccountingBroken,
    IngestionError,
    RowChanged,
    RowRefused,
    StoreUnavailable,
)
from shared.ingestion.events.accounting import Writer, dead_letter, plan_commits
from shared.ingestion.events.handling import BatchHandling, Doubt, Evidence
from shared.ingestion.events.outbox import OutboxLeases
from shared.ingestion.events.survey import (
    beginning,
    check_made_before,
    check_same_hub,
    follows,
    holes,
    new_events,
)
from shared.ingestion.failure_cause import classify
from shared.ingestion.model import (
    COMPACTED,
    LOST,
    Checkpoint,
    Commit,
    DeadLetter,
    Effect,
    Event,
    FailureKind,
    Gap,
    Span,
    Stream,
    set_aside_among,
)
from shared.ingestion.ports import Handler, HubReader
from shared.ingestion.store.events import EventStore, StoredCheckpoint, check_epoch
from shared.values.concurrency import Retrying, TaskRunner

log = logging.getLogger(__name__)

RACES_MAX = 10
"""After so many lost races in a row, the batch fails and the host delivers it again."""
LOST_REPLIES_MAX = 5
REFUSED_MAX = 5
"""If the store refuses so many effects, each alone, no single one is at fault."""


@dataclass(slots=True)
class LastCommit:
    """What a reader remembers between batches."""

    saved: StoredCheckpoint | None = None
    """The checkpoint that the last commit wrote; None after a failure."""
    same_hub: bool = False
    """Whether the checkpoint is of the present hub. A deleted hub disconnects its readers."""
    begun: bool = False
    """Whether the stream is known to have a checkpoint."""
    at_work: int = 0
    in_doubt: int | None = None
    """The first event in doubt after the last batch."""
    doubt: Doubt | None = None
    refused: bool = False
    """Whether the effect that was tried last became a dead letter because it was refused."""

    def take(self, events: Sequence[Event], writer: Writer) -> StoredCheckpoint | None:
        """The checkpoint, or None if the batch does not follow it directly. Raises Fenced."""
        saved, self.saved = self.saved, None
        if not events or saved is None or saved.checkpoint is None:
            return None
        writer.commit_epoch(saved.checkpoint)
        return saved if follows(saved.checkpoint, events) else None


@dataclass(frozen=True, slots=True)
class Consumer:
    """What the events of one stream are processed with. ``new_txid`` returns a new id each time."""

    stream: Stream
    writer: Writer
    store: EventStore
    hub: HubReader
    handle: Handler
    retry: Retrying
    run_tasks: TaskRunner
    new_txid: Callable[[], str]
    remembered: LastCommit = field(default_factory=LastCommit)
    leases: OutboxLeases = field(default_factory=OutboxLeases)
    evidence: Evidence | None = None
    """Without it, an event whose attempts fail for an unknown reason is at fault."""


@dataclass(slots=True)
class Report:
    """What one call of ``process_batch`` or ``process_undelivered`` committed."""

    effects: int = 0
    messages: int = 0
    ignored: int = 0
    set_aside: int = 0
    dead_letters: int = 0
    gaps: list[Gap] = field(default_factory=list)
    read_back: int = 0
    checkpoint: Checkpoint | None = None

    @property
    def nothing_to_send(self) -> bool:
        """Whether the new events had no messages. Those of redelivered ones may be unsent."""
        return self.messages == 0 and self.effects + self.dead_letters > 0

    def add(self, commit: Commit) -> None:
        self.effects += len(commit.effects)
        self.messages += sum([len(each.messages) for each in commit.effects if each.messages])
        self.ignored += sum([each.ignored for each in commit.effects if each.ignored])
        self.set_aside += set_aside_among(commit.effects)
        self.dead_letters += len(commit.dead_letters)
        self.gaps.extend(commit.gaps)
        self.checkpoint = commit.checkpoint


@dataclass(frozen=True, slots=True)
class _Pass:
    """What can be accounted for now: events up to ``last``, and holes nobody could read."""

    events: tuple[Event, ...]
    holes: tuple[Span, ...]
    last: int
    oldest: int | None = None

    def gaps(self, end: int, found_at: datetime) -> list[Gap]:
        """The holes before ``end``. Those above the oldest event are the work of compaction."""
        gaps = list[Gap]()
        for hole in self.holes:
            oldest = hole.last + 1 if self.oldest is None else max(self.oldest, hole.first)
            lost, replaced = Span(hole.first, min(hole.last, oldest - 1)), Span(oldest, hole.last)
            for span, reason in ((lost, LOST), (replaced, COMPACTED)):
                if hole.last < end and span.count > 0:
                    gaps.append(Gap(span.first, span.last, found_at, reason))
        return gaps


async def process_batch(events: Sequence[Event], consumer: Consumer) -> Report:
    """Account for a batch and for the events that are missing before it. Raises errors that hold
    the partition, RowChanged after ``RACES_MAX`` lost races, Fenced, and StreamRecreated."""
    remembered = consumer.remembered.take(events, consumer.writer)
    if remembered is not None:
        await _check_hub(remembered, consumer)
        batch = _Batch(consumer, events, events[-1].sequence, remembered, from_memory=True)
        return await batch.account()
    newest = max([event.sequence for event in events], default=-1)
    saved = await consumer.store.load(consumer.stream)
    await _check_hub(saved, consumer)
    saved = await _begun(saved, events, consumer)
    return await _Batch(consumer, events, newest, saved).account()


async def _check_hub(saved: StoredCheckpoint, consumer: Consumer) -> None:
    """Check once for each consumer that the checkpoint belongs to the present hub."""
    if consumer.remembered.same_hub:
        return
    if saved.checkpoint is not None:
        hub = await consumer.hub.state(consumer.stream)
        check_made_before(saved.checkpoint, hub.created_at)
    consumer.remembered.same_hub = True


async def begin(events: Sequence[Event], consumer: Consumer) -> None:
    """Write the stream's first checkpoint if it has none. Raises StoreUnavailable and Fenced."""
    remembered = consumer.remembered
    if remembered.begun or not events:
        return
    saved = await consumer.store.load(consumer.stream)
    remembered.saved = await _begun(saved, events, consumer)
    remembered.same_hub = saved.checkpoint is None


async def _begun(
    saved: StoredCheckpoint, events: Sequence[Event], consumer: Consumer
) -> StoredCheckpoint:
    """The given checkpoint, or the stream's first one, which is written."""
    if saved.checkpoint is None and events:
        first = beginning(min(events, key=lambda event: event.sequence))
        writer = consumer.writer
        epoch = writer.commit_epoch(first)
        mine = replace(first, epoch=epoch, owner=writer.owner, txid=consumer.new_txid())
        try:
            saved = await _write(saved, Commit(None, mine), consumer)
        except RowChanged:  # another reader was first
            saved = await consumer.store.load(consumer.stream)
    consumer.remembered.begun = saved.checkpoint is not None
    return saved


async def process_undelivered(consumer: Consumer, events_max: int | None = None) -> Report:
    """Account for up to ``events_max`` events that the hub has but did not deliver, if the stream
    has a checkpoint. It is read before the hub; otherwise it could be ahead."""
    saved = await consumer.store.load(consumer.stream)
    if saved.checkpoint is None:
        return Report()
    hub = await consumer.hub.state(consumer.stream)
    check_same_hub(saved.checkpoint, hub)
    if hub.last_enqueued == saved.checkpoint.sequence:
        return Report(checkpoint=saved.checkpoint)
    # Read again for a newer read_at, which becomes the time of a gap. The first read_at may be
    # earlier than the missing events.
    saved = await consumer.store.load(consumer.stream)
    newest = hub.last_enqueued
    if events_max is not None and saved.checkpoint is not None:
        newest = min(newest, saved.checkpoint.sequence + events_max)
    return await _Batch(consumer, (), newest, saved).account()


@dataclass(slots=True)
class _Batch:
    """The accounting for events, in passes, each from the checkpoint of the previous one. With
    ``from_memory``, ``saved`` is the remembered checkpoint, whose ``read_at`` may be old."""

    consumer: Consumer
    events: Sequence[Event]
    newest: int
    saved: StoredCheckpoint
    from_memory: bool = False
    report: Report = field(default_factory=Report)
    settled: BatchHandling = field(init=False)

    def __post_init__(self) -> None:
        of = self.consumer
        self.settled = BatchHandling(of.handle, of.retry, of.run_tasks, of.evidence)

    async def account(self) -> Report:
        consumer, races = self.consumer, 0
        step = _Pass(tuple(self.events), (), self.newest) if self.from_memory else None
        while step := step or await self._next_pass():
            try:
                await self.settled.handle(step.events, self.saved.read_at)
                consumer.remembered.in_doubt = min(self.settled.doubtful, default=None)
                await self._commit(step)
                races = 0
            except RowChanged:
                races += 1
                if races == RACES_MAX:
                    raise
                loaded = await consumer.store.load(consumer.stream)
                self.saved = await _begun(loaded, self.events, consumer)
            step, self.from_memory = None, False
        self.report.checkpoint = self.saved.checkpoint
        consumer.remembered.saved = self.saved
        return self.report

    async def _next_pass(self) -> _Pass | None:
        """What to account for next; None if nothing is left. It fills one hole from the hub, which
        bounds the memory however many events the host skipped."""
        checkpoint, newest = self.saved.checkpoint, self.newest
        if checkpoint is None:
            return None
        self.consumer.writer.commit_epoch(checkpoint)
        if newest <= checkpoint.sequence and self.report.checkpoint == checkpoint:
            return None  # this call has accounted for all events
        # new_events() also checks events that were delivered again, so it is called before the next
        # condition.
        fresh = new_events(checkpoint, self.events)
        if newest <= checkpoint.sequence:
            return None
        missing = holes(fresh, Span(checkpoint.sequence + 1, newest))
        if not missing:
            return _Pass(fresh, (), newest)
        hole = missing[0]
        back = await self.consumer.hub.read_back(self.consumer.stream, hole)
        if back.complete_to < hole.first:
            raise AccountingBroken(
                f"reading back from event {hole.first} did not say whether the hub still has it"
            )
        self.report.read_back += len(back.events)
        last = back.complete_to
        if last >= hole.last:
            last = missing[1].first - 1 if len(missing) > 1 else newest
        restored = [event for event in back.events if hole.first <= event.sequence <= hole.last]
        new = new_events(checkpoint, [e for e in (*fresh, *restored) if e.sequence <= last])
        return _Pass(new, holes(new, Span(checkpoint.sequence + 1, last)), last, back.oldest)

    async def _commit(self, step: _Pass) -> None:
        """Commit a pass. If an error holds the partition, first commit what precedes it."""
        commits = self.plan(step)
        if self.from_memory and any(commit.dead_letters for commit in commits):
            await self._read_again()
            commits = self.plan(step)
        try:
            for commit in commits:
                await self.write(commit)
        except Exception as error:
            if not self.is_refusal(error):
                raise
            await self._read_again()
            await _DividedCommit(self, step).write()
        if self.settled.held:
            raise self.settled.held[min(self.settled.held)]

    async def _read_again(self) -> None:
        """Read the checkpoint again for the store's time, for dead letters. Raises RowChanged."""
        reread = await self.consumer.store.load(self.consumer.stream)
        for sequence, outcome in self.settled.outcomes.items():
            if isinstance(outcome, DeadLetter):
                self.settled.outcomes[sequence] = replace(outcome, failed_at=reread.read_at)
        if reread.checkpoint != self.saved.checkpoint:
            raise RowChanged(f"{self.consumer.stream.key}: another reader has committed since")
        self.saved = reread

    def plan(self, step: _Pass) -> tuple[Commit, ...]:
        consumer, saved, outcomes = self.consumer, self.saved, self.settled.outcomes
        events, end = step.events, step.last + 1
        if self.settled.held:
            end = min([e.sequence for e in events if e.sequence not in outcomes], default=end)
            events = tuple([e for e in events if e.sequence < end])
        return plan_commits(
            saved.checkpoint,
            events,
            [outcomes[event.sequence] for event in events],
            step.gaps(end, saved.read_at),
            consumer.writer,
            consumer.new_txid(),
            saved.read_at,
            consumer.store.limits,
        )

    async def write(self, commit: Commit) -> None:
        self.saved = await _write(self.saved, commit, self.consumer)
        self.consumer.leases.committed(commit.effects)
        self.report.add(commit)
        if any(effect.rows for effect in commit.effects):
            self.consumer.remembered.refused = False

    def is_refusal(self, error: Exception) -> bool:
        """Whether the error may be the fault of one effect of the commit."""
        if isinstance(error, IngestionError):
            return isinstance(error, RowRefused)
        return not classify(error).holds_partition


@dataclass(slots=True)
class _DividedCommit:
    """Writes a refused commit in smaller ones. The effect at fault becomes a dead letter, together
    with a later effect. If several are refused, each alone, none is at fault."""

    batch: _Batch
    step: _Pass
    refused: list[int] = field(default_factory=list)
    """The events whose effects were refused alone since one was written."""

    async def write(self) -> None:
        last = self.step.last
        while commits := self._plan(last):
            commit = commits[0]
            try:
                await self.batch.write(commit)
            except Exception as error:
                last = self._smaller(commit, error)
            else:
                written = any(effect.rows for effect in commit.effects)
                self.batch.consumer.remembered.refused = bool(self.refused) and not written
                self.refused.clear()
                last = self.step.last

    def _plan(self, last: int) -> tuple[Commit, ...]:
        checkpoint = self.batch.saved.checkpoint
        first = checkpoint.sequence + 1 if checkpoint else 0
        events = tuple([e for e in self.step.events if first <= e.sequence <= last])
        spans = tuple([s for s in self.step.holes if first <= s.first and s.last <= last])
        return self.batch.plan(_Pass(events, spans, last))

    def _smaller(self, commit: Commit, error: Exception) -> int:
        """The last number to cover after a refusal. Raises the error if no effect is the cause."""
        consumer, settled = self.batch.consumer, self.batch.settled.outcomes
        effects = [each for each in commit.effects if each.rows] or [*commit.effects]
        if not effects or not self.batch.is_refusal(error):
            raise error
        if len(effects) > 1:
            return effects[len(effects) // 2 - 1].sequence
        effect = effects[0]
        outcomes = [settled.get(event.sequence) for event in self.step.events]
        later = [
            each.sequence
            for each in outcomes
            if isinstance(each, Effect)
            and each.sequence > effect.sequence
            and bool(each.rows) == bool(effect.rows)
        ]
        self.refused.append(effect.sequence)
        others = len(self.refused) > 1 or consumer.remembered.refused
        if len(self.refused) == REFUSED_MAX or (others and not later):
            log.error(
                "[effects_refused] %s: the effects of events %s were refused, each alone, so no "
                "single event is at fault. Check the tables that write_in_transaction writes: %s",
                consumer.stream.key,
                ", ".join(map(str, self.refused)),
                error,
            )
            raise error
        event = next(e for e in self.step.events if e.sequence == effect.sequence)
        text = f"the effect was refused: {type(error).__name__}: {error}"
        settled[effect.sequence] = dead_letter(
            event, FailureKind.POISON, text, self.batch.saved.read_at
        )
        return later[0] if later else self.step.last


async def _write(saved: StoredCheckpoint, commit: Commit, consumer: Consumer) -> StoredCheckpoint:
    """Write a commit. After a lost reply or a refusal, the stored ``txid`` shows whether it was
    written. If the checkpoint is unchanged, only one of all attempts is accepted."""
    for _ in range(LOST_REPLIES_MAX):
        try:
            return await consumer.store.commit(consumer.stream, saved, commit)
        except (StoreUnavailable, RowChanged):
            saved = await consumer.store.load(consumer.stream)
        if saved.checkpoint is not None and saved.checkpoint.txid == commit.checkpoint.txid:
            return saved
        if saved.checkpoint != commit.previous:
            check_epoch(saved.checkpoint, commit.checkpoint.epoch)
            raise RowChanged(f"{consumer.stream.key}: another reader has committed since")
    raise StoreUnavailable(
        f"{consumer.stream.key}: {LOST_REPLIES_MAX} replies of the store were lost in a row"
    )
