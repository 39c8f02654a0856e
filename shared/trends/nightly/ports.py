"""The ports of the nightly job: the store of runs, the Spark service, and the input data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Protocol

from shared.trends.nightly.model import Demand, Job, JobStatus, Ledger, Run, Submission


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
