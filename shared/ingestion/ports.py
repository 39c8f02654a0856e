"""What ingestion needs from the hub, from the queues, and from whatever an open breaker informs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from shared.ingestion.breaker.state import Breaker
from shared.ingestion.model import Effect, Event, HubState, OutboxMessage, Span, Stream
from shared.ingestion.store.events import StoredDeadLetter

Handler = Callable[[Event], Awaitable[Effect]]
"""Returns the effect of an event without carrying it out. Errors that it raises are classified by
``failure_cause``."""


# --- the hub ---


@dataclass(frozen=True, slots=True)
class ReadBack:
    """The events of a span that the hub still has, up to and including the number ``complete_to``.

    If a number up to ``complete_to`` has no event here, its event is gone permanently. A reader may
    stop before the end of a long span, but not before its first number.
    """

    events: tuple[Event, ...]
    complete_to: int
    oldest: int | None = None
    """The number of the oldest event that the hub still had after these were read. Retention has
    removed no event with a higher number. None if it is unknown or the partition is empty."""


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
        """The number of the first event in the hub that was enqueued at that time or later; if
        there is none, the number after the newest. Raises HubUnavailable."""
        ...

    async def check_group(self, consumer_group: str, partition_id: str) -> None:
        """Open a reader in the consumer group and close it, without disturbing other readers.

        Raises NotFound if the group does not exist, and HubUnavailable.
        """
        ...


class PartitionReceiver(Protocol):
    """Delivers a partition's events to one reader, until another reader opens the partition under a
    higher epoch.
    """

    async def receive(
        self,
        partition_id: str,
        after: int | None,
        epoch: int,
        deliver: Callable[[Sequence[Event]], Awaitable[None]],
    ) -> None:
        """Deliver the events after ``after`` (None: all events), batch by batch, each after the
        previous one is processed. While no event arrives, an empty batch is delivered every few
        seconds.

        Never returns. Raises HubUnavailable, also if another reader took the partition over;
        HubSilent if neither a batch nor an error arrives; and whatever ``deliver`` raises.
        """
        ...


# --- the queues ---


class OutboxSender(Protocol):
    """Sends outgoing messages to their destination."""

    async def send(self, messages: Sequence[OutboxMessage]) -> None:
        """Send all messages.

        Raises SentInPart with those that were sent. With any other error, each of them may have
        been sent; receivers recognize repetitions by their ids.
        """
        ...


class DeadLetterSender(Protocol):
    """Sends dead letters to a queue for operators or another app."""

    async def send(self, letters: Sequence[StoredDeadLetter]) -> Mapping[int, str]:
        """Send all dead letters, each under an id of its own. Returns the places of those that
        the queue refuses, with the reasons. Raises SendingFailed, after which any of the dead
        letters may have been sent. A queue that detects duplicates accepts each dead letter only
        once within its window.
        """
        ...


# --- the breaker ---


class ConsumptionSwitch(Protocol):
    """Starts and stops the delivery of events by the Functions host, in addition to the breaker."""

    async def turn(self, *, on: bool) -> None:
        """Raises DependencyDown if it is unknown whether the change was made."""
        ...


class NoSwitch:
    """Leaves delivery on. The breaker holds the events that are delivered."""

    async def turn(self, *, on: bool) -> None: ...


class Announcer(Protocol):
    """Announces the opening of a breaker."""

    async def announce(self, breaker: Breaker) -> None:
        """Announce the incident, at least once. Receivers recognize a repetition by the incident's
        epoch.

        Raises NotSent.
        """
        ...
