"""A nightly run for the demo: telemetry in blobs, the Spark job in a process, trends in the view.

The job first computes the history. Then yesterday's files are uploaded, and the function
``nightly_trends`` is started as its timer would. Spark runs with low priority, so that it does not
slow down the demo.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from azure.storage.blob.aio import ContainerClient

from local.demo import night_telemetry
from local.demo.night_telemetry import CONTAINER, DAY, HourFile
from shared.settings.connections import StorageConnection
from shared.trends.nightly import runs
from shared.trends.nightly.model import Job, JobPhase, Run, RunState
from shared.trends.store.runs import TableRunStore
from shared.trends.submitters.local import LocalSubmitter

FOLDER = Path(".local") / "night"
POLL_SECONDS = 0.2
UPLOADS_AT_ONCE = 8
SHOWN = (
    "date",
    "event",
    "records",
    "sampling_rate",
    "adjusted_count",
    "adjusted_count_se",
    "duplicates_removed",
    "quarantined",
    "verdict",
    "reason",
)

Start = Callable[[], Awaitable[object]]
"""Runs the function ``nightly_trends``."""


@dataclass(slots=True)
class NightlyDemo:
    """The progress of the nightly run. Once the run exists, ``state`` is the state of that run."""

    settings: Mapping[str, str]
    connection_string: str = field(repr=False)
    days: int
    state: str = "not begun"
    begun: float = field(default_factory=time.monotonic)
    ended: float | None = None
    trends: list[dict[str, Any]] = field(default_factory=list)
    pages: list[str] = field(default_factory=list)
    """Paths of HTML files, one for each event."""
    error: str = ""

    @property
    def over(self) -> bool:
        return bool(self.error) or self.state == RunState.SUCCEEDED

    def summary(self) -> dict[str, Any]:
        seconds = (self.ended or time.monotonic()) - self.begun
        return {
            "state": self.state,
            "seconds": round(seconds, 1),
            "trends": self.trends,
            "pages": self.pages,
            "error": self.error,
        }

    async def run(
        self, start: Start, today: date, submitter: LocalSubmitter, store: TableRunStore
    ) -> None:
        """Run everything. Errors are recorded rather than raised, because the demo goes on."""
        try:
            await self._history(submitter, today)
            await start()
            run = await self._until_ended(store)
            if run.state is RunState.SUCCEEDED:
                self.pages = _pages(Path(self.settings["TrendsOutput"]))
                self.trends = _trends(Path(unquote(urlsplit(run.log_url).path)), today - DAY)
            else:
                self.error = run.error
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
        finally:
            self.ended = time.monotonic()

    async def _history(self, submitter: LocalSubmitter, today: date) -> None:
        self.state = "writing telemetry"
        files = list(night_telemetry.files(today, self.days))
        before = [file for file in files if file.day < today - DAY]
        await self._upload(before)
        if before:
            self.state = "computing history"
            await self._compute(submitter, before[0].day, before[-1].day)
        await self._upload(files[len(before) :])

    async def _compute(self, submitter: LocalSubmitter, first: date, last: date) -> None:
        places = (self.settings["TrendsInput"], self.settings["TrendsOutput"])
        source, output = (place.replace(runs.DATASET, CONTAINER) for place in places)
        dates = ("--from", str(first), "--to", str(last))
        arguments = ("--input", source, "--output", output, *dates, "--no-pictures")
        job = Job("history", arguments)
        await submitter.submit(job)
        while True:
            status = await submitter.status(job.token)
            if status.phase is not JobPhase.RUNNING:
                break
            await asyncio.sleep(POLL_SECONDS)
        if status.phase is not JobPhase.SUCCEEDED:
            raise HistoryFailed(status.error)

    async def _upload(self, files: Sequence[HourFile]) -> None:
        container = ContainerClient.from_connection_string(self.connection_string, CONTAINER)
        limit = asyncio.Semaphore(UPLOADS_AT_ONCE)

        async def one(file: HourFile) -> None:
            async with limit:
                await container.upload_blob(file.path, file.content)

        async with container:
            if not await container.exists():
                await container.create_container()
            await asyncio.gather(*[one(file) for file in files])

    async def _until_ended(self, store: TableRunStore) -> Run:
        while True:
            for day in (await store.read(CONTAINER)).days.values():
                if day.latest is None:
                    continue
                self.state = str(day.latest.state)
                if day.latest.state.ended:
                    return day.latest
            await asyncio.sleep(POLL_SECONDS)


class HistoryFailed(Exception):
    """The job could not compute the history. The message is the end of its log."""


def planned(connection_string: str) -> NightlyDemo:
    """A nightly run on this storage account. Files of an earlier one are deleted."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    blobs = connection_string.partition("BlobEndpoint=")[2].partition(";")[0]
    settings = {
        "TrendsSubmitter": "local",
        "TrendsEndpoint": str(FOLDER / "runs"),
        "TrendsInput": f"{blobs}/{runs.DATASET}",
        "TrendsOutput": str((FOLDER / "results").absolute()),
        "TrendsArguments": "--json --tables AzureWebJobsStorage",
        "TrendsAttempts": "1",
        "TrendsLateDays": "0",
        "TrendRunsSchedule": "* * * * * *",
        "AZURE_STORAGE_CONNECTION_STRING": connection_string,
    }
    return NightlyDemo(settings, connection_string, night_telemetry.DAYS)


@asynccontextmanager
async def in_background(night: NightlyDemo, start: Start) -> AsyncIterator[None]:
    """Run it during the ``async with``, and stop whatever still runs at the end.

    Its own task cannot do that: it may be cancelled while it cleans up.
    """
    submitter = LocalSubmitter(FOLDER / "runs")
    store = TableRunStore(StorageConnection("Storage", night.connection_string))
    task = asyncio.create_task(night.run(start, datetime.now(UTC).date(), submitter, store))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await _stop(submitter)
        await store.close()


async def _stop(submitter: LocalSubmitter) -> None:
    runs = FOLDER / "runs"
    for run in runs.iterdir() if runs.exists() else ():
        await submitter.cancel(run.name)


def _pages(output: Path) -> list[str]:
    """Paths of the pages of the newest results."""
    pages = sorted(output.glob("results/*/pictures/*.html"), key=lambda page: page.stat().st_mtime)
    return [str(page) for page in pages if page.parent == pages[-1].parent]


def _trends(log: Path, day: date) -> list[dict[str, Any]]:
    """The trends of that date that the job printed. Its output also contains warnings."""
    lines = log.read_text(encoding="utf-8").splitlines()
    trends = [json.loads(line) for line in lines if line.startswith("{")]
    return [{name: trend[name] for name in SHOWN} for trend in trends if trend["date"] == str(day)]
