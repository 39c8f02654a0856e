"""Read a stretch of a partition again, with a checkpoint and an account of its own.

A replay is a stream like any other, whose consumer group is called after it: it goes on where it
stopped, accounts for every number, and touches nothing of the stream that it reads again. Without
``send`` its events are handled and their effects kept, but no message leaves: to see what the
handler makes of them. With it messages leave under the ids that they had the first time, so that
a receiver that remembers ids takes what it missed and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from shared.ingestion.errors import NotFound
from shared.ingestion.events import outbox
from shared.ingestion.events.ports import Handler, HubReader, OutboxSender
from shared.ingestion.events.process_batch import Consumer, Report, run
from shared.ingestion.events.survey import Span
from shared.ingestion.model import Checkpoint, Effect, Event, Gap, Stream

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,49}")
SEPARATOR = "~"
"""Between the consumer group and the replay's name; no consumer group has it in its name."""
READ_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Stretch:
    """Which events: from a number, or from the first at or after a time; to the newest that there
    is when the replay starts, or to ``last``."""

    first: int | None = None
    since: datetime | None = None
    last: int | None = None


@dataclass(slots=True)
class Replayed:
    """What came of it so far. ``first`` is where the replay began, once it has."""

    stream: Stream
    last: int
    first: int | None = None
    effects: int = 0
    dead_letters: int = 0
    gaps: tuple[Gap, ...] = ()
    checkpoint: Checkpoint | None = None

    def add(self, report: Report) -> None:
        self.effects += report.effects
        self.dead_letters += report.dead_letters
        self.gaps += tuple(report.gaps)
        self.checkpoint = report.checkpoint or self.checkpoint
        self.first = self.checkpoint.start if self.checkpoint else None


def side_stream(stream: Stream, name: str) -> Stream:
    """Where a replay of that name keeps its account. Raises ValueError for what is no name."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r}: a name of 1 to 50 letters, digits and hyphens is needed")
    return replace(stream, consumer_group=f"{stream.consumer_group}{SEPARATOR}{name}")


async def replay(
    consumer: Consumer,
    stretch: Stretch,
    sender: OutboxSender | None,
    on_progress: Callable[[Replayed], None] = lambda _so_far: None,
) -> Replayed:
    """Account for the stretch in the consumer's stream, which is the side stream.

    A replay that has begun goes on after its checkpoint. Without a sender the handler had better
    be ``silent``, or its messages wait in the outbox. ``on_progress`` hears of each step.
    Raises NotFound where no event of the stretch is still there, and what ``run`` does.
    """
    saved = await consumer.store.load(consumer.stream)
    newest = (await consumer.hub.state(consumer.stream)).last_enqueued
    last = newest if stretch.last is None else min(newest, stretch.last)
    so_far = Replayed(consumer.stream, last)
    so_far.add(Report(checkpoint=saved.checkpoint))
    position = await _start(consumer.hub, consumer.stream, saved.checkpoint, stretch)
    while position <= last:
        span = Span(position, min(position + READ_AT_ONCE - 1, last))
        back = await consumer.hub.read_back(consumer.stream, span)
        if back.events:
            so_far.add(await run(back.events, consumer))
            on_progress(so_far)
        position = back.complete_to + 1
        await _send(consumer, sender)
    await _send(consumer, sender)
    if so_far.checkpoint is None:
        raise NotFound(f"no event is left from {stretch.since or stretch.first} to {last}")
    return so_far


async def _send(consumer: Consumer, sender: OutboxSender | None) -> None:
    """Nobody else sends for a side stream: what an attempt that was broken off left is sent now."""
    if sender is not None:
        consumer.leases.lease = timedelta(0)
        await outbox.drain(consumer.stream, consumer.store, sender, consumer.leases)


async def _start(hub: HubReader, stream: Stream, begun: Checkpoint | None, stretch: Stretch) -> int:
    if begun is not None:
        return begun.sequence + 1
    if stretch.since is not None:
        return await hub.sequence_at(stream, stretch.since)
    return stretch.first or 0


def silent(handle: Handler) -> Handler:
    """The same handler, but what it leads to has no messages."""

    async def handled(event: Event) -> Effect:
        return replace(await handle(event), messages=())

    return handled
