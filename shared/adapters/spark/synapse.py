"""A client for the Spark pools of Synapse, with azure-synapse-spark.

REST API: learn.microsoft.com/rest/api/synapse/data-plane/spark-batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from azure.core.exceptions import AzureError, HttpResponseError
from azure.synapse.spark.aio import SparkClient
from azure.synapse.spark.models import SparkBatchJob, SparkBatchJobOptions

from shared.adapters.azure.credentials import credential_for
from shared.adapters.azure.refusals import REFUSED, Access
from shared.adapters.azure.transport import transport_for
from shared.adapters.spark.batches import DETAIL_LENGTH_MAX, Batch, BatchFailed, Page, app_info_url
from shared.values.redaction import redacting
from shared.values.text import one_line

ROLE = "Synapse Compute Operator"
SIZES = {
    "driverMemory": "28g",
    "driverCores": 4,
    "executorMemory": "28g",
    "executorCores": 4,
    "numExecutors": 2,
}
"""Default sizes, because Synapse requires sizes: two executors, each on one small node."""


@redacting
class SynapseClient:
    """See BatchClient. ``request`` has the fields that all batches share.

    The client does not retry, because the nightly flow repeats failed requests.
    """

    def __init__(
        self, endpoint: str, pool: str, request: Mapping[str, Any], timeout_seconds: float = 30
    ) -> None:
        self._endpoint, self._pool = endpoint, pool
        self._request = {**SIZES, **request}
        self._timeout_seconds = timeout_seconds
        self._client = SparkClient(
            credential_for(endpoint),
            endpoint,
            pool,
            transport=transport_for(endpoint),
            retry_total=0,
        )

    async def page(self, start: int, size: int) -> Page:
        async with self._answering("list batches"):
            answer = await self._client.spark_batch.get_spark_batch_jobs(
                from_parameter=start, size=size
            )
        return Page([_batch(job) for job in answer.sessions or []], answer.total)

    async def create(self, name: str, arguments: Sequence[str]) -> Batch:
        body = {**self._request, "name": name, "args": list(arguments)}
        options = SparkBatchJobOptions.deserialize(body)  # type: ignore[no-untyped-call]
        async with self._answering("create batch"):
            return _batch(await self._client.spark_batch.create_spark_batch_job(options))

    async def get(self, handle: str) -> Batch:
        async with self._answering(f"batch {handle}"):
            batch = await self._client.spark_batch.get_spark_batch_job(int(handle), detailed=True)
        return _batch(batch)

    async def delete(self, handle: str) -> None:
        async with self._answering(f"batch {handle}"):
            await self._client.spark_batch.cancel_spark_batch_job(int(handle))

    def log_url(self, batch: Batch) -> str:
        """The URL of the driver's log, which operators with access to the workspace can open."""
        if url := app_info_url(batch):
            return url
        if not batch.get("appId"):
            return ""
        place = f"{self._endpoint}/sparkhistory/api/v1/sparkpools/{self._pool}"
        application = f"livyid/{batch['id']}/applications/{batch['appId']}"
        return f"{place}/{application}/driverlog/stdout?isDownload=true"

    async def close(self) -> None:
        await self._client.close()

    @asynccontextmanager
    async def _answering(self, call: str) -> AsyncIterator[None]:
        where = f"Synapse pool {self._pool}, {call}"
        try:
            async with asyncio.timeout(self._timeout_seconds):
                yield
        except TimeoutError as error:
            seconds = self._timeout_seconds
            raise BatchFailed(f"{where}: no answer within {seconds:g} s") from error
        except AzureError as error:
            status = error.status_code if isinstance(error, HttpResponseError) else None
            detail = one_line(error.message, DETAIL_LENGTH_MAX)
            text = f"{where}: {status or type(error).__name__} {detail}"
            if status is None:
                text = Access(where, ROLE).refusal(error) or text
            elif status in REFUSED:
                text += f" (check that the app's identity has the role {ROLE})"
            raise BatchFailed(text, status) from error


def _batch(job: SparkBatchJob) -> Batch:
    return dict(job.serialize(keep_readonly=True))  # type: ignore[no-untyped-call]
