"""Submits jobs as one-time runs of Databricks Jobs.

REST API: docs.databricks.com/api/azure/workspace/jobs/submit. A request with the same idempotency
token returns the same run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from shared.azure.refusals import Access
from shared.sampling.unreadable import last_warning
from shared.trends.nightly.model import Job, JobPhase, JobStatus, JobUnavailable, Submission
from shared.trends.submitters.rest import NOT_FOUND, Answer, JsonApi, refusals, token_headers
from shared.values.redaction import redacted, redacting

SCOPE = "2ff814a6-3304-4ab8-85cb-cd0e6f879c1d/.default"
"""The token scope of Azure Databricks, the same in every tenant."""

TASK_KEY = "event_trends"
RUNS = "/api/2.2/jobs/runs"
PENDING = ("", "PENDING", "QUEUED", "BLOCKED")
ENDED = ("TERMINATED", "SKIPPED", "INTERNAL_ERROR")
"""A run in any other state is running."""


@redacting
class DatabricksSubmitter:
    """See JobSubmitter. ``task`` is a task of ``runs/submit`` without its key and parameters."""

    def __init__(self, host: str, task: Mapping[str, Any], timeout_seconds: float = 20) -> None:
        access = Access(f"Databricks workspace {host}", "of a user")
        self._api = JsonApi(host, access, token_headers(host, SCOPE), timeout_seconds)
        self._task = task

    async def submit(self, job: Job) -> Submission:
        python = {**self._task.get("spark_python_task", {}), "parameters": list(job.arguments)}
        task = {**self._task, "task_key": TASK_KEY, "spark_python_task": python}
        body = {"run_name": job.token, "idempotency_token": job.token, "tasks": [task]}
        with refusals():
            answer = await self._api.call("POST", f"{RUNS}/submit", "run_id", json=body)
        return Submission(str(answer["run_id"]))

    async def status(self, handle: str) -> JobStatus:
        if not handle.isdigit():  # a run of another service, before TrendsSubmitter was changed
            return JobStatus(JobPhase.GONE)
        try:
            run = await self._api.call("GET", f"{RUNS}/get", "run_id", params={"run_id": handle})
        except JobUnavailable as error:
            if _is_unknown(error):
                return JobStatus(JobPhase.GONE)
            raise
        phase, url = _phase(run), redacted(run.get("run_page_url") or "")
        if phase is JobPhase.FAILED:
            return JobStatus(phase, url, redacted(_error(run, await self._outputs(run))))
        if phase is JobPhase.SUCCEEDED:
            logs = "\n".join(each.get("logs") or "" for each in await self._outputs(run))
            return JobStatus(phase, url, warning=redacted(last_warning(logs.splitlines())))
        return JobStatus(phase, url)

    async def cancel(self, handle: str) -> None:
        if not handle.isdigit():
            return
        try:
            await self._api.call("POST", f"{RUNS}/cancel", json={"run_id": int(handle)})
        except JobUnavailable as error:
            if not _is_unknown(error):
                raise

    async def close(self) -> None:
        await self._api.close()

    async def _outputs(self, run: Answer) -> Sequence[Answer]:
        """The outputs of those tasks of the run that can be read."""
        outputs: list[Answer] = []
        with suppress(JobUnavailable):
            for task in run.get("tasks") or []:
                of_task = {"run_id": str(task.get("run_id"))}
                outputs.append(await self._api.call("GET", f"{RUNS}/get-output", params=of_task))
        return outputs


def _is_unknown(error: JobUnavailable) -> bool:
    """Databricks answers 400 for a run that it does not know or has deleted."""
    unknown = any(words in str(error) for words in ("does not exist", "doesn't exist"))
    return error.status == NOT_FOUND or (error.status == 400 and unknown)


def _phase(run: Answer) -> JobPhase:
    state = run.get("state") or {}
    life_cycle = str(state.get("life_cycle_state") or "").upper()
    if life_cycle in PENDING:
        return JobPhase.PENDING
    if life_cycle not in ENDED:
        return JobPhase.RUNNING
    succeeded = str(state.get("result_state")).upper() == "SUCCESS"
    return JobPhase.SUCCEEDED if succeeded else JobPhase.FAILED


def _error(run: Answer, outputs: Sequence[Answer]) -> str:
    """The error of the last task that has one, or else the message of Databricks about the run."""
    of_run = (run.get("state") or {}).get("state_message")
    errors = [of_run, *(each.get("error") for each in outputs)]
    none = f"run {run.get('run_id')} failed without an error message"
    return next((error for error in reversed(errors) if error), none)
