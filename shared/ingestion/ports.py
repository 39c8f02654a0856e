"""What ingestion needs from the hub, from the queues, and from whatever an open breaker informs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from shared.ingestion.breaker.state import Breaker
from shared.ingestion.model import Effect, Event, HubState, OutboxMessage, Span, Stream

Handler = Callable[[Event], Awaitable[Effect]]
"""Returns an event's effect without carrying it out. ``failure_cause`` classifies errors."""


# --- the hub ---


@dataclass(frozen=True, slots=True)
class ReadBack:
    """The events of a span that the hub still has, up to the number ``complete_to``: a number up to
    there without an event is gone. A reader may stop early, but not before the first number."""

    events: tuple[Event, ...]
    complete_to: int
    oldest: int | None = None
    """The oldest event's number after the read; None if unknown or if there is none."""


class HubPartitions(Protocol):
    """The partitions that a hub has at present."""

    async def partition_ids(self) -> tuple[str, ...]:
        """Raises HubUnavailable."""
        ...


class HubReader(HubPartitions, Protocol):
    """Reads events directly from the hub, independently of their delivery."""

    async def read_back(self, stream: Stream, span: Span) -> ReadBack:
        """Raises HubUnavailable if it is unknown which events the hub has."""
        ...

    async def state(self, stream: Stream) -> HubState:
        """The current state of the hub and the partition. Raises HubUnavailable."""
        ...

    async def sequence_at(self, stream: Stream, time: datetime) -> int:
        """The number of the first event from that time on, or the next. Raises HubUnavailable."""
        ...

    async def check_group(self, consumer_group: str, partition_id: str) -> None:
        """Open a reader and close it. Raises HubUnavailable, NotFound for the group."""
        ...


class PartitionReceiver(Protocol):
    """Delivers a partition's events to one reader, until another opens it under a higher epoch."""

    async def receive(
        self,
        partition_id: str,
        after: int | None,
        epoch: int,
        deliver: Callable[[Sequence[Event]], Awaitable[None]],
    ) -> None:
        """Deliver the events after ``after`` (None: all), and now and then an empty batch. Never
        returns. Raises HubUnavailable, HubSilent, and whatever ``deliver`` raises."""
        ...


# --- the queues ---


SendMessages = Callable[[Sequence[OutboxMessage]], Awaitable[None]]
"""Sends all messages. Raises SentInPart with those that were sent. After any other error each may
have been sent; receivers recognize repetitions by their ids."""


# --- the breaker ---


Announce = Callable[[Breaker], Awaitable[None]]
"""Announces the opening of a breaker at least once; its epoch tells repetitions. Raises NotSent."""
