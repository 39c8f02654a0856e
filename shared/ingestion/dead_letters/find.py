"""Finds dead letters, and reads their original events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from shared.ingestion.errors import NO_LETTER, NotFound
from shared.ingestion.model import DeadLetter, Event, FailureKind, Span, Stream, in_one_case
from shared.ingestion.ports import HubReader
from shared.ingestion.store.events import EventStore, StoredDeadLetter
from shared.values.concurrency import gathered

PAGE = 100
STREAMS_AT_ONCE = 8
BEGINNING_BYTES = 1000
NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class DeadLetterQuery:
    """Which dead letters to select. A field that is None matches all."""

    hub: str | None = None
    consumer_group: str | None = None
    partition_id: str | None = None
    sequence: int | None = None
    kind: FailureKind | None = None
    failed_before: datetime | None = None
    without_replays: bool = False
    """Leave out the dead letters of replays, unless the consumer group names a replay."""

    def covers(self, stream: Stream) -> bool:
        """Azure compares the names of hubs and consumer groups without case."""
        if self.without_replays and stream.is_replay and self.consumer_group is None:
            return False
        wanted = (self.hub, self.consumer_group)
        names = zip(wanted, (stream.hub, stream.consumer_group), strict=True)
        same = all(want is None or in_one_case(want) == name for want, name in names)
        return same and self.partition_id in (None, stream.partition_id)

    def matches(self, letter: DeadLetter) -> bool:
        return (
            (self.sequence is None or letter.sequence == self.sequence)
            and (self.kind is None or letter.kind is self.kind)
            and (self.failed_before is None or letter.failed_at < self.failed_before)
        )


async def find(
    store: EventStore, query: DeadLetterQuery, limit: int, after: int | None = None
) -> Sequence[StoredDeadLetter]:
    """The first ``limit`` matching dead letters, by stream and number above ``after``."""
    async for chunk in chunks(store, query, limit, after):
        return chunk
    return []


async def newest(store: EventStore, limit: int) -> Sequence[StoredDeadLetter]:
    """The most recently failed dead letters of all streams, with the beginnings of their bodies."""

    async def of(stream: Stream) -> Sequence[StoredDeadLetter]:
        letters = await store.newest_dead_letters(stream, limit)
        return [_beginning(stored) for stored in letters]

    pages = await gathered(of, await store.streams(), STREAMS_AT_ONCE)
    letters = [stored for page in pages for stored in page]
    return sorted(letters, key=lambda stored: stored.letter.failed_at, reverse=True)[:limit]


def _beginning(stored: StoredDeadLetter) -> StoredDeadLetter:
    body = stored.letter.body
    return replace(stored, letter=replace(stored.letter, body=body and body[:BEGINNING_BYTES]))


async def older_than(store: EventStore, age: timedelta) -> datetime:
    """The time ``age`` before now, by the store's clock, which is read with any stream. Without a
    stream nothing is older, not even what is stored meanwhile."""
    streams = await store.streams()
    return (await store.load(streams[0])).read_at - age if streams else NEVER


async def chunks(
    store: EventStore, query: DeadLetterQuery, size: int, after: int | None = None
) -> AsyncIterator[Sequence[StoredDeadLetter]]:
    """All matching dead letters, ``size`` at a time. The caller may remove them in between."""
    chunk: list[StoredDeadLetter] = []
    async for stored in _all(store, query, after):
        chunk.append(stored)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


async def read(
    store: EventStore, hub: HubReader, query: DeadLetterQuery
) -> tuple[StoredDeadLetter, Event]:
    """One dead letter and its event, from the hub if the store lacks the body. Raises NotFound if
    there is none, several, or no body, and HubUnavailable."""
    matching = await find(store, query, PAGE)
    if len({stored.stream for stored in matching}) != 1:
        raise NotFound(
            "several dead letters have this number; name the hub and the consumer group"
            if matching
            else NO_LETTER
        )
    return matching[0], await event_of(matching[0], hub)


async def event_of(stored: StoredDeadLetter, hub: HubReader) -> Event:
    """The original event. Application properties are kept in the hub only."""
    letter = stored.letter
    if letter.body is None:
        span = Span(letter.sequence, letter.sequence)
        back = await hub.read_back(stored.stream, span)
        if not back.events:
            raise NotFound(
                f"the body of event {letter.sequence} is gone: it was too large for a row of the "
                "store, and the hub no longer has it"
            )
        return back.events[0]
    return Event(
        letter.sequence,
        letter.offset,
        letter.enqueued_at,
        letter.body,
        letter.partition_key,
        unreadable=letter.error if letter.kind is FailureKind.NOT_BYTES else "",
    )


async def _all(
    store: EventStore, query: DeadLetterQuery, after: int | None
) -> AsyncIterator[StoredDeadLetter]:
    for stream in await store.streams():
        if not query.covers(stream):
            continue
        if query.sequence is not None:
            stored = await store.dead_letter(stream, query.sequence)
            if stored is not None and query.matches(stored.letter):
                yield stored
            continue
        above = after
        while page := await store.dead_letters(stream, above, PAGE):
            for stored in page:
                if query.matches(stored.letter):
                    yield stored
            above = page[-1].letter.sequence
