"""How far each stream is, and what of it is gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from shared.ingestion.events.ports import AccountReader
from shared.ingestion.model import Checkpoint, Gap, Stream

PAGE_GAPS = 1000
PAGES_MAX = 10
"""Of one stream; who has more has lost nearly everything."""


@dataclass(frozen=True, slots=True)
class StreamAccount:
    """Every event from the checkpoint's start up to it has an outcome; those in a gap are gone."""

    stream: Stream
    checkpoint: Checkpoint | None
    gaps: Sequence[Gap]


async def run(accounts: AccountReader) -> list[StreamAccount]:
    """Of all streams, those of replays among them. Raises StoreUnavailable."""
    return [
        StreamAccount(each, (await accounts.load(each)).checkpoint, await all_gaps(accounts, each))
        for each in await accounts.streams()
    ]


async def all_gaps(
    accounts: AccountReader, stream: Stream, found_since: datetime | None = None
) -> list[Gap]:
    """All of a stream, or those found since: one that was found just now may begin long ago."""
    found = list[Gap]()
    for _ in range(PAGES_MAX):
        after = found[-1].first if found else None
        page = await accounts.gaps(stream, after, PAGE_GAPS, found_since)
        found += page
        if len(page) < PAGE_GAPS:
            break
    return found
