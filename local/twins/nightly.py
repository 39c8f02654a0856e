"""In-memory adapters of the ports that nightly runs use.

They keep the same contracts as the real adapters, without I/O.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from itertools import count

from shared.nightly.errors import InputUnreadable, JobRefused, JobUnavailable, RunTaken
from shared.nightly.model import (
    DateRuns,
    Demand,
    Job,
    JobPhase,
    JobStatus,
    Ledger,
    Run,
    Submission,
)
from shared.notifications.news import News


class MemoryRunStore:
    """See RunStore. As with ETags, no two writes have the same version."""

    _versions = count()

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._demands: dict[tuple[str, date], Demand] = {}
        self._runs: dict[tuple[str, date], dict[int, Run]] = defaultdict(dict)

    async def read(self, dataset: str) -> Ledger:
        keys = {key for key in (*self._demands, *self._runs) if key[0] == dataset}
        days = {key[1]: DateRuns(key[1], self._demands.get(key), self._latest(key)) for key in keys}
        return Ledger(dataset, self._now(), days)

    async def ask(self, dataset: str, demand: Demand) -> bool:
        current = self._demands.get((dataset, demand.date))
        if current and current.data_until >= demand.data_until:
            return False
        self._demands[dataset, demand.date] = demand
        return True

    async def insert(self, run: Run) -> Run:
        if run.number in self._runs.get((run.dataset, run.date), {}):
            raise RunTaken(f"{run.dataset} {run.date}: run {run.number} already exists")
        return self._write(run)

    async def replace(self, run: Run) -> Run:
        stored = self._runs.get((run.dataset, run.date), {}).get(run.number)
        if stored is None or stored.version != run.version:
            raise RunTaken(
                f"{run.dataset} {run.date}: another instance changed run {run.number} first"
            )
        return self._write(run)

    async def forget(self, dataset: str, day: date) -> None:
        self._demands.pop((dataset, day), None)
        self._runs.pop((dataset, day), None)

    async def close(self) -> None: ...

    def runs(self, dataset: str, day: date) -> list[Run]:
        """All runs of a date, from the first to the last."""
        return [run for _, run in sorted(self._runs.get((dataset, day), {}).items())]

    def _write(self, run: Run) -> Run:
        written = replace(run, version=next(self._versions))
        self._runs[run.dataset, run.date][run.number] = written
        return written

    def _latest(self, key: tuple[str, date]) -> Run | None:
        runs = self.runs(*key)
        return runs[-1] if runs else None


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
