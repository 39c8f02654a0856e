"""Reads JSON documents from web servers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import urljoin, urlsplit

import aiohttp

from shared.autoscaling.errors import ReadFailed
from shared.autoscaling.sources import url_problem
from shared.azure.transport import http_time
from shared.values.redaction import redacting
from shared.values.text import one_line

SECONDS_MAX = 30.0
"""The most time for an answer. The read of a source has a shorter limit of its own."""
BYTES_MAX = 1_048_576
REDIRECTS_MAX = 3
REDIRECTS = (301, 302, 303, 307, 308)
HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity"}


@redacting
class WebDocuments:
    """One session for all servers. Errors name only the server, because the rest may be secret."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def get_json(self, url: str, headers: Mapping[str, str]) -> tuple[Any, datetime | None]:
        """See Services. A redirect to another server or scheme is not followed, so that headers
        reach only the server for which they are meant."""
        if wrong := url_problem(url):
            raise ReadFailed(f"the address {wrong}")
        host = urlsplit(url).netloc.rpartition("@")[2]
        try:
            for _ in range(REDIRECTS_MAX + 1):
                location, body, time = await self._get(url, headers)
                if location is None:
                    return _parsed(body), time
                target = urljoin(url, location)
                if urlsplit(target)[:2] != urlsplit(url)[:2]:
                    raise ReadFailed("redirects to another server or scheme: declare that address")
                url = target
            raise ReadFailed(f"redirects more than {REDIRECTS_MAX} times")
        except ReadFailed as error:
            raise ReadFailed(f"{host}: {error}") from None
        except TimeoutError:
            raise ReadFailed(f"{host}: no answer within {SECONDS_MAX:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            text = f"{type(error).__name__}: {one_line(reason)}" if reason else type(error).__name__
            raise ReadFailed(f"{host}: {text}") from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _get(
        self, url: str, headers: Mapping[str, str]
    ) -> tuple[str | None, bytes, datetime | None]:
        """Where the answer redirects to, its body, and the time of the server."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=SECONDS_MAX)
            self._session = aiohttp.ClientSession(timeout=timeout, trust_env=True)
        request = self._session.get(url, headers={**HEADERS, **headers}, allow_redirects=False)
        async with request as response:
            time = http_time(response.headers.get("Date", ""))
            if response.status in REDIRECTS:
                return response.headers.get("Location", ""), b"", time
            if response.status != 200:
                reason = one_line(response.reason or "", 80)
                raise ReadFailed(f"answered {response.status} {reason}".rstrip())
            body = bytearray()
            async for chunk in response.content.iter_chunked(65_536):
                body += chunk
                if len(body) > BYTES_MAX:
                    raise ReadFailed(f"the answer has more than {BYTES_MAX:,} bytes")
            return None, bytes(body), time


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ReadFailed(f"the answer is not JSON ({type(error).__name__})") from None
