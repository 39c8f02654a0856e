"""Which events of a batch are new, and which are missing before and between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from shared.ingestion.errors import StreamRecreated
from shared.ingestion.model import Checkpoint, Event, HubState

CLOCKS_DIFFER = timedelta(seconds=10)
"""Between the machines of a hub, at most: one stamps its making, others its events."""


@dataclass(frozen=True, slots=True)
class Span:
    """Sequence numbers from ``first`` to ``last``, both included."""

    first: int
    last: int

    @property
    def count(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Survey:
    """A batch against the checkpoint: what is new, in order, and what is missing before it."""

    fresh: tuple[Event, ...]
    missing: tuple[Span, ...]
    replayed: int
    """Events that were accounted for before, or that came twice."""


def beginning(first: Event) -> Checkpoint:
    """The first checkpoint of a stream: right before the first event that came."""
    return Checkpoint(first.sequence, first.sequence - 1, "", first.enqueued_at)


def follows(checkpoint: Checkpoint, events: Sequence[Event]) -> bool:
    """Whether the events are the very next ones, in order, with none left out: mostly they are."""
    first = checkpoint.sequence + 1
    return [event.sequence for event in events] == list(range(first, first + len(events)))


def survey(checkpoint: Checkpoint, events: Sequence[Event]) -> Survey:
    """Sort the events against the checkpoint, whatever their order and however often they came.

    Raises StreamRecreated where an event has an old number and a new time: a replay cannot have.
    """
    if follows(checkpoint, events):
        return Survey(tuple(events), (), 0)
    by_sequence: dict[int, Event] = {}
    count = 0
    for event in events:
        count += 1
        if event.sequence > checkpoint.sequence:
            by_sequence.setdefault(event.sequence, event)
        elif event.enqueued_at > checkpoint.enqueued_at:
            raise StreamRecreated(
                f"event {event.sequence} of {event.enqueued_at:%FT%TZ} is behind checkpoint "
                f"{checkpoint.sequence} of {checkpoint.enqueued_at:%FT%TZ} and newer than it"
            )
    fresh = tuple(by_sequence[sequence] for sequence in sorted(by_sequence))
    last = fresh[-1].sequence if fresh else checkpoint.sequence
    missing = holes(fresh, Span(checkpoint.sequence + 1, last))
    return Survey(fresh, missing, count - len(fresh))


def holes(events: Sequence[Event], within: Span) -> tuple[Span, ...]:
    """The numbers within the span that no event has; events by number, none outside the span."""
    return () if len(events) == within.count else tuple(_holes(events, within))


def _holes(events: Sequence[Event], within: Span) -> Iterator[Span]:
    expected = within.first
    for event in events:
        if event.sequence > expected:
            yield Span(expected, event.sequence - 1)
        expected = event.sequence + 1
    if expected <= within.last:
        yield Span(expected, within.last)


def check_made_before(checkpoint: Checkpoint, created_at: datetime) -> None:
    """Raises StreamRecreated where the hub was made after the checkpoint's event came to it: it
    is another one under the old name, however far it is by now.

    Only until anything of it is accounted for: from then on the checkpoint is of its own events.
    """
    if created_at > checkpoint.enqueued_at + CLOCKS_DIFFER:
        raise StreamRecreated(
            f"the hub was made at {created_at:%FT%TZ}, after event {checkpoint.sequence} of "
            f"{checkpoint.enqueued_at:%FT%TZ} that the checkpoint is at"
        )


def check_same_hub(checkpoint: Checkpoint, hub: HubState) -> None:
    """Raises StreamRecreated where the hub ends before the checkpoint, or was made after it."""
    if hub.last_enqueued < checkpoint.sequence:
        raise StreamRecreated(
            f"the hub ends at {hub.last_enqueued}, the checkpoint is at {checkpoint.sequence}"
        )
    check_made_before(checkpoint, hub.created_at)


def tail(checkpoint: Checkpoint, hub: HubState) -> Span | None:
    """What the hub has and nobody was given; None where all of it is accounted for.

    Raises StreamRecreated where it is another hub than the one that the checkpoint is of.
    """
    check_same_hub(checkpoint, hub)
    if hub.last_enqueued == checkpoint.sequence:
        return None
    return Span(checkpoint.sequence + 1, hub.last_enqueued)
