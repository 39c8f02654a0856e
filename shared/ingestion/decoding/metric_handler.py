"""The app's own handler: it turns the metrics in events into messages for the autoscaler."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from shared.ingestion.decoding.decode import BYTES_MAX, decode, is_large
from shared.ingestion.decoding.readings import MetricSubscriptions, to_effect
from shared.ingestion.model import Effect, Event, Stream

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MetricHandler:
    """Handles the events of one stream. Raises BadEvent.

    If only some records of an event are rejected, they are logged and listed in the event's effect.
    """

    stream: Stream
    subscriptions: MetricSubscriptions
    bytes_max: int = BYTES_MAX
    """The largest uncompressed body."""

    async def __call__(self, event: Event) -> Effect:
        if is_large(event.body):
            await asyncio.sleep(0)  # let other tasks run between large events
        decoded = decode(event.body, self.subscriptions, self.bytes_max)
        if decoded.rejected:
            where = f"{self.stream.hub}/{self.stream.partition_id} {event.sequence}"
            summary = f"{decoded.rejected_count} rejected: {decoded.summary}"
            log.warning("[records_rejected] %s: %s", where, summary[:1000])
        return to_effect(self.stream, event.sequence, decoded)
