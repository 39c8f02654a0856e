"""Clients for Livy's REST API: one for HDInsight and other Livy servers, and one for Fabric."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import aiohttp
from azure.core.exceptions import AzureError

from shared.adapters.azure.refusals import Access
from shared.adapters.spark.batches import DETAIL_LENGTH_MAX, Batch, BatchFailed, Page, app_info_url
from shared.values.redaction import redacting
from shared.values.text import one_line

Headers = Callable[[], Awaitable[Mapping[str, str]]]

REQUESTED_BY = {"X-Requested-By": "app-service-autoscaler"}
"""Livy servers with protection against forged requests reject changes without this header.
HDInsight always has this protection.
"""

ENDED_BEFORE_LIVY = ("error", "cancelled", "expired")


@redacting
class LivyClient:
    """See BatchClient. ``url`` is Livy's URL, with or without ``/batches``. ``request`` has the
    fields that all batches share. ``headers`` returns the headers for one request."""

    def __init__(
        self, url: str, request: Mapping[str, Any], headers: Headers, timeout_seconds: float = 30
    ) -> None:
        self._url = url.rstrip("/").removesuffix("/batches")
        self._request = request
        self._headers = headers
        self._timeout_seconds = timeout_seconds
        self._session: aiohttp.ClientSession | None = None

    async def page(self, start: int, size: int) -> Page:
        answer = await self._call("GET", "/batches", params={"from": start, "size": size})
        return Page(answer.get("sessions") or [], answer.get("total") or 0)

    async def create(self, name: str, arguments: Sequence[str]) -> Batch:
        body = {**self._request, "name": name, "args": list(arguments)}
        return await self._call("POST", "/batches", json=body)

    async def get(self, handle: str) -> Batch:
        return await self._call("GET", f"/batches/{handle}")

    async def delete(self, handle: str) -> None:
        await self._call("DELETE", f"/batches/{handle}")

    def log_url(self, batch: Batch) -> str:
        return app_info_url(batch) or f"{self._url}/batches/{batch['id']}/log"

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._timeout_seconds)
            self._session = aiohttp.ClientSession(timeout=timeout, trust_env=True)
        url = f"{self._url}{path}"
        call = f"{method} {url}"
        try:
            headers = {**REQUESTED_BY, **await self._headers()}
            async with self._session.request(method, url, headers=headers, **options) as response:
                text = await response.text()
        except TimeoutError as error:
            seconds = self._timeout_seconds
            raise BatchFailed(f"{call}: no answer within {seconds:g} s") from error
        except AzureError as error:  # of the identity
            refusal = Access(self._url, "Contributor of the workspace").refusal(error)
            raise BatchFailed(refusal or f"{call}: {one_line(error)}") from error
        except aiohttp.ClientError as error:
            raise BatchFailed(f"{call}: {one_line(error)}") from error
        if not response.ok:
            detail = " ".join(text.split())[:DETAIL_LENGTH_MAX]
            raise BatchFailed(f"{call}: {response.status} {detail}", response.status)
        return _object(text, call)


@redacting
class FabricClient(LivyClient):
    """A client for Fabric, whose API differs from Livy's in some requests.

    Source: microsoft/fabric-samples, docs-samples/data-engineering/Livy-API-swagger. Fabric has no
    separate request for the lines of a log.
    """

    async def page(self, start: int, size: int) -> Page:
        answer = await self._call("GET", "/batches", params={"$top": size, "$skip": start})
        return Page(answer.get("items") or [], None)

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
        return app_info_url(batch) or f"{self._url}/batches/{batch['id']}"


def _object(text: str, call: str) -> dict[str, Any]:
    try:
        answer = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise BatchFailed(f"{call}: the answer is not JSON: {text[:80]!r}") from error
    return answer if isinstance(answer, dict) else {}
