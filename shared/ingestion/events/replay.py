"""Reads a range of a partition again, as a stream of its own, named after the replay. An
interrupted replay continues. Without a sender no message is sent; with one, each has its first id.
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
from shared.ingestion.ports import Handler, HubReader, SendMessages

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,49}")
READ_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class ReplayRange:
    """The events to replay: from a number or a time to ``last``, or to the newest at the start."""

    first: int | None = None
    since: datetime | None = None
    last: int | None = None


@dataclass(slots=True)
class ReplayProgress:
    """What the replay has done so far. ``first`` is the number at which it began."""

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
    if not NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a valid name of a replay: use 1 to 50 letters, digits and hyphens, "
            "and begin with a letter or digit"
        )
    return name


def replay_stream(stream: Stream, name: str) -> Stream:
    """The stream of a replay of that name. Raises ValueError for an invalid name."""
    name = replay_name(name)
    return replace(stream, consumer_group=f"{stream.consumer_group}{REPLAY_SEPARATOR}{name}")


async def replay(
    consumer: Consumer,
    range_: ReplayRange,
    send: SendMessages | None,
    on_progress: Callable[[ReplayProgress], None] = lambda _so_far: None,
) -> ReplayProgress:
    """Give each event of the range an outcome in the replay's stream. Without ``send``, wrap the
    handler by ``without_messages``. Raises NotFound, and the errors of ``process_batch``."""
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
        await _send(consumer, send)
    await _send(consumer, send)
    if so_far.checkpoint is None:
        raise NotFound(
            f"the hub has no event from {range_.since or range_.first} on"
            if last < 0
            else f"the hub has no event from {range_.since or range_.first} to {last} any more"
        )
    return so_far


async def _send(consumer: Consumer, send: SendMessages | None) -> None:
    if send is not None:
        consumer.leases.lease = timedelta(0)
        await outbox.send_messages(consumer.stream, consumer.store, send, consumer.leases)


async def _start(
    hub: HubReader, stream: Stream, begun: Checkpoint | None, range_: ReplayRange
) -> int:
    if begun is not None:
        return begun.sequence + 1
    if range_.since is not None:
        return await hub.sequence_at(stream, range_.since)
    return range_.first or 0


def without_messages(handle: Handler) -> Handler:

    async def handled(event: Event) -> Effect:
        return replace(await handle(event), messages=())

    return handled
