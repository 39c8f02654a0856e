"""The handler of metrics: what an event brings becomes messages for the queue ``metrics``."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from shared.ingestion.decoding import decode
from shared.ingestion.model import Effect, Event, Stream
from shared.ingestion.readings import Interests, to_effect

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MetricHandler:
    """Handles the events of one stream. Raises BadEvent.

    What is wrong with records beside good ones is told, and kept in the event's effect.
    """

    stream: Stream
    interests: Interests

    async def __call__(self, event: Event) -> Effect:
        decoded = decode(event.body, self.interests)
        if decoded.rejected:
            where = f"{self.stream.hub}/{self.stream.partition_id} {event.sequence}"
            log.warning("[records_rejected] %s: %s", where, "; ".join(decoded.rejected)[:1000])
        return to_effect(self.stream, event.sequence, decoded)
