"""Notifications of dead letters and gaps, and what is wrong with dead letters and the hub."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from shared.ingestion.model import DeadLetter, Gap, Stream
from shared.ingestion.operating.breaker_controller import NOT_BEGUN, Backlog
from shared.ingestion.operating.stream_account import all_gaps, checkpoint_of
from shared.ingestion.store.events import EventStore, StoredDeadLetter
from shared.notifications.conditions import LastingCondition
from shared.notifications.ports import Observed
from shared.values.news import News, NewsKind, Severity

EVENTS_BACK = 100_000
"""How many events before the checkpoint are searched each minute, at 1000 a second."""
BATCH_TIME_MAX = timedelta(minutes=30)
"""Dead letters and gaps carry the time their batch began, and are written up to this later."""
PAGE_LETTERS = 1000
PARTITIONS_TOLD_MAX = 5
PAGES_MAX = 10
"""The most pages read for one partition. If there are more, the first ones have been reported."""


async def news_since(store: EventStore, since: datetime) -> list[News]:
    """A notification for each dead letter and each gap written after ``since``."""
    news, earliest = list[News](), since - BATCH_TIME_MAX
    for stream in await store.streams():
        checkpoint = await checkpoint_of(store, stream)
        after = checkpoint.sequence - EVENTS_BACK if checkpoint else None
        for _ in range(PAGES_MAX):
            page = await store.dead_letters(stream, after, PAGE_LETTERS, earliest)
            news += [_failed(stream, stored.letter) for stored in page]
            if len(page) < PAGE_LETTERS:
                break
            after = page[-1].letter.sequence
        gaps = await all_gaps(store, stream, earliest)
        news += [_lost(stream, gap) for gap in gaps if gap.is_loss]
    return news


def of_hub(hub: str, consumer_group: str, backlogs: Sequence[Backlog]) -> Observed:
    """One condition for all partitions that wait for an operator."""
    subject = f"{hub}/{consumer_group}"
    held = [f"{each.place}: {each.remark}" for each in backlogs if each.is_held]
    if not held:
        unread = any(each.events is None and each.remark != NOT_BEGUN for each in backlogs)
        return Observed(unread=[subject] if unread else [])
    places = f"{len(held)} of {len(backlogs)} partitions" if backlogs[1:] else backlogs[0].place
    found = LastingCondition(
        subject,
        Severity.ERROR,
        what=f"{hub}: {places} cannot be processed",
        meaning="; ".join(held[:PARTITIONS_TOLD_MAX]),
        todo="See “A hub that was recreated” in docs/event-hub-operations.md.",
        kind=NewsKind.HUB_HELD,
        source="/api/breakers",
        data={"partitions": [each.partition_id for each in backlogs if each.is_held]},
    )
    return Observed(conditions=[found])


def of_letters(letters: Sequence[StoredDeadLetter], letters_max: int) -> list[LastingCondition]:
    """One condition for all dead letters. If there are ``letters_max``, there may be more."""
    if not letters:
        return []
    newest = max((stored.letter for stored in letters), key=lambda letter: letter.failed_at)
    more = " or more" if len(letters) >= letters_max else ""
    what = f"dead letters: {len(letters)}{more}"
    meaning = f"The newest: {newest.error}"
    todo = "Fix the cause, then run python -m shared dead-letters redrive --all."
    return [LastingCondition("dead letters", Severity.WARNING, what, meaning, todo)]


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
