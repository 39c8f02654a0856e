"""Notifiers: one writes to the log, one posts to a webhook.

The webhook's address is a secret, so no log line and no error message contains it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Collection
from urllib.parse import urlsplit

import aiohttp

from shared.azure.transport import retry_after_seconds
from shared.notifications.ports import Notifier, NotSent
from shared.values.concurrency import Retrying
from shared.values.news import CONTENT_TYPES, News, NewsKind, Severity, Style, shaped
from shared.values.redaction import redacting

log = logging.getLogger(__name__)

BUSY = 429
WAIT_SECONDS_MAX = 5.0
"""If a webhook asks to wait longer, the notification is left to the next run."""
LEVELS = {
    Severity.INFO: logging.INFO,
    Severity.WARNING: logging.WARNING,
    Severity.ERROR: logging.ERROR,
}


class _Unavailable(NotSent):
    """The webhook could not be reached or is busy; another attempt may succeed."""


@redacting
class LogNotifier:
    """Writes each notification to the log, then passes it to the next notifier.

    Only notifications of ``kinds``, and those that report the end of such a condition
    (``….over``), are passed on.
    """

    def __init__(
        self, then: Notifier | None = None, kinds: Collection[str] = frozenset(NewsKind)
    ) -> None:
        self._then, self._kinds = then, kinds

    async def tell(self, news: News) -> None:
        action = news.kind.replace(".", "_")
        text = f"{news.headline}. {news.text}".rstrip()
        fields = {"action": action, "subject": news.subject}
        log.log(LEVELS[news.severity], "[%s] %s", action, text, extra=fields)
        if self._then is not None and news.kind.removesuffix(".over") in self._kinds:
            await self._then.tell(news)


@redacting
class Webhook:
    """Posts notifications to one address. It does not follow redirects; a redirect counts as a
    failure.
    """

    def __init__(
        self, url: str, style: Style, retry: Retrying, timeout_seconds: float = 10
    ) -> None:
        self._url, self._retry = url, retry
        self._style: Style = style
        self._host = urlsplit(url).hostname
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)

    async def tell(self, news: News) -> None:
        """Post the notification, with retries. Raises NotSent after the last attempt."""
        body = json.dumps(shaped(self._style, news))
        await self._retry(lambda: self._post(body), lambda e: isinstance(e, _Unavailable))

    async def _post(self, body: str) -> None:
        """Post once. Errors name only the host, because the rest of the address is a secret."""
        headers = {"Content-Type": CONTENT_TYPES[self._style]}
        try:
            async with (
                aiohttp.ClientSession(timeout=self._timeout) as session,
                session.post(
                    self._url, data=body, headers=headers, allow_redirects=False
                ) as response,
            ):
                status, wait = response.status, retry_after_seconds(response) or 0
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _Unavailable(f"webhook at {self._host}: {type(error).__name__}") from None
        if status == BUSY or status >= 500:
            told = f"webhook at {self._host} answered {status}"
            if wait > WAIT_SECONDS_MAX:
                raise NotSent(f"{told} and asks to wait {wait:.0f} s")
            await asyncio.sleep(wait)
            raise _Unavailable(told)
        if status >= 300:
            raise NotSent(f"webhook at {self._host} answered {status}: check WebhookUrl")
