"""What the flows need from the outside, and no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Protocol

from shared.nightly.model import Demand, Job, JobStatus, Ledger, Run, Submission


class RunStore(Protocol):
    """Remembers what is asked for and what was run."""

    async def read(self, dataset: str) -> Ledger:
        """Everything about a data set, with the store's time."""
        ...

    async def ask(self, dataset: str, demand: Demand) -> bool:
        """Write the demand down unless one for as much data stands; answers whether it did, also
        where the reply to the write was lost and the write was repeated.

        Raises RunTaken where others change the demand all the time.
        """
        ...

    async def insert(self, run: Run) -> Run:
        """The run with its version. Raises RunTaken where there is one of that number."""
        ...

    async def replace(self, run: Run) -> Run:
        """The run with its new version.

        Raises RunTaken where it has changed, or was forgotten, since it was read.
        """
        ...

    async def forget(self, dataset: str, day: date) -> None:
        """Delete all that is known of a date."""
        ...

    async def close(self) -> None: ...


class JobSubmitter(Protocol):
    """A place where Spark applications run."""

    async def submit(self, job: Job) -> Submission:
        """Have the job run, unless one with its token was submitted: then that one is answered.

        Raises JobRefused where nothing was started and trying again would not help, and
        JobUnavailable where nobody knows.
        """
        ...

    async def status(self, handle: str) -> JobStatus:
        """Raises JobUnavailable."""
        ...

    async def cancel(self, handle: str) -> None:
        """Ask for the run's end; harmless where it has ended or was never known.

        Livy forgets a run that was cancelled: its token must not be submitted again. Raises
        JobUnavailable.
        """
        ...

    async def close(self) -> None: ...


class InputReader(Protocol):
    """Sees what data there are."""

    async def newest(self, dataset: str, dates: Sequence[date]) -> Mapping[date, datetime]:
        """When data of each date were last written, without dates that have none.

        Raises InputUnreadable.
        """
        ...

    async def close(self) -> None: ...
