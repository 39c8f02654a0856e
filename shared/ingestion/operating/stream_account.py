"""How far each stream is accounted for, and which of its events are gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from shared.ingestion.errors import RowUnreadable
from shared.ingestion.model import Checkpoint, Gap, Stream
from shared.ingestion.store.events import EventStore
from shared.values.concurrency import gathered

PAGE_GAPS = 1000
STREAMS_AT_ONCE = 8
PAGES_MAX = 10
"""The most pages of gaps read for one stream."""


@dataclass(frozen=True, slots=True)
class StreamAccount:
    """A stream's account: each event up to the checkpoint has an outcome or is in a gap."""

    stream: Stream
    checkpoint: Checkpoint | None
    gaps: Sequence[Gap]


async def stream_accounts(accounts: EventStore) -> list[StreamAccount]:
    """The accounts of all streams, including those of replays. Raises StoreUnavailable."""
    return [
        StreamAccount(each, (await accounts.load(each)).checkpoint, await all_gaps(accounts, each))
        for each in await accounts.streams()
    ]


async def all_gaps(
    accounts: EventStore, stream: Stream, found_since: datetime | None = None
) -> list[Gap]:
    """All gaps of a stream, or those found since a time, wherever they begin."""
    gaps = list[Gap]()
    for _ in range(PAGES_MAX):
        after = gaps[-1].first if gaps else None
        page = await accounts.gaps(stream, after, PAGE_GAPS, found_since)
        gaps += page
        if len(page) < PAGE_GAPS:
            break
    return gaps


async def checkpoint_of(accounts: EventStore, stream: Stream) -> Checkpoint | None:
    """None also for one that cannot be read: its partition is held, and the error of its batch says
    why."""
    try:
        return (await accounts.load(stream)).checkpoint
    except RowUnreadable:
        return None


async def set_aside(accounts: EventStore) -> list[tuple[Stream, int]]:
    """The streams with events that were set aside, and their numbers. A checkpoint that cannot be
    read is left out."""

    async def of(stream: Stream) -> int:
        checkpoint = await checkpoint_of(accounts, stream)
        return checkpoint.set_aside if checkpoint else 0

    streams = await accounts.streams()
    counts = await gathered(of, streams, STREAMS_AT_ONCE)
    return [each for each in zip(streams, counts, strict=True) if each[1]]
