"""Reads a range of a partition again, with a separate checkpoint. A replay is a separate stream,
whose consumer group is named after it. An interrupted replay continues where it stopped. It
accounts for each sequence number, and does not change the stream that it reads again. Without
``send`` the events are handled and their effects are stored, but no message is sent; this shows
what the handler does with the events. With ``send`` the messages are sent under the same ids as the
first time, so a receiver that detects duplicates takes only the messages that it missed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from shared.ingestion.errors import NotFound
from shared.ingestion.events import outbox
from shared.ingestion.events.process_batch import Consumer, Report, process_batch
from shared.ingestion.model import REPLAY_SEPARATOR, Checkpoint, Effect, Event, Gap, Span, Stream
from shared.ingestion.ports import Handler, HubReader, OutboxSender

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,49}")
READ_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class ReplayRange:
    """The events to replay. The range begins at a sequence number, or at the first event at or
    after a time. It ends at ``last``, or at the event that is the newest when the replay starts.
    """

    first: int | None = None
    since: datetime | None = None
    last: int | None = None


@dataclass(slots=True)
class ReplayProgress:
    """What the replay has done so far. ``first`` is the sequence number at which it began; None if
    it has not begun.
    """

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


def replay_name(name: str) -> str:
    """The name of a replay. Raises ValueError if it is invalid."""
    if not NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a valid name of a replay: use 1 to 50 letters, digits and hyphens, "
            "and begin with a letter or digit"
        )
    return name


def replay_stream(stream: Stream, name: str) -> Stream:
    """The stream under which a replay of that name keeps its checkpoint. Raises ValueError for an
    invalid name."""
    name = replay_name(name)
    return replace(stream, consumer_group=f"{stream.consumer_group}{REPLAY_SEPARATOR}{name}")


async def replay(
    consumer: Consumer,
    range_: ReplayRange,
    sender: OutboxSender | None,
    on_progress: Callable[[ReplayProgress], None] = lambda _so_far: None,
) -> ReplayProgress:
    """Give each event of the range an outcome in the consumer's stream, which must be the replay's
    own stream.

    A replay that has begun continues after its checkpoint. Without a sender, the handler should be
    wrapped by ``without_messages``; otherwise its messages stay in the outbox. ``on_progress`` is
    called after each step. Raises NotFound if the hub has no event of the range any more, and the
    errors that ``process_batch`` raises.
    """
    saved = await consumer.store.load(consumer.stream)
    newest = (await consumer.hub.state(consumer.stream)).last_enqueued
    last = newest if range_.last is None else min(newest, range_.last)
    so_far = ReplayProgress(consumer.stream, last)
    so_far.add(Report(checkpoint=saved.checkpoint))
    position = await _start(consumer.hub, consumer.stream, saved.checkpoint, range_)
    while position <= last:
        span = Span(position, min(position + READ_AT_ONCE - 1, last))
        back = await consumer.hub.read_back(consumer.stream, span)
        if back.events:
            so_far.add(await process_batch(back.events, consumer))
            on_progress(so_far)
        position = back.complete_to + 1
        await _send(consumer, sender)
    await _send(consumer, sender)
    if so_far.checkpoint is None:
        raise NotFound(
            f"the hub has no event from {range_.since or range_.first} on"
            if last < 0
            else f"the hub has no event from {range_.since or range_.first} to {last} any more"
        )
    return so_far


async def _send(consumer: Consumer, sender: OutboxSender | None) -> None:
    """Send the messages of the replay. No other process sends them, so those of an interrupted
    attempt are sent at once."""
    if sender is not None:
        consumer.leases.lease = timedelta(0)
        await outbox.send_messages(consumer.stream, consumer.store, sender, consumer.leases)


async def _start(
    hub: HubReader, stream: Stream, begun: Checkpoint | None, range_: ReplayRange
) -> int:
    if begun is not None:
        return begun.sequence + 1
    if range_.since is not None:
        return await hub.sequence_at(stream, range_.since)
    return range_.first or 0


def without_messages(handle: Handler) -> Handler:
    """The same handler, but with the messages removed from its effects."""

    async def handled(event: Event) -> Effect:
        return replace(await handle(event), messages=())

    return handled
