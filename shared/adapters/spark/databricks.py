"""Submits jobs as one-time runs of Databricks Jobs, with databricks-sdk.

REST API: docs.databricks.com/api/azure/workspace/jobs/submit. Databricks starts only one run for an
idempotency token. A repeated request returns that run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from azure.core.exceptions import AzureError
from databricks.sdk import WorkspaceClient
from databricks.sdk.config import Config
from databricks.sdk.credentials_provider import CredentialsStrategy
from databricks.sdk.errors import BadRequest, NotFound, PermissionDenied, Unauthenticated
from databricks.sdk.errors.base import DatabricksError
from databricks.sdk.service.jobs import (
    Run,
    RunLifeCycleState,
    RunOutput,
    RunResultState,
    SubmitTask,
)

from shared.adapters.azure.credentials import credential_for
from shared.adapters.azure.refusals import Access
from shared.nightly.errors import JobRefused, JobUnavailable
from shared.nightly.model import Job, JobPhase, JobStatus, Submission
from shared.sampling.unreadable import last_warning
from shared.values.redaction import redacted, redacting
from shared.values.text import one_line

RESOURCE = "2ff814a6-3304-4ab8-85cb-cd0e6f879c1d/.default"
"""The token scope of Azure Databricks, the same in every tenant."""

A = TypeVar("A")
T = TypeVar("T")

TASK_KEY = "event_trends"
RETRY_SECONDS = 10
TEXT_LENGTH_MAX = 1000
"""The client quotes the whole answer of a proxy, after 300 characters of its own."""
REFUSALS = (BadRequest, NotFound, PermissionDenied, Unauthenticated)
PENDING = (RunLifeCycleState.PENDING, RunLifeCycleState.QUEUED, RunLifeCycleState.BLOCKED)
ENDED = (
    RunLifeCycleState.TERMINATED,
    RunLifeCycleState.SKIPPED,
    RunLifeCycleState.INTERNAL_ERROR,
)


@redacting
class DatabricksSubmitter:
    """See JobSubmitter. ``task`` is a task of ``runs/submit`` without its key and parameters.

    The client is synchronous, so its calls run in threads. Its own retries are limited to
    RETRY_SECONDS.
    """

    def __init__(self, host: str, task: Mapping[str, Any], timeout_seconds: float = 20) -> None:
        self._host, self._task = host, task
        self._timeout_seconds = timeout_seconds
        self._credential = credential_for(host)
        self._token = _Token()
        self._client: WorkspaceClient | None = None

    async def submit(self, job: Job) -> Submission:
        try:
            run_id = await self._call(self._submit_run, job)
        except (*REFUSALS, ValueError) as error:  # ValueError: the client itself rejects the task
            raise JobRefused(_message(error)) from error
        return Submission(str(run_id))

    async def status(self, handle: str) -> JobStatus:
        try:
            return await self._call(self._run_status, int(handle))
        except NotFound:
            return JobStatus(JobPhase.GONE)
        except REFUSALS as error:
            raise JobUnavailable(_message(error)) from error

    async def cancel(self, handle: str) -> None:
        try:
            await self._call(self._cancel_run, int(handle))
        except NotFound:
            return
        except REFUSALS as error:
            raise JobUnavailable(_message(error)) from error

    async def close(self) -> None: ...

    async def _call(self, work: Callable[[WorkspaceClient, A], T], argument: A) -> T:
        """Run ``work`` in a thread, with a valid token. Raises JobUnavailable or one of
        REFUSALS."""
        try:
            self._token.text = (await self._credential.get_token(RESOURCE)).token
        except AzureError as error:
            refusal = Access(f"Databricks workspace {self._host}", "of a user").refusal(error)
            raise JobUnavailable(refusal or _message(error)) from error
        try:
            return await asyncio.to_thread(lambda: work(self._opened(), argument))
        except REFUSALS:
            raise
        except (DatabricksError, TimeoutError, OSError) as error:  # OSErrors: of requests
            raise JobUnavailable(_message(error)) from error

    def _submit_run(self, client: WorkspaceClient, job: Job) -> int:
        python = {**self._task.get("spark_python_task", {}), "parameters": list(job.arguments)}
        task = {**self._task, "task_key": TASK_KEY, "spark_python_task": python}
        waiter = client.jobs.submit(
            run_name=job.token, idempotency_token=job.token, tasks=[SubmitTask.from_dict(task)]
        )
        return int(waiter.bind()["run_id"])

    def _run_status(self, client: WorkspaceClient, run_id: int) -> JobStatus:
        run = client.jobs.get_run(run_id)
        phase = _phase(run)
        error = _error(client, run) if phase is JobPhase.FAILED else ""
        warning = _warning(client, run) if phase is JobPhase.SUCCEEDED else ""
        return JobStatus(phase, run.run_page_url or "", error, warning)

    def _cancel_run(self, client: WorkspaceClient, run_id: int) -> None:
        client.jobs.cancel_run(run_id)

    def _opened(self) -> WorkspaceClient:
        if self._client is None:
            self._client = WorkspaceClient(
                config=Config(
                    host=self._host,
                    credentials_strategy=self._token,
                    http_timeout_seconds=self._timeout_seconds,
                    retry_timeout_seconds=RETRY_SECONDS,
                )
            )
        return self._client


class _Token(CredentialsStrategy):
    """The token of the app's identity. The client's own support for managed identities does not
    work in Function Apps."""

    text = ""

    def auth_type(self) -> str:
        return "managed-identity"

    def __call__(self, _config: Config) -> Callable[[], dict[str, str]]:
        return lambda: {"Authorization": f"Bearer {self.text}"}


def _phase(run: Run) -> JobPhase:
    state = run.state
    if state is None or state.life_cycle_state in PENDING:
        return JobPhase.PENDING
    if state.life_cycle_state not in ENDED:
        return JobPhase.RUNNING
    done = state.result_state is RunResultState.SUCCESS
    return JobPhase.SUCCEEDED if done else JobPhase.FAILED


def _error(client: WorkspaceClient, run: Run) -> str:
    """The error of the task, or else the message of Databricks about the run."""
    error = run.state.state_message if run.state else None
    for output in _outputs(client, run):
        error = output.error or error
    return redacted(error) if error else f"run {run.run_id} failed without an error message"


def _warning(client: WorkspaceClient, run: Run) -> str:
    logs = [line for output in _outputs(client, run) for line in (output.logs or "").splitlines()]
    return redacted(last_warning(logs))


def _outputs(client: WorkspaceClient, run: Run) -> list[RunOutput]:
    """The outputs of those tasks of the run that can be read."""
    outputs: list[RunOutput] = []
    with suppress(DatabricksError, OSError):
        for task in run.tasks or []:
            if task.run_id is not None:
                outputs.append(client.jobs.get_run_output(task.run_id))
    return outputs


def _message(error: Exception) -> str:
    return f"Databricks: {type(error).__name__}: {one_line(error, TEXT_LENGTH_MAX)}"
