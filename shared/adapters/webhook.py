"""Tells people of an opening through a webhook. Its address is a secret and never in a log."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from shared.ingestion.announcement import CONTENT_TYPES, Style, announcement, headline
from shared.ingestion.breaker import Breaker
from shared.ingestion.errors import AnnouncementFailed, TransientFailure
from shared.ingestion.ports import Announcer, Retrying

log = logging.getLogger(__name__)

LinkOf = Callable[[Breaker], str]
BUSY = 429


class LogAnnouncer:
    """Tells the log, then whoever else is to be told."""

    def __init__(self, name: str, then: Announcer | None = None) -> None:
        self._name, self._then = name, then

    async def announce(self, breaker: Breaker) -> None:
        log.error("[breaker_opened] %s", headline(self._name, breaker))
        if self._then is not None:
            await self._then.announce(breaker)


class WebhookAnnouncer:
    """Posts to one address and nowhere else: an answer that leads elsewhere is a failure."""

    def __init__(
        self,
        url: str,
        style: Style,
        name: str,
        link_of: LinkOf,
        retry: Retrying,
        timeout_seconds: float = 10,
    ) -> None:
        self._url, self._style, self._name, self._link_of = url, style, name, link_of
        self._retry = retry
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)

    async def announce(self, breaker: Breaker) -> None:
        """Raises AnnouncementFailed, once all attempts have."""
        body = announcement(self._style, self._name, breaker, self._link_of(breaker))
        try:
            await self._retry(
                lambda: self._post(body), lambda error: isinstance(error, TransientFailure)
            )
        except TransientFailure as error:
            raise AnnouncementFailed(str(error)) from None

    async def _post(self, body: dict[str, Any]) -> None:
        """Errors name the host only."""
        host = urlsplit(self._url).hostname
        headers = {"Content-Type": CONTENT_TYPES[self._style]}
        try:
            async with (
                aiohttp.ClientSession(timeout=self._timeout) as session,
                session.post(
                    self._url, data=json.dumps(body), headers=headers, allow_redirects=False
                ) as answer,
            ):
                status = answer.status
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise TransientFailure(f"webhook at {host}: {type(error).__name__}") from None
        if status == BUSY or status >= 500:
            raise TransientFailure(f"webhook at {host} answered {status}")
        if status >= 300:
            raise AnnouncementFailed(f"webhook at {host} answered {status}; see BreakerWebhookUrl")
