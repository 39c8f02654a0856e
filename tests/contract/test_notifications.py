"""The contract of NotificationStore, tested on the in-memory adapter and on Azure Tables."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from local.azurite import Azurite
from local.twins.notifications import MemoryNotificationStore
from shared.notifications.ports import NotificationConflict, NotificationStore, SourceProgress
from shared.notifications.selection import Notification, NotificationRecord
from shared.notifications.store import TableNotificationStore
from shared.settings.connections import StorageConnection
from shared.values.news import News, NewsKind
from tests.builders import NOW


@pytest.fixture(params=["memory", "tables"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[NotificationStore]:
    if request.param == "memory":
        yield MemoryNotificationStore(lambda: datetime.now(UTC))
        return
    azurite: Azurite = request.getfixturevalue("azurite")
    tables = TableNotificationStore(StorageConnection("Storage", azurite.connection_string))
    yield tables
    await tables.close()


def notification(subject: str, record: NotificationRecord) -> Notification:
    kind = NewsKind.SOURCE_STALE
    return Notification((kind, subject), News("1", kind, subject, NOW, "no sample"), record)


async def test_a_record_is_read_back_and_only_replaced_under_its_version(
    store: NotificationStore,
) -> None:
    seen = tuple(f"{number:08x}" for number in range(2000))
    first = NotificationRecord(seen, NOW, NOW + timedelta(seconds=0.25), NOW - timedelta(days=1))
    subject = "plan/with # ? odd \\ characters"
    await store.save(notification(subject, first))
    history = await store.read()
    assert abs(history.read_at - datetime.now(UTC)) < timedelta(seconds=30)
    kept = history.records[NewsKind.SOURCE_STALE, subject]
    assert replace(kept, version=None) == first
    over = replace(kept, lasting_since=None, seen=())
    await store.save(notification(subject, over))
    with pytest.raises(NotificationConflict):
        await store.save(notification(subject, over))
    with pytest.raises(NotificationConflict):
        await store.save(notification(subject, first))
    now = (await store.read()).records[NewsKind.SOURCE_STALE, subject]
    assert replace(now, version=None) == replace(over, version=None)


async def test_the_progress_of_a_source_is_only_replaced_under_its_version(
    store: NotificationStore,
) -> None:
    source, first = f"dead letters {NOW}", SourceProgress(NOW + timedelta(seconds=0.25))
    assert source not in (await store.read()).progress
    await store.save_progress(source, first)
    kept = (await store.read()).progress[source]
    assert kept.until == first.until
    later = replace(kept, until=NOW + timedelta(minutes=1))
    await store.save_progress(source, later)
    for stale in (later, first):
        with pytest.raises(NotificationConflict):
            await store.save_progress(source, stale)
    history = await store.read()
    assert history.progress[source].until == later.until
    assert source not in {subject for _, subject in history.records}
