"""What the processes of a soak do with events: each leaves a trace of itself in the store."""

from __future__ import annotations

import json

from shared.ingestion.events.ports import Handler
from shared.ingestion.model import Effect, Event, OutboxMessage, Stream, message_id

POISON = b"poison "
SENT_EVERY = 20
"""One in so many events leads to a message too."""


def handler_of(of: Stream) -> Handler:
    async def handle(event: Event) -> Effect:
        if event.body.startswith(POISON):
            raise ValueError("poison")
        messages: tuple[OutboxMessage, ...] = ()
        if event.sequence % SENT_EVERY == 0:
            identity = message_id(of, event.sequence)
            messages = (OutboxMessage(identity, json.dumps({"id": identity})),)
        return Effect(event.sequence, event.body.decode(), messages)

    return handle
