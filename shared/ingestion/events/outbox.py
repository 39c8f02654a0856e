"""Send what commits left to be sent. At least once, under ids that the receiver knows again.

Whoever commits messages is the one to send them, for ``LEASE`` from the commit on; what it has not
sent by then, another may take over for as long, by compare-and-swap. So nobody sends what another
is sending, and what a dead process left behind is sent all the same. Times are the store's.

Messages leave in the order of their events: those behind a message that another is to send wait.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from shared.ingestion.errors import CommitRefused
from shared.ingestion.events.ports import OutboxSender, OutboxStore, StoredMessage
from shared.ingestion.model import Effect, Stream

log = logging.getLogger(__name__)

LEASE = timedelta(seconds=60)
LIMIT = 100
"""Messages that are read and sent in one go; sending them takes less than half of the lease."""


@dataclass(slots=True)
class OutboxLeases:
    """The messages of a stream that this process is the one to send."""

    mine: dict[int, int] = field(default_factory=dict)
    """By the number of their event: how often they were taken over, the last time by me."""
    lease: timedelta = LEASE
    sending: bool = False
    again: bool = False
    """Somebody came to send while another part of this process was at it."""

    def committed(self, effects: Iterable[Effect]) -> None:
        self.mine.update([(each.sequence, 0) for each in effects if each.messages])

    def held(self, stored: StoredMessage) -> bool:
        return self.mine.get(stored.sequence) == stored.taken

    def ready(self, stored: Sequence[StoredMessage]) -> list[StoredMessage]:
        """The first of them, up to one that another is still to send."""
        for place, each in enumerate(stored):
            if not self.held(each) and self._is_leased(each):
                return list(stored[:place])
        return list(stored)

    def _is_leased(self, stored: StoredMessage) -> bool:
        """A row from further ahead than a lease lasts was written before the store's clock was set
        back: nobody has to wait for that clock."""
        return -self.lease < stored.waited < self.lease

    def to_take(self, ready: Iterable[StoredMessage]) -> list[StoredMessage]:
        """Those of others, and mine whose lease ends too soon to begin sending them."""
        return [m for m in ready if not self.held(m) or m.waited >= self.lease / 2]

    def forget(self, known: Iterable[int], left: Iterable[StoredMessage]) -> None:
        """Of the events that were known, keep those that have messages left."""
        waiting = {stored.sequence for stored in left}
        for sequence in known:
            if sequence not in waiting:
                self.mine.pop(sequence, None)


async def drain(
    stream: Stream,
    store: OutboxStore,
    sender: OutboxSender,
    leases: OutboxLeases,
    limit: int = LIMIT,
) -> int:
    """Send all that is mine to send, and all that others left behind; answers how many.

    Raises what the ports do. Where this process is at it already, that goes on for the two.
    """
    if leases.sending:
        leases.again = True
        return 0
    leases.sending, leases.again, sent = True, True, 0
    try:
        while leases.again:
            leases.again = False
            found = await _send_some(stream, store, sender, leases, limit)
            leases.again = leases.again or found == limit
            sent += found
    finally:
        leases.sending = False
    return sent


async def _send_some(
    stream: Stream, store: OutboxStore, sender: OutboxSender, leases: OutboxLeases, limit: int
) -> int:
    known = list(leases.mine)
    stored = await store.outbox(stream, limit)
    ready = leases.ready(stored)
    if not await _taken(stream, store, leases, ready):
        return 0
    if ready:
        await sender.send([each.message for each in ready])
        await store.sent(stream, ready)
    if len(stored) < limit:
        leases.forget(known, stored[len(ready) :])
    return len(ready)


async def _taken(
    stream: Stream, store: OutboxStore, leases: OutboxLeases, ready: Sequence[StoredMessage]
) -> bool:
    """Whether all of them are mine now; False where another was first."""
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
