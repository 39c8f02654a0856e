"""The handler of metrics: what an event brings becomes messages for the queue ``metrics``."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from shared.ingestion.decoding.decoding import BYTES_MAX, decode, takes_long
from shared.ingestion.decoding.readings import Interests, to_effect
from shared.ingestion.model import Effect, Event, Stream

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MetricHandler:
    """Handles the events of one stream. Raises BadEvent.

    What is wrong with records beside good ones is told, and kept in the event's effect.
    """

    stream: Stream
    interests: Interests
    bytes_max: int = BYTES_MAX
    """Of a body once it is unpacked."""

    async def __call__(self, event: Event) -> Effect:
        if takes_long(event.body):
            await asyncio.sleep(0)  # a batch of large events must not stop everything else
        decoded = decode(event.body, self.interests, self.bytes_max)
        if decoded.rejected:
            where = f"{self.stream.hub}/{self.stream.partition_id} {event.sequence}"
            told = f"{decoded.rejected_count} rejected: {decoded.told}"
            log.warning("[records_rejected] %s: %s", where, told[:1000])
        return to_effect(self.stream, event.sequence, decoded)
