"""The nouns: what is asked for, a run of the job, what a submitter says of it. Times are UTC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import Any


class RunState(StrEnum):
    """``submitting → submitted → running → succeeded``, or how it ended otherwise."""

    SUBMITTING = "submitting"
    """Written down; whether the job was taken is not known yet."""

    SUBMITTED = "submitted"
    RUNNING = "running"
    STOPPING = "stopping"
    """It ran for too long and is being cancelled."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"
    """Nobody knows it any more where it was submitted."""

    @property
    def ended(self) -> bool:
        return self in (RunState.SUCCEEDED, RunState.FAILED, RunState.LOST)


@dataclass(frozen=True, slots=True)
class Demand:
    """A date is to be recomputed with all data up to ``data_until``, a time of the storage."""

    date: date
    data_until: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the job for one date.

    ``number`` counts the runs of a date, ``attempt`` those for the same data. ``token`` names the
    run to the submitter, so that submitting it again starts nothing twice.
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
    """How often it was handed to the submitter."""

    lease_until: datetime | None = None
    """While submitting: nobody hands it over again before then."""

    submitted_at: datetime | None = None
    handle: str = ""
    """What the submitter calls it."""

    log_url: str = ""
    error: str = ""
    warning: str = ""
    """Of a run that succeeded: what it could not read again, so that earlier totals stand."""

    retry_at: datetime | None = None
    """Of a run that ended badly: no other run of the date before then. None: given up."""

    untold: bool = False
    """Somebody is still to be notified of this state."""

    version: Any = field(default=None, compare=False)
    """The store's mark."""


@dataclass(frozen=True, slots=True)
class DateRuns:
    """What is asked for a date, and its latest run."""

    date: date
    demand: Demand | None = None
    latest: Run | None = None


@dataclass(frozen=True, slots=True)
class Ledger:
    """All dates of a data set as they stood at ``now``, which is the store's time."""

    dataset: str
    now: datetime
    days: Mapping[date, DateRuns]

    @property
    def open_runs(self) -> int:
        return sum(1 for day in self.days.values() if day.latest and not day.latest.state.ended)


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """How often and how long a run is tried."""

    attempts: int = 3
    """Runs of one date for the same data."""

    retry_delay: timedelta = timedelta(minutes=10)
    """Before the second attempt; doubles for each further one."""

    timeout: timedelta = timedelta(hours=4)
    """A run that is older than this is stopped."""

    parallel: int = 1
    """Runs of one data set at a time."""

    lease: timedelta = timedelta(minutes=15)
    """Longer than a function may run: who is silent for so long submits no more."""

    submit_delay: timedelta = timedelta(minutes=1)
    """After a submission without an answer; doubles, up to an hour."""

    submits_until_notified: int = 3


@dataclass(frozen=True, slots=True)
class Job:
    """What is submitted: a Spark application with its arguments. ``token`` has ≤ 64 characters."""

    token: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Submission:
    """The submitter's answer: what it calls the run, and where its log will be."""

    handle: str
    log_url: str = ""


class JobPhase(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    GONE = "gone"
    """The submitter knows no such run."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    phase: JobPhase
    log_url: str = ""
    error: str = ""
    warning: str = ""
    """Of a job that succeeded: see ``shared.sampling.unreadable``."""
