"""The app's own handler: it turns the metrics in events into messages for the autoscaler."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from shared.ingestion.decoding.decode import BYTES_MAX, decode, is_large
from shared.ingestion.decoding.readings import MetricSubscriptions, to_effect
from shared.ingestion.model import Effect, Event, Stream

log = logging.getLogger(__name__)

TOLD_MAX = 100
ADVICE = "Such events are only counted. Send metrics to a hub of their own"


@dataclass(frozen=True, slots=True)
class MetricHandler:
    """Handles the events of one stream. Raises BadEvent. Rejected records are logged and listed in
    the effect; what is not read at all is logged once for each reason."""

    stream: Stream
    subscriptions: MetricSubscriptions
    bytes_max: int = BYTES_MAX
    told: set[str] = field(default_factory=set)

    async def __call__(self, event: Event) -> Effect:
        if is_large(event.body):
            await asyncio.sleep(0)  # let other tasks run between large events
        decoded = decode(event.body, self.subscriptions, self.bytes_max)
        where = f"{self.stream.hub}/{self.stream.partition_id} {event.sequence}"
        for note in decoded.notes:
            self._tell(f"[records_unused] {where}", note)
        if decoded.set_aside and not decoded.notes:
            self._tell(f"[set_aside] {where}", f"{decoded.set_aside}, not a metric. {ADVICE}")
        if decoded.rejected:
            summary = f"{decoded.rejected_count} rejected: {decoded.summary}"
            log.warning("[records_rejected] %s: %s", where, summary[:1000])
        return to_effect(self.stream, event.sequence, decoded)

    def _tell(self, where: str, what: str) -> None:
        if what not in self.told and len(self.told) < TOLD_MAX:
            self.told.add(what)
            log.warning("%s: %s", where, what)
