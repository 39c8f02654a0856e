"""The event handler of the soak test. It stores the body of each event as the effect."""

from __future__ import annotations

import json

from shared.ingestion.errors import BadEvent
from shared.ingestion.model import Effect, Event, OutboxMessage, Stream, message_id
from shared.ingestion.ports import Handler

POISON = b"poison "
SENT_EVERY = 20
"""One event in this many also leads to a message."""


def handler_of(of: Stream) -> Handler:
    async def handle(event: Event) -> Effect:
        if event.body.startswith(POISON):
            raise BadEvent("poison")
        messages: tuple[OutboxMessage, ...] = ()
        if event.sequence % SENT_EVERY == 0:
            identity = message_id(of, event.sequence)
            messages = (OutboxMessage(identity, json.dumps({"id": identity})),)
        return Effect(event.sequence, event.body.decode(), messages)

    return handle
