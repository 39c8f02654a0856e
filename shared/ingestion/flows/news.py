"""news: events that failed for good of late."""

from __future__ import annotations

from datetime import datetime

from shared.ingestion.model import DeadLetter, Stream
from shared.ingestion.ports import DeadLetterStore, IngestionStore
from shared.news import Kind, News, Severity

EVENTS_BACK = 5000
"""So many events before the checkpoint are looked through: no more come in a look's time, and
where they do, one message for all of them is enough."""
LETTERS_MAX = 1000


async def run(store: IngestionStore, letters: DeadLetterStore, since: datetime) -> list[News]:
    """One for each dead letter since then."""
    found = []
    for stream in await letters.streams():
        checkpoint = (await store.load(stream)).checkpoint
        after = None if checkpoint is None else checkpoint.sequence - EVENTS_BACK
        for stored in await letters.dead_letters(stream, after, LETTERS_MAX):
            if stored.letter.failed_at >= since:
                found.append(_told(stream, stored.letter))
    return found


def _told(stream: Stream, letter: DeadLetter) -> News:
    return News(
        news_id=f"{stream.key}/{letter.sequence}",
        kind=Kind.DEAD_LETTERS,
        subject=f"{stream.hub}/{stream.consumer_group}",
        time=letter.failed_at,
        headline=f"{stream.hub}: event {letter.sequence} of partition {stream.partition_id} failed",
        text=letter.error,
        severity=Severity.WARNING,
        source="/api/dead-letters",
        data={"partition": stream.partition_id, "sequence": letter.sequence},
    )
