"""How far each stream is, and what of it is gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.ingestion.model import Checkpoint, Gap, Stream
from shared.ingestion.ports import DeadLetterStore, IngestionStore

PAGE_GAPS = 1000
PAGES_MAX = 10
"""Of one stream; who has more has lost nearly everything."""


@dataclass(frozen=True, slots=True)
class StreamAccount:
    """Every event from the checkpoint's start up to it has an outcome; those in a gap are gone."""

    stream: Stream
    checkpoint: Checkpoint | None
    gaps: Sequence[Gap]


async def run(store: IngestionStore, letters: DeadLetterStore) -> list[StreamAccount]:
    """Of all streams, those of replays among them. Raises StoreUnavailable."""
    return [
        StreamAccount(each, (await store.load(each)).checkpoint, await all_gaps(letters, each))
        for each in await letters.streams()
    ]


async def all_gaps(letters: DeadLetterStore, stream: Stream) -> list[Gap]:
    """All of a stream: few, and one that was found just now may begin a long way back."""
    found = list[Gap]()
    for _ in range(PAGES_MAX):
        page = await letters.gaps(stream, found[-1].first if found else None, PAGE_GAPS)
        found += page
        if len(page) < PAGE_GAPS:
            break
    return found
