"""Submits Spark batches to Livy servers such as HDInsight, to Fabric and to Synapse, each once.

None of them has an idempotency token. Apache Livy since version 0.6 refuses a second batch of the
same name. The others do not, so a batch of the same name is looked for before one is created.
Livy's REST API: livy.apache.org/docs/latest/rest-api.html.
"""

from __future__ import annotations

from collections.abc import Sequence

from shared.azure.refusals import Access
from shared.sampling.unreadable import last_warning
from shared.trends.nightly.model import Job, JobPhase, JobStatus, JobUnavailable, Submission
from shared.trends.submitters.rest import (
    NOT_FOUND,
    Answer,
    Headers,
    JsonApi,
    refusals,
    token_headers,
)
from shared.values.redaction import redacted, redacting

PAGE_SIZE = 100
PAGES_MAX = 200
PENDING = ("not_started", "not_submitted", "submitting", "starting", "recovering")
PHASES = {
    **dict.fromkeys(PENDING, JobPhase.PENDING),
    "success": JobPhase.SUCCEEDED,
    **dict.fromkeys(("error", "dead", "killed"), JobPhase.FAILED),
}
"""The phase for each state of Livy and two of Fabric. A batch in any other state is running."""
ENDED = (JobPhase.SUCCEEDED, JobPhase.FAILED)

Batch = Answer
"""A batch in Livy's JSON form: id, name, state, appId, appInfo, log. Synapse and Fabric add result
and errorInfo."""
Page = tuple[Sequence[Batch], int | None]
"""Some batches, and the number of all. If that is None, the list ends with an empty page."""

ENDED_BEFORE_LIVY = ("error", "cancelled", "expired")

SYNAPSE_SCOPE = "https://dev.azuresynapse.net/.default"
SYNAPSE_SIZES = {
    "driverMemory": "28g",
    "driverCores": 4,
    "executorMemory": "28g",
    "executorCores": 4,
    "numExecutors": 2,
}
"""Default sizes, because Synapse requires sizes: two executors, each on one small node."""


@redacting
class LivySubmitter(JsonApi):
    """See JobSubmitter. The name of a batch is the job's token.

    ``request`` has the fields that all batches share. ``place`` names the service in errors.
    """

    role = ""

    def __init__(
        self,
        url: str,
        request: Answer,
        headers: Headers,
        timeout_seconds: float = 30,
        place: str = "",
    ) -> None:
        url = url.rstrip("/").removesuffix("/batches")
        super().__init__(url, Access(place or url, self.role), headers, timeout_seconds)
        self._request = request

    async def submit(self, job: Job) -> Submission:
        with refusals():
            batch = await self._find(job.token) or await self._create(job)
        return Submission(str(batch["id"]), redacted(self._log_url(batch)))

    async def status(self, handle: str) -> JobStatus:
        try:
            batch = await self._get(handle)
        except JobUnavailable as error:
            if error.status == NOT_FOUND:
                return JobStatus(JobPhase.GONE)
            raise
        phase = _phase(batch)
        error_text = redacted(_error(batch)) if phase is JobPhase.FAILED else ""
        warning = redacted(last_warning(_log(batch))) if phase is JobPhase.SUCCEEDED else ""
        return JobStatus(phase, redacted(self._log_url(batch)), error_text, warning)

    async def cancel(self, handle: str) -> None:
        """Delete the batch unless it has ended, because Livy deletes the result of a batch, too."""
        try:
            if _phase(await self._get(handle)) not in ENDED:
                await self.call("DELETE", f"/batches/{handle}")
        except JobUnavailable as error:
            if error.status != NOT_FOUND:
                raise

    async def _create(self, job: Job) -> Batch:
        body = {**self._request, "name": job.token, "args": list(job.arguments)}
        try:
            return await self.call("POST", "/batches", "id", json=body)
        except JobUnavailable as error:
            existing = "duplicate" in str(error).lower() and await self._find(job.token)
            if not existing:
                raise
            return existing

    async def _find(self, name: str) -> Batch | None:
        start = 0
        for _ in range(PAGES_MAX):
            batches, total = await self._page(start, PAGE_SIZE)
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

    async def _page(self, start: int, size: int) -> Page:
        answer = await self.call("GET", "/batches", params={"from": start, "size": size})
        return answer.get("sessions") or [], answer.get("total") or 0

    async def _get(self, handle: str) -> Batch:
        return await self.call("GET", f"/batches/{handle}", "id")

    def _log_url(self, batch: Batch) -> str:
        return _app_info_url(batch) or f"{self.url}/batches/{batch['id']}/log"


@redacting
class FabricSubmitter(LivySubmitter):
    """Fabric. Source: microsoft/fabric-samples, docs-samples/data-engineering/Livy-API-swagger."""

    role = "Contributor of the workspace"

    async def _page(self, start: int, size: int) -> Page:
        answer = await self.call("GET", "/batches", params={"$top": size, "$skip": start})
        return answer.get("items") or [], None

    async def _get(self, handle: str) -> Batch:
        """Fabric may end a batch before Livy knows it, while it waits in a queue."""
        batch = await super()._get(handle)
        before = batch.get("fabricBatchStateInfo") or {}
        if before.get("state") not in ENDED_BEFORE_LIVY:
            return batch
        message = (
            before.get("errorMessage") or f"Fabric: {before['state']} before the batch started"
        )
        return {**batch, "result": "Failed", "errorInfo": [{"message": message}]}

    def _log_url(self, batch: Batch) -> str:
        return _app_info_url(batch) or f"{self.url}/batches/{batch['id']}"


@redacting
class SynapseSubmitter(LivySubmitter):
    """A Spark pool of Synapse. See learn.microsoft.com/rest/api/synapse/data-plane/spark-batch."""

    role = "Synapse Compute Operator"

    def __init__(
        self, endpoint: str, pool: str, request: Answer, timeout_seconds: float = 30
    ) -> None:
        super().__init__(
            f"{endpoint}/livyApi/versions/2019-11-01-preview/sparkPools/{pool}",
            {**SYNAPSE_SIZES, **request},
            token_headers(endpoint, SYNAPSE_SCOPE),
            timeout_seconds,
            f"Synapse pool {pool}",
        )
        self._history = f"{endpoint}/sparkhistory/api/v1/sparkpools/{pool}"

    async def _get(self, handle: str) -> Batch:
        return await self.call("GET", f"/batches/{handle}", "id", params={"detailed": "true"})

    def _log_url(self, batch: Batch) -> str:
        if (url := _app_info_url(batch)) or not batch.get("appId"):
            return url
        application = f"livyid/{batch['id']}/applications/{batch['appId']}"
        return f"{self._history}/{application}/driverlog/stdout?isDownload=true"


def _app_info_url(batch: Batch) -> str:
    info = batch.get("appInfo") or {}
    return info.get("driverLogUrl") or info.get("sparkUiUrl") or ""


def _phase(batch: Batch) -> JobPhase:
    if str(batch.get("result")).lower() in ("failed", "cancelled"):
        return JobPhase.FAILED
    return PHASES.get(str(batch.get("state")).lower(), JobPhase.RUNNING)


def _error(batch: Batch) -> str:
    """The state of the batch, the service's own error messages, and the last lines of the log."""
    messages = [str(error.get("message")) for error in batch.get("errorInfo") or []]
    return "\n".join([f"batch {batch['id']} is {batch.get('state')}", *messages, *_log(batch)])


def _log(batch: Batch) -> list[str]:
    return [str(line) for line in batch.get("log") or []]
