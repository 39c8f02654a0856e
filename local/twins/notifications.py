"""The record of notifications in memory."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from local.twins.table import MemoryTable
from shared.notifications.store import TableNotificationStore


class MemoryNotificationStore(TableNotificationStore):
    """The notifications that were sent, in a table in memory."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._table = MemoryTable(clock)
