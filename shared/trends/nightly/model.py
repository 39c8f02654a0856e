"""The data classes, errors and ports of the nightly job: demands, runs, replies of a Spark service,
the store of runs, and the input data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol


class RunState(StrEnum):
    """``submitting → submitted → running → succeeded``, or another final state."""

    SUBMITTING = "submitting"
    """The run is stored, but it is unknown whether the Spark service has accepted the job."""

    SUBMITTED = "submitted"
    RUNNING = "running"
    STOPPING = "stopping"
    """The run exceeded its time limit and is being canceled."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"
    """The Spark service no longer knows the run."""

    @property
    def ended(self) -> bool:
        return self in (RunState.SUCCEEDED, RunState.FAILED, RunState.LOST)


@dataclass(frozen=True, slots=True)
class Demand:
    """A request to recompute a date with all data up to ``data_until``, by the storage's clock."""

    date: date
    data_until: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the job for one date. ``number`` counts all runs of a date; ``attempt`` counts its
    runs for the same data. A ``token`` that is submitted again does not start a second job.
    """

    dataset: str
    date: date
    number: int
    attempt: int
    token: str
    data_until: datetime
    state: RunState
    created_at: datetime
    changed_at: datetime
    submits: int = 1
    lease_until: datetime | None = None
    """While the state is ``submitting``, no instance submits the run again before this time."""

    submitted_at: datetime | None = None
    handle: str = ""
    """The name that the Spark service gave the run."""

    log_url: str = ""
    error: str = ""
    warning: str = ""
    """The dates that a successful run could not read again. Their earlier totals remain."""

    retry_at: datetime | None = None
    """After a failed run, when the next may start; None if no further attempt is made."""

    version: Any = field(default=None, compare=False)
    """The ETag of the row."""


@dataclass(frozen=True, slots=True)
class DateRuns:
    date: date
    demand: Demand | None = None
    latest: Run | None = None


@dataclass(frozen=True, slots=True)
class Ledger:
    """All dates of a data set as read at ``now``, by the store's clock."""

    dataset: str
    now: datetime
    days: Mapping[date, DateRuns]

    @property
    def open_runs(self) -> int:
        return sum(1 for day in self.days.values() if day.latest and not day.latest.state.ended)


@dataclass(frozen=True, slots=True)
class RunPolicy:
    attempts: int = 3
    """The maximum number of runs of a date for the same data."""

    retry_delay: timedelta = timedelta(minutes=10)
    """The wait before the second attempt. It doubles for each further attempt."""

    timeout: timedelta = timedelta(hours=4)
    parallel: int = 1
    """The maximum number of concurrent runs of a data set."""

    lease: timedelta = timedelta(minutes=15)
    """How long only one instance may submit a run: longer than a function may run."""

    submit_delay: timedelta = timedelta(minutes=1)
    """The wait after a submission without a reply; it doubles, up to one hour."""

    submits_until_notified: int = 3
    """Operators are notified after this many submissions without a reply."""


@dataclass(frozen=True, slots=True)
class Job:
    """A Spark application with its arguments. ``token`` has at most 64 characters."""

    token: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Submission:
    """The Spark service's name for the run, and the address of the log."""

    handle: str
    log_url: str = ""


class JobPhase(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    GONE = "gone"
    """The Spark service does not know the run."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    phase: JobPhase
    log_url: str = ""
    error: str = ""
    warning: str = ""
    """The warning of a successful job; see ``shared.sampling.unreadable``."""


class RunTaken(Exception):
    """Another instance has changed this run, or started another run, since the read. Read again."""


class JobRefused(Exception):
    """The Spark service refused the job, and would refuse it again. An operator must act."""


class JobUnavailable(Exception):
    """The Spark service may have accepted the job: submit the same token again. ``status`` is the
    HTTP status of its answer, None without one."""

    def __init__(self, text: str, status: int | None = None) -> None:
        self.status = status
        super().__init__(text)


class InputUnreadable(Exception):
    """The input cannot be listed, because it does not exist or a permission is missing."""


class NightFailed(Exception):
    """The dates to recompute are unknown for some data sets. Try again."""

    def __init__(self, errors: Mapping[str, Exception]) -> None:
        super().__init__("; ".join(f"{name}: {error}" for name, error in errors.items()))


class RunStore(Protocol):
    async def read(self, dataset: str) -> Ledger:
        """All demands and latest runs of a data set, with the store's time."""
        ...

    async def ask(self, dataset: str, demand: Demand) -> bool:
        """Store the demand, unless the stored demand is for at least as much data.

        Returns whether it was stored. Raises RunTaken if other instances keep changing it.
        """
        ...

    async def write(self, run: Run) -> Run:
        """Insert a run without a version, or update it, and return it with its new version. Raises
        RunTaken if its number is taken, or if it was changed or deleted since it was read.
        """
        ...

    async def forget(self, dataset: str, day: date) -> None:
        """Delete the demand and all runs of a date."""
        ...


class JobSubmitter(Protocol):
    async def submit(self, job: Job) -> Submission:
        """Submit the job, or return the submission of an earlier job with the same token.

        Raises JobRefused if nothing was started and another attempt would not help, and
        JobUnavailable if the outcome is unknown.
        """
        ...

    async def status(self, handle: str) -> JobStatus:
        """Raises JobUnavailable."""
        ...

    async def cancel(self, handle: str) -> None:
        """Cancel the run, unless it has ended or is unknown. Livy forgets it, so its token must not
        be submitted again. Raises JobUnavailable.
        """
        ...

    async def close(self) -> None: ...


class InputReader(Protocol):
    async def newest(self, dataset: str, dates: Sequence[date]) -> Mapping[date, datetime]:
        """When data of each date were last written; without dates that have none. Raises
        InputUnreadable.
        """
        ...
