"""Submits Spark batches to Livy, Synapse or Fabric, each batch only once. None of these services
has an idempotency token. Apache Livy since version 0.6 refuses a second batch of the same name. The
other services do not, so the submitter looks for a batch of the same name before it creates one.
Livy's REST API: livy.apache.org/docs/latest/rest-api.html.
"""

from __future__ import annotations

from shared.sampling.unreadable import last_warning
from shared.trends.nightly.errors import JobUnavailable
from shared.trends.nightly.model import Job, JobPhase, JobStatus, Submission
from shared.trends.submitters.livy import Batch, LivyClient
from shared.trends.submitters.rest import NOT_FOUND, refusals
from shared.values.redaction import redacted, redacting

PAGE_SIZE = 100
PAGES_MAX = 200
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
"""The phase for each of Livy's states and for two states of Fabric. A batch in any other state is
running.
"""
ENDED = (JobPhase.SUCCEEDED, JobPhase.FAILED)


@redacting
class BatchSubmitter:
    """See JobSubmitter. The name of a batch is the job's token."""

    def __init__(self, client: LivyClient) -> None:
        self._client = client

    async def submit(self, job: Job) -> Submission:
        with refusals():
            batch = await self._find(job.token) or await self._create(job)
        return Submission(str(batch["id"]), redacted(self._client.log_url(batch)))

    async def status(self, handle: str) -> JobStatus:
        try:
            batch = await self._client.get(handle)
        except JobUnavailable as error:
            if error.status == NOT_FOUND:
                return JobStatus(JobPhase.GONE)
            raise
        phase = _phase(batch)
        error_text = redacted(_error(batch)) if phase is JobPhase.FAILED else ""
        warning = redacted(last_warning(_log(batch))) if phase is JobPhase.SUCCEEDED else ""
        return JobStatus(phase, redacted(self._client.log_url(batch)), error_text, warning)

    async def cancel(self, handle: str) -> None:
        """Delete the batch unless it has ended, because Livy deletes the result of a batch, too."""
        try:
            if _phase(await self._client.get(handle)) not in ENDED:
                await self._client.delete(handle)
        except JobUnavailable as error:
            if error.status != NOT_FOUND:
                raise

    async def close(self) -> None:
        await self._client.close()

    async def _create(self, job: Job) -> Batch:
        try:
            return await self._client.create(job.token, job.arguments)
        except JobUnavailable as error:
            existing = "duplicate" in str(error).lower() and await self._find(job.token)
            if not existing:
                raise
            return existing

    async def _find(self, name: str) -> Batch | None:
        start = 0
        for _ in range(PAGES_MAX):
            batches, total = await self._client.page(start, PAGE_SIZE)
            same = [batch for batch in batches if batch.get("name") == name]
            if same:
                return same[0]
            start += len(batches)
            if not batches or (total is not None and start >= total):
                return None
        raise JobUnavailable(
            f"the service lists more than {PAGES_MAX * PAGE_SIZE} batches, so that an earlier "
            f"submission of {name} cannot be ruled out: delete old batches"
        )


def _phase(batch: Batch) -> JobPhase:
    if str(batch.get("result")).lower() in ("failed", "cancelled"):
        return JobPhase.FAILED
    return PHASES.get(str(batch.get("state")).lower(), JobPhase.RUNNING)


def _error(batch: Batch) -> str:
    """The state of the batch, the service's own error messages, and the last lines of the log."""
    messages = [str(error.get("message")) for error in batch.get("errorInfo") or []]
    return "\n".join([f"batch {batch['id']} is {batch.get('state')}", *messages, *_log(batch)])


def _log(batch: Batch) -> list[str]:
    """The last lines of the batch's log, if the service includes them."""
    return [str(line) for line in batch.get("log") or []]
