"""Livy by its REST API: HDInsight, a Livy of one's own, and Fabric."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import aiohttp

from shared.adapters.spark.batches import DETAIL_LENGTH_MAX, Batch, BatchFailed, Page, app_info_url
from shared.values.redaction import redacting

Headers = Callable[[], Awaitable[Mapping[str, str]]]

REQUESTED_BY = {"X-Requested-By": "app-service-autoscaler"}
"""Livy refuses changes without it where it guards against forged requests, HDInsight always."""

ENDED_BEFORE_LIVY = ("error", "cancelled", "expired")


@redacting
class LivyClient:
    """See BatchClient. ``url`` ends before ``/batches``; ``request`` is what each batch has."""

    def __init__(
        self, url: str, request: Mapping[str, Any], headers: Headers, timeout_seconds: float = 30
    ) -> None:
        self._url = url.rstrip("/").removesuffix("/batches")
        self._request = request
        self._headers = headers
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
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
            self._session = aiohttp.ClientSession(timeout=self._timeout, trust_env=True)
        what = f"{method} {self._url}{path}"
        try:
            headers = {**REQUESTED_BY, **await self._headers()}
            url = f"{self._url}{path}"
            async with self._session.request(method, url, headers=headers, **options) as response:
                text = await response.text()
        except TimeoutError as error:
            raise BatchFailed(f"{what}: no answer in time") from error
        except aiohttp.ClientError as error:
            raise BatchFailed(f"{what}: {error}") from error
        if not response.ok:
            detail = " ".join(text.split())[:DETAIL_LENGTH_MAX]
            raise BatchFailed(f"{what}: {response.status} {detail}", response.status)
        return _object(text, what)


@redacting
class FabricClient(LivyClient):
    """Where Fabric differs, by its public description: microsoft/fabric-samples, docs-samples/
    data-engineering/Livy-API-swagger. It has no list of log lines apart from the batch."""

    async def page(self, start: int, size: int) -> Page:
        answer = await self._call("GET", "/batches", params={"$top": size, "$skip": start})
        return Page(answer.get("items") or [], None)

    async def get(self, handle: str) -> Batch:
        """A batch can end before Livy hears of it: while it waits, or its libraries are packed."""
        batch = await super().get(handle)
        before = batch.get("fabricBatchStateInfo") or {}
        if before.get("state") not in ENDED_BEFORE_LIVY:
            return batch
        message = before.get("errorMessage") or f"{before['state']} before it was started"
        return {**batch, "result": "Failed", "errorInfo": [{"message": message}]}

    def log_url(self, batch: Batch) -> str:
        return app_info_url(batch) or f"{self._url}/batches/{batch['id']}"


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        answer = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise BatchFailed(f"{what}: the answer is not JSON: {text[:80]!r}") from error
    return answer if isinstance(answer, dict) else {}
