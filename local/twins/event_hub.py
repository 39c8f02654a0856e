"""An event hub in memory, for unit tests and simulation. It keeps the contract of the real adapter,
without I/O.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime

from shared.ingestion.errors import NotFound
from shared.ingestion.model import LONG_AGO, Event, HubState, Span, Stream
from shared.ingestion.ports import ReadBack


class MemoryHubReader:
    """A hub whose partitions are lists of events. Reads back at most ``read_max`` at a time."""

    def __init__(self, read_max: int = 100, ids: tuple[str, ...] = ("0",)) -> None:
        self.ids = ids
        self.groups = {"$Default"}
        self.events: dict[Stream, list[Event]] = defaultdict(list)
        self.created_at = LONG_AGO
        self._last: dict[Stream, int] = {}
        self._read_max = read_max

    def add(self, stream: Stream, *events: Event) -> None:
        self.events[stream].extend(events)
        self._last[stream] = events[-1].sequence

    def forget(self, stream: Stream, before: int) -> None:
        """Drop the events before a sequence number, as retention does."""
        self.events[stream] = [e for e in self.events[stream] if e.sequence >= before]

    def recreate(self, stream: Stream, now: datetime) -> None:
        """Delete the hub and create it again under the same name."""
        self.events[stream], self._last[stream], self.created_at = [], -1, now

    async def partition_ids(self) -> tuple[str, ...]:
        return self.ids

    async def check_group(self, consumer_group: str, partition_id: str) -> None:  # noqa: ARG002
        if consumer_group not in self.groups:
            raise NotFound(f"consumer group {consumer_group} does not exist")

    async def state(self, stream: Stream) -> HubState:
        newest_at = self.events[stream][-1].enqueued_at if self.events[stream] else None
        return HubState(self.created_at, self._last.get(stream, -1), newest_at)

    async def sequence_at(self, stream: Stream, time: datetime) -> int:
        later = [e.sequence for e in self.events[stream] if e.enqueued_at >= time]
        return min(later, default=self._last.get(stream, -1) + 1)

    async def read_back(self, stream: Stream, span: Span) -> ReadBack:
        oldest = min([e.sequence for e in self.events[stream]], default=None)
        within = [e for e in self.events[stream] if span.first <= e.sequence <= span.last]
        if not within:
            return ReadBack((), span.last, oldest)
        read = tuple(within[: self._read_max])
        done = len(read) == len(within)
        return ReadBack(read, span.last if done else read[-1].sequence, oldest)
