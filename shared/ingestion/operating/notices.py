"""Events that failed for good since a time, and events that are gone, for the notifier."""

from __future__ import annotations

from datetime import datetime, timedelta

from shared.ingestion.dead_letters.ports import DeadLetterStore
from shared.ingestion.errors import RowUnreadable
from shared.ingestion.events.ports import AccountReader
from shared.ingestion.model import DeadLetter, Gap, Stream
from shared.ingestion.operating.stream_account import all_gaps
from shared.notifications.news import News, NewsKind, Severity

EVENTS_BACK = 100_000
"""So many events before the checkpoint are looked through: a partition takes in a thousand a second
and is looked at once a minute."""
BATCH_TIME_MAX = timedelta(minutes=30)
"""Failures and gaps carry the time at which their batch began: they are written that much later."""
PAGE_LETTERS = 1000
PAGES_MAX = 10
"""Of one partition; who has more failures than that has been told of the first ones."""


async def run(accounts: AccountReader, letters: DeadLetterStore, since: datetime) -> list[News]:
    """One for each dead letter and each gap since then, or written since then by a batch that had
    begun before."""
    found, begun = list[News](), since - BATCH_TIME_MAX
    for stream in await accounts.streams():
        after = await _looked_from(stream, accounts)
        for _ in range(PAGES_MAX):
            page = await letters.dead_letters(stream, after, PAGE_LETTERS, begun)
            found += [_failed(stream, stored.letter) for stored in page]
            if len(page) < PAGE_LETTERS:
                break
            after = page[-1].letter.sequence
        found += [_lost(stream, gap) for gap in await all_gaps(accounts, stream, begun)]
    return found


async def _looked_from(stream: Stream, accounts: AccountReader) -> int | None:
    try:
        checkpoint = (await accounts.load(stream)).checkpoint
    except RowUnreadable:  # its partition is held, and says why
        return None
    return None if checkpoint is None else checkpoint.sequence - EVENTS_BACK


def _lost(stream: Stream, gap: Gap) -> News:
    return News(
        news_id=f"{stream.key}/gap/{gap.first}",
        kind=NewsKind.EVENTS_GONE,
        subject=f"{stream.hub}/{stream.consumer_group}",
        time=gap.found_at,
        headline=f"{stream.hub}: {gap.count} event(s) of partition {stream.partition_id} are gone",
        text=f"{gap.first} to {gap.last}: {gap.reason}",
        severity=Severity.ERROR,
        source="/api/dead-letters",
        data={"partition": stream.partition_id, "first": gap.first, "last": gap.last},
    )


def _failed(stream: Stream, letter: DeadLetter) -> News:
    return News(
        news_id=f"{stream.key}/{letter.sequence}",
        kind=NewsKind.DEAD_LETTERS,
        subject=f"{stream.hub}/{stream.consumer_group}",
        time=letter.failed_at,
        headline=f"{stream.hub}: event {letter.sequence} of partition {stream.partition_id} failed",
        text=letter.error,
        severity=Severity.WARNING,
        source="/api/dead-letters",
        data={"partition": stream.partition_id, "sequence": letter.sequence},
    )
