"""The handler of metrics: what an event brings becomes messages for the queue ``metrics``."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.ingestion.decoding import decode
from shared.ingestion.model import Effect, Event, Stream
from shared.ingestion.readings import Interests, to_effect


@dataclass(slots=True)
class MetricHandler:
    """Handles the events of one stream. Raises BadEvent; counts what it saw, for the log."""

    stream: Stream
    interests: Interests
    readings: int = 0
    ignored: int = 0
    """Records and values that nobody asked for."""
    rejected: list[str] = field(default_factory=list)
    """What was wrong with records beside good ones; it is kept in the event's effect too."""

    async def __call__(self, event: Event) -> Effect:
        decoded = decode(event.body, self.interests)
        self.readings += len(decoded.readings)
        self.ignored += decoded.ignored
        self.rejected += [f"event {event.sequence}: {said}" for said in decoded.rejected]
        return to_effect(self.stream, event.sequence, decoded)
