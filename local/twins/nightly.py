"""In-memory adapters of the ports that nightly runs use.

They keep the same contracts as the real adapters, without I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime

from local.twins.table import MemoryTable
from shared.storage.tables import key
from shared.trends.nightly.model import (
    InputUnreadable,
    Job,
    JobPhase,
    JobRefused,
    JobStatus,
    JobUnavailable,
    Run,
    Submission,
)
from shared.trends.store.runs import TableRunStore, _run
from shared.values.news import News


class MemoryRunStore(TableRunStore):
    """Demands and runs in a table in memory."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._table: MemoryTable = MemoryTable(now)

    def share(self, other: MemoryRunStore) -> None:
        """Use the rows of the other store, as another instance does."""
        self._table.stored = other._table.stored

    def runs(self, dataset: str, day: date) -> list[Run]:
        """All runs of a date, from the first to the last."""
        start = f"{day}|run|"
        rows = [row for _, row in sorted(self._table.stored.items())]
        own = [row for row in rows if row["PartitionKey"] == key(dataset)]
        return [_run(dataset, day, row) for row in own if row["RowKey"].startswith(start)]


@dataclass(slots=True)
class MemorySubmitter:
    """See JobSubmitter. It runs no job: a test sets the status of each job. The handle of a job is
    its token.
    """

    jobs: dict[str, Job] = field(default_factory=dict)
    statuses: dict[str, JobStatus] = field(default_factory=dict)
    refusal: str = ""
    outage: str = ""

    async def submit(self, job: Job) -> Submission:
        self._check_available()
        if self.refusal:
            raise JobRefused(self.refusal)
        self.jobs.setdefault(job.token, job)
        self.statuses.setdefault(job.token, JobStatus(JobPhase.PENDING))
        return Submission(job.token, f"memory://{job.token}")

    async def status(self, handle: str) -> JobStatus:
        self._check_available()
        return self.statuses.get(handle, JobStatus(JobPhase.GONE))

    async def cancel(self, handle: str) -> None:
        self._check_available()
        status = self.statuses.get(handle)
        if status is not None and status.phase in (JobPhase.PENDING, JobPhase.RUNNING):
            self.statuses[handle] = JobStatus(JobPhase.FAILED, error="cancelled")

    async def close(self) -> None: ...

    def _check_available(self) -> None:
        if self.outage:
            raise JobUnavailable(self.outage)


@dataclass(slots=True)
class MemoryInputs:
    """See InputReader. It returns the times in ``written``. If that is None, reading fails."""

    written: dict[str, dict[date, datetime]] | None = field(default_factory=dict)

    async def newest(self, dataset: str, dates: Sequence[date]) -> Mapping[date, datetime]:
        if self.written is None:
            raise InputUnreadable("no permission")
        times = self.written.get(dataset, {})
        return {day: times[day] for day in dates if day in times}

    async def close(self) -> None: ...


@dataclass(slots=True)
class MemoryNotifier:
    """See Notifier. It records all notifications."""

    news: list[News] = field(default_factory=list)

    async def tell(self, news: News) -> None:
        self.news.append(news)
