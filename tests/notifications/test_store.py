"""The contract of NotificationStore, tested on the in-memory adapter and on Azure Tables."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, invariant, rule

from local.azurite import Azurite
from local.twins.notifications import MemoryNotificationStore
from shared.notifications import store as notifications_table
from shared.notifications.ports import (
    NotificationConflict,
    NotificationHistory,
    NotificationStore,
)
from shared.notifications.selection import Key, Notification, NotificationRecord
from shared.notifications.store import TableNotificationStore
from shared.settings.connections import StorageConnection
from shared.values.news import News, NewsKind
from tests.builders import NOW, ago
from tests.storage.faulty_network import FAULTS, MOSTLY_NOT, Fault, Network
from tests.storage.stateful import HOSTILE, Both, run_machine, texts
from tests.storage.table_machine import TableMachine


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


# --- random calls -----------------------------------------------------------------------------

TIMES = st.sampled_from((NOW, ago(3600), ago(0.123456), ago(-86400)))
SUBJECTS = st.sampled_from(("plan-1", "plan-1", *HOSTILE))
keys = st.tuples(
    st.sampled_from((str(NewsKind.SOURCE_STALE), str(NewsKind.SOURCE_STALE), "a|b")), SUBJECTS
)
short_ids = st.integers(0, 2**32 - 1).map(lambda number: f"{number:08x}")
notification_records = st.builds(
    NotificationRecord,
    st.one_of(st.just(()), st.lists(short_ids, max_size=3).map(tuple)),
    st.none() | TIMES,
    st.none() | TIMES,
    st.none() | TIMES,
)


def shown(history: NotificationHistory) -> Any:
    """The history without its versions, which differ between stores."""
    records = {key: replace(record, version=None) for key, record in history.records.items()}
    return records, history.read_at


class NotificationsMachine(TableMachine):
    errors = conflicts = (NotificationConflict,)
    seen = Bundle("seen")

    def __init__(
        self, runner: asyncio.Runner, network: Network, connection: StorageConnection
    ) -> None:
        with patch.object(notifications_table, "TABLE_NAME", f"N{uuid.uuid4().hex}"):
            real = TableNotificationStore(connection)
        super().__init__(runner, network, MemoryNotificationStore(lambda: network.now), real)
        self.run(real._table.create)

    def teardown(self) -> None:
        self.run(self.real.close)

    @rule(target=seen)
    def read(self) -> Both[Any] | None:
        return self.on_both(lambda store, _: store.read(), shown=shown)

    @rule(
        seen=seen,
        key=keys,
        record=notification_records,
        headline=texts,
        fault=FAULTS,
        raced=MOSTLY_NOT,
    )
    def save(
        self,
        seen: Both[Any],
        key: Key,
        record: NotificationRecord,
        headline: str,
        fault: Fault,
        raced: bool,
    ) -> None:
        async def saved(store: Any, history: NotificationHistory, text: str = headline) -> None:
            version = history.records[key].version if key in history.records else None
            news = News("1", key[0], key[1], NOW, text)
            await store.save(Notification(key, news, replace(record, version=version)))

        first = partial(saved, text="other") if raced else None
        self.on_both(saved, seen, first=first, fault=fault)

    @rule(seconds=st.integers(1, 86400))
    def time_passes(self, seconds: int) -> None:
        self.later(seconds)

    @invariant()
    def both_have_stored_the_same(self) -> None:
        self.read()


def test_notification_records_in_tables_behave_like_those_in_memory(azurite: Azurite) -> None:
    network = Network()
    connection = StorageConnection("Storage", azurite.connection_string)
    with asyncio.Runner() as runner, network.installed():
        machine = partial(NotificationsMachine, runner, network, connection)
        run_machine(machine, examples=10, steps=20)
