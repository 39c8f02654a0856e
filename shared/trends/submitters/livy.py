"""Clients for Livy's REST API: of HDInsight and other Livy servers, of Fabric, and of Synapse."""

from __future__ import annotations

from collections.abc import Sequence

from shared.azure.refusals import Access
from shared.trends.submitters.rest import Answer, Headers, JsonApi, token_headers
from shared.values.redaction import redacting

Batch = Answer
"""A batch in Livy's JSON form: id, name, state, appId, appInfo, log. Synapse and Fabric add result
and errorInfo."""
Page = tuple[Sequence[Batch], int | None]
"""Some batches, and the number of all batches. The latter is None if the service does not return
it; in that case the list ends with an empty page.
"""

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
class LivyClient(JsonApi):
    """The requests to a service that runs batches. Each raises JobUnavailable.

    ``url`` is Livy's URL, with or without ``/batches``. ``request`` has the fields that all batches
    share. ``headers`` returns the headers for one request. ``place`` names the service in errors.
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

    async def page(self, start: int, size: int) -> Page:
        answer = await self.call("GET", "/batches", params={"from": start, "size": size})
        return answer.get("sessions") or [], answer.get("total") or 0

    async def create(self, name: str, arguments: Sequence[str]) -> Batch:
        body = {**self._request, "name": name, "args": list(arguments)}
        return await self.call("POST", "/batches", "id", json=body)

    async def get(self, handle: str) -> Batch:
        return await self.call("GET", f"/batches/{handle}", "id")

    async def delete(self, handle: str) -> None:
        await self.call("DELETE", f"/batches/{handle}")

    def log_url(self, batch: Batch) -> str:
        return app_info_url(batch) or f"{self.url}/batches/{batch['id']}/log"


@redacting
class FabricClient(LivyClient):
    """A client for Fabric, whose API differs from Livy's in some requests.

    Source: microsoft/fabric-samples, docs-samples/data-engineering/Livy-API-swagger. Fabric has no
    separate request for the lines of a log.
    """

    role = "Contributor of the workspace"

    async def page(self, start: int, size: int) -> Page:
        answer = await self.call("GET", "/batches", params={"$top": size, "$skip": start})
        return answer.get("items") or [], None

    async def get(self, handle: str) -> Batch:
        """The batch. Fabric may end the batch before Livy knows it, while the batch waits in a
        queue or while Fabric packs its libraries.
        """
        batch = await super().get(handle)
        before = batch.get("fabricBatchStateInfo") or {}
        if before.get("state") not in ENDED_BEFORE_LIVY:
            return batch
        message = (
            before.get("errorMessage") or f"Fabric: {before['state']} before the batch started"
        )
        return {**batch, "result": "Failed", "errorInfo": [{"message": message}]}

    def log_url(self, batch: Batch) -> str:
        return app_info_url(batch) or f"{self.url}/batches/{batch['id']}"


@redacting
class SynapseClient(LivyClient):
    """A client for a Spark pool of Synapse.

    REST API: learn.microsoft.com/rest/api/synapse/data-plane/spark-batch.
    """

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

    async def get(self, handle: str) -> Batch:
        return await self.call("GET", f"/batches/{handle}", "id", params={"detailed": "true"})

    def log_url(self, batch: Batch) -> str:
        """The URL of the driver's log, which operators with access to the workspace can open."""
        if (url := app_info_url(batch)) or not batch.get("appId"):
            return url
        application = f"livyid/{batch['id']}/applications/{batch['appId']}"
        return f"{self._history}/{application}/driverlog/stdout?isDownload=true"


def app_info_url(batch: Batch) -> str:
    """The URL of the driver's log, or of the Spark UI, according to Livy; empty if unknown."""
    info = batch.get("appInfo") or {}
    return info.get("driverLogUrl") or info.get("sparkUiUrl") or ""
