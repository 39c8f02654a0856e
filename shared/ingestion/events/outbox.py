"""Sends the messages that commits left in the outbox, at least once, in the order of their events,
under ids that receivers must recognize for longer than the longest outage. The process that commits
messages has a lease on them for the time ``LEASE``; then another process may take them over by a
conditional write. All times are those of the store's clock."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from shared.ingestion.errors import RowChanged, SentInPart
from shared.ingestion.model import Effect, OutboxMessage, StoredMessage, Stream, split
from shared.ingestion.ports import SendMessages
from shared.ingestion.store.events import EventStore
from shared.values.leases import is_held
from shared.values.messages import TextsNotSent

log = logging.getLogger(__name__)

LEASE = timedelta(seconds=60)
LIMIT = 100
"""How many messages are sent at a time, in less than half of the lease."""


async def send_to_queue(
    send_texts: Callable[[Sequence[str]], Awaitable[None]], messages: Sequence[OutboxMessage]
) -> None:
    """See SendMessages. ``send_texts`` sends to one queue, and raises TextsNotSent."""
    texts = [(place, text) for place, each in enumerate(messages) for text in split(each.body)]
    try:
        await send_texts([text for _, text in texts])
    except TextsNotSent as error:
        unsent = {place for n, (place, _) in enumerate(texts) if n not in error.sent}
        sent = frozenset(range(len(messages))) - unsent
        raise SentInPart(str(error), sent) from error


@dataclass(slots=True)
class OutboxLeases:
    """The messages of a stream on which this process has a lease."""

    mine: dict[int, int] = field(default_factory=dict)
    """How often the messages of an event were taken over, most recently by this process."""
    lease: timedelta = LEASE
    elapsed: Callable[[], float] = time.monotonic
    sending: bool = False
    again: bool = False

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
        """The messages of other processes, and own ones whose lease expires too soon."""
        return [each for each in ready if not self.held(each) or each.waited >= self.lease / 2]

    def late(self, began: float) -> bool:
        """Whether a lease may expire before all is sent: the process stood still for long."""
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
    send: SendMessages,
    leases: OutboxLeases,
    limit: int = LIMIT,
) -> int:
    """Send the messages under a lease of this process or an expired one; return how many. Raises
    the errors of the store and of the sender. A call that is already sending sends these, too."""
    if leases.sending:
        leases.again = True
        return 0
    leases.sending, leases.again, sent = True, True, 0
    try:
        while leases.again:
            leases.again = False
            sent_now = await _send_some(stream, store, send, leases, limit)
            leases.again = leases.again or sent_now == limit
            sent += sent_now
    finally:
        leases.sending = False
    return sent


async def _send_some(
    stream: Stream, store: EventStore, send: SendMessages, leases: OutboxLeases, limit: int
) -> int:
    began, sequences = leases.elapsed(), list(leases.mine)
    stored = await store.outbox(stream, limit)
    ready = leases.ready(stored)
    if not await _taken(stream, store, leases, ready) or leases.late(began):
        return 0
    if ready:
        try:
            await send([each.message for each in ready])
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
    """Whether this process may send all now; False if another took one first."""
    taking = leases.to_take(ready)
    if not taking:
        return True
    others = [each for each in taking if not leases.held(each)]
    try:
        await store.take(stream, taking)
    except RowChanged:
        return False
    leases.mine.update([(each.sequence, each.taken + 1) for each in taking])
    if others:
        log.info("[outbox_taken_over] %s: %s message(s) left behind", stream.key, len(others))
    return True
