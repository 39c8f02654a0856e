"""Find events that failed, and read them as they came."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from shared.ingestion.dead_letters.ports import DeadLetterStore, NewestDeadLetters, StoredDeadLetter
from shared.ingestion.errors import NotFound
from shared.ingestion.events.ports import CheckpointReader, HubReader
from shared.ingestion.events.survey import Span
from shared.ingestion.model import DeadLetter, Event, FailureKind, Stream

PAGE = 100
STREAMS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class DeadLetterQuery:
    """Which dead letters are meant; what is left out does not matter."""

    hub: str | None = None
    consumer_group: str | None = None
    partition_id: str | None = None
    sequence: int | None = None
    kind: FailureKind | None = None
    failed_before: datetime | None = None

    def of(self, stream: Stream) -> bool:
        asked = (self.hub, self.consumer_group, self.partition_id)
        has = (stream.hub, stream.consumer_group, stream.partition_id)
        return all(a is None or a == h for a, h in zip(asked, has, strict=True))

    def takes(self, letter: DeadLetter) -> bool:
        return (
            (self.sequence is None or letter.sequence == self.sequence)
            and (self.kind is None or letter.kind is self.kind)
            and (self.failed_before is None or letter.failed_at < self.failed_before)
        )


async def find(
    store: DeadLetterStore, wanted: DeadLetterQuery, limit: int, after: int | None = None
) -> Sequence[StoredDeadLetter]:
    """The first so many, by stream and number; ``after`` a number in each stream."""
    found: list[StoredDeadLetter] = []
    async for stored in _all(store, wanted, after):
        found.append(stored)
        if len(found) == limit:
            break
    return found


async def newest(store: NewestDeadLetters, limit: int) -> Sequence[StoredDeadLetter]:
    """Those that failed last, the newest first, of all streams."""
    free = asyncio.Semaphore(STREAMS_AT_ONCE)

    async def of(stream: Stream) -> Sequence[StoredDeadLetter]:
        async with free:
            return await store.newest_dead_letters(stream, limit)

    pages = await asyncio.gather(*(of(stream) for stream in await store.streams()))
    found = [stored for page in pages for stored in page]
    return sorted(found, key=lambda stored: stored.letter.failed_at, reverse=True)[:limit]


async def older_than(store: CheckpointReader, stream: Stream, age: timedelta) -> datetime:
    """That long ago by the store's clock."""
    return (await store.load(stream)).read_at - age


async def chunks(
    store: DeadLetterStore, wanted: DeadLetterQuery, size: int
) -> AsyncIterator[Sequence[StoredDeadLetter]]:
    """All of them, so many at a time; what is taken up meanwhile is not met again."""
    chunk: list[StoredDeadLetter] = []
    async for stored in _all(store, wanted, None):
        chunk.append(stored)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


async def read(
    store: DeadLetterStore, hub: HubReader, wanted: DeadLetterQuery
) -> tuple[StoredDeadLetter, Event]:
    """One dead letter and its event, of which the hub may have what the store has not.

    Raises NotFound where there is none or its body is nowhere any more, and where several hubs or
    groups have one of this number; HubUnavailable.
    """
    found = await find(store, wanted, 2)
    if len(found) != 1:
        raise NotFound(
            "more than one has this number" if found else "no dead letter of this number"
        )
    return found[0], await event_of(found[0], hub)


async def event_of(stored: StoredDeadLetter, hub: HubReader) -> Event:
    """The event as it came. Application properties are kept in the hub only."""
    letter = stored.letter
    if letter.body is None:
        span = Span(letter.sequence, letter.sequence)
        back = await hub.read_back(stored.stream, span)
        if not back.events:
            raise NotFound(f"the body of {letter.sequence} was too large to keep, the hub lost it")
        return back.events[0]
    return Event(
        letter.sequence, letter.offset, letter.enqueued_at, letter.body, letter.partition_key
    )


async def _all(
    store: DeadLetterStore, wanted: DeadLetterQuery, after: int | None
) -> AsyncIterator[StoredDeadLetter]:
    for stream in await store.streams():
        if not wanted.of(stream):
            continue
        if wanted.sequence is not None:
            one = await store.dead_letter(stream, wanted.sequence)
            if one is not None and wanted.takes(one.letter):
                yield one
            continue
        async for stored in _pages(store, stream, after):
            if wanted.takes(stored.letter):
                yield stored


async def _pages(
    store: DeadLetterStore, stream: Stream, after: int | None
) -> AsyncIterator[StoredDeadLetter]:
    while page := await store.dead_letters(stream, after, PAGE):
        for stored in page:
            yield stored
        after = page[-1].letter.sequence
