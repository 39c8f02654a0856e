"""In-memory adapters of the ports that the processing of data sets uses.

They keep the same contracts as the real adapters, without I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from local.twins.table import MemoryTable
from shared.trends.datasets.periods import Period
from shared.trends.datasets.processing import DatasetWork
from shared.trends.datasets.queues import QueueCheck, QueueDescription
from shared.trends.store.claims import TableClaims
from shared.values.messages import LinkFailed


class MemoryClaims(TableClaims):
    """Claims in a table in memory."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._table: MemoryTable = MemoryTable(now)


class RecordingRecompute:
    """Does nothing but record its calls."""

    def __init__(self) -> None:
        self.calls: list[DatasetWork] = []

    async def __call__(self, work: DatasetWork) -> None:
        self.calls.append(work)


class MemoryQueueCheck(QueueCheck):
    """Reads the descriptions that it was given."""

    def __init__(
        self,
        queues: Mapping[str, QueueDescription],
        periods: Sequence[Period],
        processing: str = "in",
        working: str = "out",
    ) -> None:
        self.processing, self.working, self._periods = processing, working, periods
        self._queues, self._passed = queues, False

    async def facts(self, queue: str) -> QueueDescription:
        if queue not in self._queues:
            raise LinkFailed(f"queue {queue} does not exist")
        return self._queues[queue]
