"""Compares a batch with the checkpoint: which events are new, and which are missing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from shared.ingestion.errors import StreamRecreated
from shared.ingestion.model import Checkpoint, Event, HubState, Span

CLOCKS_DIFFER = timedelta(seconds=10)
"""The largest assumed difference between the clocks of a hub's machines."""


UNDELIVERED_FOR = timedelta(minutes=5)
"""After this time, the first event of a partition should have been delivered."""


def beginning(first: Event) -> Checkpoint:
    """The first checkpoint of a stream: right before the first event that was delivered."""
    return Checkpoint(first.sequence, first.sequence - 1, "", first.enqueued_at)


def follows(checkpoint: Checkpoint, events: Sequence[Event]) -> bool:
    """Whether the events are exactly the next ones, in order and without a gap."""
    first = checkpoint.sequence + 1
    return [event.sequence for event in events] == list(range(first, first + len(events)))


def new_events(checkpoint: Checkpoint, events: Sequence[Event]) -> tuple[Event, ...]:
    """The events above the checkpoint, in order, each once. Raises StreamRecreated if an event
    whose number is accounted for is newer than the checkpoint."""
    by_sequence: dict[int, Event] = {}
    for event in events:
        if event.sequence > checkpoint.sequence:
            by_sequence.setdefault(event.sequence, event)
        elif event.enqueued_at > checkpoint.enqueued_at:
            raise StreamRecreated(
                f"event {event.sequence} was enqueued at {event.enqueued_at:%FT%TZ}, later than "
                f"the checkpoint at event {checkpoint.sequence} ({checkpoint.enqueued_at:%FT%TZ}), "
                "but its number is lower"
            )
    return tuple(by_sequence[sequence] for sequence in sorted(by_sequence))


def holes(events: Sequence[Event], within: Span) -> tuple[Span, ...]:
    """The spans of numbers within ``within`` that no event has. The events must be in order."""
    found, expected = list[Span](), within.first
    for event in events:
        if event.sequence > expected:
            found.append(Span(expected, event.sequence - 1))
        expected = event.sequence + 1
    if expected <= within.last:
        found.append(Span(expected, within.last))
    return tuple(found)


def check_made_before(checkpoint: Checkpoint, created_at: datetime) -> None:
    """Raise StreamRecreated if the hub was created after the checkpoint's event was enqueued. This
    works until the checkpoint has moved to an event of the new hub."""
    if created_at > checkpoint.enqueued_at + CLOCKS_DIFFER:
        raise StreamRecreated(
            f"the hub was created at {created_at:%FT%TZ}, but the checkpoint is at event "
            f"{checkpoint.sequence}, which was enqueued earlier, at {checkpoint.enqueued_at:%FT%TZ}"
        )


def check_same_hub(checkpoint: Checkpoint, hub: HubState) -> None:
    """Raise StreamRecreated if the hub ends before the checkpoint or is newer than it."""
    if hub.last_enqueued < checkpoint.sequence:
        raise StreamRecreated(
            f"the hub's last event is {hub.last_enqueued}, but the checkpoint is at event "
            f"{checkpoint.sequence}"
        )
    check_made_before(checkpoint, hub.created_at)


def problem(checkpoint: Checkpoint | None, hub: HubState, now: datetime) -> str:
    """Why a partition cannot be processed until an operator acts; empty if nothing is wrong."""
    if checkpoint is None:
        newest_at = hub.newest_at
        if newest_at is None or now - newest_at < UNDELIVERED_FOR:
            return ""
        return (
            f"the hub has events up to number {hub.last_enqueued}, the newest from "
            f"{newest_at:%FT%TZ}, but none was delivered and there is no checkpoint: nothing reads "
            "the partition, or its state was lost"
        )
    try:
        check_same_hub(checkpoint, hub)
    except StreamRecreated as error:
        return f"the hub was deleted and created again: {error}"
    return ""
