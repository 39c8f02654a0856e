"""Random calls on NotificationStore, in memory and in Azure Tables, give the same answers."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, invariant, rule

from local.azurite import Azurite
from local.twins.notifications import MemoryNotificationStore
from shared.notifications import store as notifications_table
from shared.notifications.ports import (
    NotificationConflict,
    NotificationHistory,
    NotificationStore,
    SourceProgress,
)
from shared.notifications.selection import Key, Notification, NotificationRecord
from shared.notifications.store import TableNotificationStore
from shared.settings.connections import StorageConnection
from shared.values.news import News, NewsKind
from tests.builders import NOW, ago
from tests.contract.faulty_network import FAULTS, MOSTLY_NOT, Fault, Network
from tests.contract.stateful import HOSTILE, Both, SideBySide, run_machine, texts

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
    return records, history.read_at, {name: look.until for name, look in history.progress.items()}


class NotificationsMachine(SideBySide):
    errors = conflicts = (NotificationConflict,)
    seen = Bundle("seen")

    def __init__(self, runner: asyncio.Runner, network: Network, connection: StorageConnection):
        super().__init__(runner, network)
        self.memory = MemoryNotificationStore(lambda: network.now)
        with patch.object(notifications_table, "TABLE_NAME", f"N{uuid.uuid4().hex}"):
            self.real = TableNotificationStore(connection)
        self.run(self.real._table.create)

    def teardown(self) -> None:
        self.run(self.real.close)

    @rule(target=seen)
    def read(self) -> Both[Any] | None:
        return self.both(self.memory.read, self.real.read, shown=shown)

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
        def saving(store: NotificationStore, history: NotificationHistory, headline: str) -> Any:
            version = history.records[key].version if key in history.records else None
            news = News("1", key[0], key[1], NOW, headline)
            notification = Notification(key, news, replace(record, version=version))
            return lambda: store.save(notification)

        first = saving(self.memory, seen.memory, "other"), saving(self.real, seen.real, "other")
        self.both(
            saving(self.memory, seen.memory, headline),
            saving(self.real, seen.real, headline),
            fault=fault,
            knows_own=True,
            first=first if raced else None,
        )

    @rule(seen=seen, source=SUBJECTS, until=TIMES, fault=FAULTS, raced=MOSTLY_NOT)
    def save_progress(
        self, seen: Both[Any], source: str, until: Any, fault: Fault, raced: bool
    ) -> None:
        def through(store: NotificationStore, history: NotificationHistory) -> Any:
            version = history.progress[source].version if source in history.progress else None
            return lambda: store.save_progress(source, SourceProgress(until, version))

        calls = through(self.memory, seen.memory), through(self.real, seen.real)
        self.both(*calls, fault=fault, knows_own=True, first=calls if raced else None)

    @rule(seconds=st.integers(1, 86400))
    def time_passes(self, seconds: int) -> None:
        self.later(seconds)

    @invariant()
    def both_have_stored_the_same(self) -> None:
        self.both(self.memory.read, self.real.read, shown=shown)


def test_notification_records_in_tables_behave_like_those_in_memory(azurite: Azurite) -> None:
    network = Network()
    connection = StorageConnection("Storage", azurite.connection_string)
    with asyncio.Runner() as runner, network.installed():
        run_machine(lambda: NotificationsMachine(runner, network, connection), examples=8)
