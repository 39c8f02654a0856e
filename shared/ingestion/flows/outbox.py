"""Send what commits left to be sent. At least once, under ids that the receiver knows again."""

from __future__ import annotations

from shared.ingestion.model import Stream
from shared.ingestion.ports import IngestionStore, MessageSender


async def drain(
    stream: Stream, store: IngestionStore, sender: MessageSender, limit: int = 100
) -> int:
    """Send up to so many messages and forget them; answers how many. Raises what the ports do."""
    messages = await store.outbox(stream, limit)
    if not messages:
        return 0
    await sender.send([stored.message for stored in messages])
    await store.sent(stream, messages)
    return len(messages)
