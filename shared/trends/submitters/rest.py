"""A client for the JSON APIs of the Spark services: Livy, Synapse, Fabric and Databricks."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import aiohttp
from azure.core.exceptions import AzureError

from shared.azure.credentials import credential_for
from shared.azure.refusals import REFUSED, Access
from shared.azure.transport import is_loopback, retry_after_seconds
from shared.trends.nightly.model import JobRefused, JobUnavailable
from shared.values.redaction import redacting
from shared.values.text import one_line

NOT_FOUND = 404
BUSY, OVERLOADED = 429, 503
FINAL = (400, 401, 403, 404, 405, 409, 413, 422)
"""The statuses of a request that the service would refuse again."""
TRIES = 3
ANSWER_BYTES_MAX = 2**25
DETAIL_LENGTH_MAX = 500
REQUESTED_BY = {"X-Requested-By": "app-service-autoscaler"}
"""Livy servers with protection against forged requests, such as HDInsight, require this header."""

Answer = Mapping[str, Any]
Headers = Callable[[], Awaitable[Mapping[str, str]]]
"""The headers of one request."""


@contextmanager
def refusals() -> Iterator[None]:
    """Raise JobRefused for a request that the service would refuse again."""
    try:
        yield
    except JobUnavailable as error:
        if error.status in FINAL:
            raise JobRefused(str(error)) from error
        raise


def token_headers(url: str, scope: str) -> Headers:
    async def headers() -> Mapping[str, str]:
        token = await credential_for(url).get_token(scope)
        return {"Authorization": f"Bearer {token.token}"}

    return headers


def basic_headers(user: str, password: str) -> Headers:
    """Headers with basic authentication; none without a user."""

    async def headers() -> Mapping[str, str]:
        pair = base64.b64encode(f"{user}:{password}".encode()).decode()
        return {"Authorization": f"Basic {pair}"} if user else {}

    return headers


@redacting
class JsonApi:
    """The API at ``url``. ``access`` names the service and the role that the app needs there.

    A busy service is asked again when it says so (``Retry-After``), within the time limit. Other
    failures raise JobUnavailable.
    """

    def __init__(self, url: str, access: Access, headers: Headers, timeout_seconds: float) -> None:
        self.url = url.replace("https://", "http://", 1) if is_loopback(url) else url
        self._access, self._headers = access, headers
        self._timeout_seconds = timeout_seconds
        self._session: aiohttp.ClientSession | None = None

    async def call(self, method: str, path: str, needs: str = "", **options: Any) -> Answer:
        """The answer, a JSON object. It must have the field ``needs``."""
        where = f"{self._access.place}: {method} {path}"
        try:
            async with asyncio.timeout(self._timeout_seconds) as limit:
                status, text = await self._sent(method, path, limit, options)
        except TimeoutError as error:
            seconds = self._timeout_seconds
            raise JobUnavailable(f"{where}: no answer within {seconds:g} s") from error
        except AzureError as error:  # of the identity
            refusal = self._access.refusal(error)
            raise JobUnavailable(refusal or f"{where}: {one_line(error)}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise JobUnavailable(f"{where}: {one_line(error)}") from error
        if status >= 400:
            detail = " ".join(text.split())[:DETAIL_LENGTH_MAX]
            raise JobUnavailable(f"{where}: {status} {detail}{self._advice(status)}", status)
        return _object(text, where, needs)

    def _advice(self, status: int) -> str:
        if status not in REFUSED or not self._access.role:
            return ""
        return f" (check that the app's identity has the role {self._access.role})"

    async def _sent(
        self, method: str, path: str, limit: asyncio.Timeout, options: Mapping[str, Any]
    ) -> tuple[int, str]:
        if self._session is None:
            no_limit = aiohttp.ClientTimeout()
            self._session = aiohttp.ClientSession(timeout=no_limit, trust_env=True)
        left = TRIES
        while True:
            headers = {**REQUESTED_BY, **await self._headers()}
            async with self._session.request(
                method, f"{self.url}{path}", headers=headers, **options
            ) as response:
                text = await _text(response)
            left -= 1
            wait = _wait_seconds(method, response)
            if not left or wait is None or not _fits(wait, limit):
                return response.status, text
            await asyncio.sleep(wait)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def _wait_seconds(method: str, response: aiohttp.ClientResponse) -> float | None:
    """When to repeat the request; None if not. A gateway may answer 503 after the service has begun
    to work, so a POST is not repeated then.
    """
    again = response.status == BUSY or (response.status == OVERLOADED and method != "POST")
    return retry_after_seconds(response) if again else None


def _fits(wait: float, limit: asyncio.Timeout) -> bool:
    end = limit.when()
    return end is not None and asyncio.get_running_loop().time() + wait < end


async def _text(response: aiohttp.ClientResponse) -> str:
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > ANSWER_BYTES_MAX:
            raise aiohttp.ClientPayloadError(f"the answer has over {ANSWER_BYTES_MAX} bytes")
    return body.decode(errors="replace")


def _object(text: str, where: str, needs: str) -> Answer:
    try:
        answer = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise JobUnavailable(f"{where}: the answer is not JSON: {text[:80]!r}") from error
    answer = answer if isinstance(answer, dict) else {}
    if needs and needs not in answer:
        raise JobUnavailable(f"{where}: the answer has no {needs!r}: {text[:80]!r}")
    return answer
