"""Batches of Livy, Synapse and Fabric: submitted once by their name, whoever answers for them.

Neither has an idempotency token. Apache Livy from 0.6 on refuses a second batch of a name; the
others do not, so the list is searched for the name before anything is started. Livy's REST API:
livy.apache.org/docs/latest/rest-api.html.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from shared.nightly.errors import JobRefused, JobUnavailable
from shared.nightly.model import Job, JobPhase, JobStatus, Submission
from shared.sampling.unreadable import last_warning
from shared.values.redaction import redacted, redacting

PAGE_SIZE = 100
PAGES_MAX = 200
NOT_FOUND = 404
REFUSALS = (400, 401, 403, 404, 405, 409, 413, 422)
DETAIL_LENGTH_MAX = 500
PHASES = {
    "not_started": JobPhase.PENDING,
    "not_submitted": JobPhase.PENDING,
    "submitting": JobPhase.PENDING,
    "starting": JobPhase.PENDING,
    "recovering": JobPhase.PENDING,
    "success": JobPhase.SUCCEEDED,
    "error": JobPhase.FAILED,
    "dead": JobPhase.FAILED,
    "killed": JobPhase.FAILED,
}
"""Livy's states, and two of Fabric's; all others are of a batch that runs."""
ENDED = (JobPhase.SUCCEEDED, JobPhase.FAILED)

Batch = Mapping[str, Any]
"""As Livy writes it: id, name, state, appId, appInfo, log. Synapse and Fabric add result and
errorInfo."""


class BatchFailed(Exception):
    """The service did not do it; ``status`` is its HTTP answer, None where there was none."""

    def __init__(self, message: str, status: int | None = None) -> None:
        self.status = status
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Page:
    batches: Sequence[Batch]
    total: int | None
    """None where only an empty page tells the end."""


class BatchClient(Protocol):
    """The four requests. Each raises BatchFailed."""

    async def page(self, start: int, size: int) -> Page: ...

    async def create(self, name: str, arguments: Sequence[str]) -> Batch: ...

    async def get(self, handle: str) -> Batch: ...

    async def delete(self, handle: str) -> None: ...

    def log_url(self, batch: Batch) -> str: ...

    async def close(self) -> None: ...


@redacting
class BatchSubmitter:
    """See JobSubmitter."""

    def __init__(self, client: BatchClient) -> None:
        self._client = client

    async def submit(self, job: Job) -> Submission:
        try:
            batch = await self._find(job.token) or await self._create(job)
        except BatchFailed as error:
            refused = error.status in REFUSALS
            raise (JobRefused if refused else JobUnavailable)(str(error)) from error
        return Submission(str(batch["id"]), redacted(self._client.log_url(batch)))

    async def status(self, handle: str) -> JobStatus:
        try:
            batch = await self._client.get(handle)
        except BatchFailed as error:
            if error.status == NOT_FOUND:
                return JobStatus(JobPhase.GONE)
            raise JobUnavailable(str(error)) from error
        phase = _phase(batch)
        error_text = redacted(_error(batch)) if phase is JobPhase.FAILED else ""
        warning = redacted(last_warning(_log(batch))) if phase is JobPhase.SUCCEEDED else ""
        return JobStatus(phase, redacted(self._client.log_url(batch)), error_text, warning)

    async def cancel(self, handle: str) -> None:
        """Only what has not ended: Livy forgets what is deleted, and how it ended with it."""
        try:
            if _phase(await self._client.get(handle)) not in ENDED:
                await self._client.delete(handle)
        except BatchFailed as error:
            if error.status != NOT_FOUND:
                raise JobUnavailable(str(error)) from error

    async def close(self) -> None:
        await self._client.close()

    async def _create(self, job: Job) -> Batch:
        try:
            return await self._client.create(job.token, job.arguments)
        except BatchFailed as error:
            there = "duplicate" in str(error).lower() and await self._find(job.token)
            if not there:
                raise
            return there

    async def _find(self, name: str) -> Batch | None:
        start = 0
        for _ in range(PAGES_MAX):
            page = await self._client.page(start, PAGE_SIZE)
            same = [batch for batch in page.batches if batch.get("name") == name]
            if same:
                return same[0]
            start += len(page.batches)
            if not page.batches or (page.total is not None and start >= page.total):
                return None
        raise BatchFailed(f"more than {PAGES_MAX * PAGE_SIZE} batches to look through")


def _phase(batch: Batch) -> JobPhase:
    if batch.get("result") in ("Failed", "Cancelled"):
        return JobPhase.FAILED
    return PHASES.get(str(batch.get("state")).lower(), JobPhase.RUNNING)


def _error(batch: Batch) -> str:
    """What the service says itself, before the last lines of the log."""
    messages = [str(error.get("message")) for error in batch.get("errorInfo") or []]
    return "\n".join([f"batch {batch['id']} is {batch.get('state')}", *messages, *_log(batch)])


def _log(batch: Batch) -> list[str]:
    """Its last lines, as far as the service hands them over with the batch."""
    return [str(line) for line in batch.get("log") or []]


def app_info_url(batch: Batch) -> str:
    """Where Livy says that the driver's log is."""
    info = batch.get("appInfo") or {}
    return info.get("driverLogUrl") or info.get("sparkUiUrl") or ""
