"""Sends the messages that commits left in the outbox, at least once, under ids that receivers
recognize. A message whose outcome is unknown is sent again however long that takes, so a receiver
must recognize an id for longer than the longest outage.

The process that commits messages has a lease on them: for the time ``LEASE`` after the commit, only
this process sends them. Messages that it has not sent by then may be taken over by another process,
which gets a new lease by a conditional write. So no two processes send the same message at the same
time, and the messages of a crashed process are sent, too. All times are those of the store's clock.

Messages would arrive at least once, under the same ids, without leases too. But the tail timer and
the process that commits would then send the same messages at the same time whenever the queue is
slow, which is when twice as many messages do the most harm, and they would mix up their order.

Messages are sent in the order of their events. If sending fails, those that were sent are marked,
and only the others are sent again. A message on which another process has a lease
delays the messages after it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from shared.ingestion.errors import CommitRefused, SentInPart
from shared.ingestion.model import Effect, OutboxMessage, Stream, split
from shared.ingestion.ports import OutboxSender
from shared.ingestion.store.events import EventStore, StoredMessage
from shared.values.leases import is_held
from shared.values.messages import TextsNotSent

log = logging.getLogger(__name__)

LEASE = timedelta(seconds=60)
LIMIT = 100
"""How many messages are read and sent at a time. Sending them takes less than half of the lease."""


@dataclass(frozen=True, slots=True)
class OutboxQueue:
    """An OutboxSender that sends to one queue. ``send_texts`` raises TextsNotSent."""

    send_texts: Callable[[Sequence[str]], Awaitable[None]]

    async def send(self, messages: Sequence[OutboxMessage]) -> None:
        """See OutboxSender. If the body of a message is a JSON array, each element becomes one
        queue message."""
        texts = [(place, text) for place, each in enumerate(messages) for text in split(each.body)]
        try:
            await self.send_texts([text for _, text in texts])
        except TextsNotSent as error:
            unsent = {place for n, (place, _) in enumerate(texts) if n not in error.sent}
            sent = frozenset(range(len(messages))) - unsent
            raise SentInPart(str(error), sent) from error


@dataclass(slots=True)
class OutboxLeases:
    """The messages of a stream on which this process has a lease."""

    mine: dict[int, int] = field(default_factory=dict)
    """By the sequence number of an event: how often its messages were taken over, most recently by
    this process.
    """
    lease: timedelta = LEASE
    elapsed: Callable[[], float] = time.monotonic
    sending: bool = False
    again: bool = False
    """Whether ``send_messages`` was called while another call of it was sending."""

    def committed(self, effects: Iterable[Effect]) -> None:
        self.mine.update([(each.sequence, 0) for each in effects if each.messages])

    def held(self, stored: StoredMessage) -> bool:
        return self.mine.get(stored.sequence) == stored.taken

    def ready(self, stored: Sequence[StoredMessage]) -> list[StoredMessage]:
        """The messages before the first one on which another process has a lease."""
        for place, each in enumerate(stored):
            if not self.held(each) and is_held(self.lease - each.waited, self.lease):
                return list(stored[:place])
        return list(stored)

    def to_take(self, ready: Iterable[StoredMessage]) -> list[StoredMessage]:
        """The messages to take over: those of other processes, and own ones whose lease expires too
        soon to start sending them.
        """
        return [each for each in ready if not self.held(each) or each.waited >= self.lease / 2]

    def late(self, began: float) -> bool:
        """Whether so much time has passed since ``began`` that a lease may expire before all
        messages are sent. A process may stand still, or wait long for a reply of the store.
        """
        return bool(self.lease) and self.elapsed() - began > self.lease.total_seconds() / 6

    def forget(self, sequences: Iterable[int], remaining: Iterable[StoredMessage]) -> None:
        """Drop the given events, except those that still have messages."""
        waiting = {stored.sequence for stored in remaining}
        for sequence in sequences:
            if sequence not in waiting:
                self.mine.pop(sequence, None)


async def send_messages(
    stream: Stream,
    store: EventStore,
    sender: OutboxSender,
    leases: OutboxLeases,
    limit: int = LIMIT,
) -> int:
    """Send the messages on which this process has a lease and those with an expired lease; return
    how many.

    Raises the errors of the store and of the sender. If another call in this process is already
    sending, that call sends these messages, too.
    """
    if leases.sending:
        leases.again = True
        return 0
    leases.sending, leases.again, sent = True, True, 0
    try:
        while leases.again:
            leases.again = False
            sent_now = await _send_some(stream, store, sender, leases, limit)
            leases.again = leases.again or sent_now == limit
            sent += sent_now
    finally:
        leases.sending = False
    return sent


async def _send_some(
    stream: Stream, store: EventStore, sender: OutboxSender, leases: OutboxLeases, limit: int
) -> int:
    began, sequences = leases.elapsed(), list(leases.mine)
    stored = await store.outbox(stream, limit)
    ready = leases.ready(stored)
    if not await _taken(stream, store, leases, ready) or leases.late(began):
        return 0
    if ready:
        try:
            await sender.send([each.message for each in ready])
        except SentInPart as error:
            await store.sent(stream, [ready[place] for place in sorted(error.sent)])
            raise
        await store.sent(stream, ready)
    if len(stored) < limit:
        leases.forget(sequences, stored[len(ready) :])
    return len(ready)


async def _taken(
    stream: Stream, store: EventStore, leases: OutboxLeases, ready: Sequence[StoredMessage]
) -> bool:
    """Whether this process may send all of the messages now; False if another process took one
    first."""
    taking = leases.to_take(ready)
    if not taking:
        return True
    others = [each for each in taking if not leases.held(each)]
    try:
        await store.take(stream, taking)
    except CommitRefused:
        return False
    leases.mine.update([(each.sequence, each.taken + 1) for each in taking])
    if others:
        log.info("[outbox_taken_over] %s: %s message(s) left behind", stream.key, len(others))
    return True
