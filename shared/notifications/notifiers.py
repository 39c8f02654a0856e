"""The notifier: the log and the webhooks. Addresses, keys and headers are secret."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from functools import partial
from urllib.parse import urlsplit

import aiohttp

from shared.azure.transport import retry_after_seconds
from shared.notifications.formats import CONTENT_TYPES, FORMATS, JSON
from shared.notifications.ports import NotSent
from shared.values.concurrency import Retrying
from shared.values.news import Address, News
from shared.values.redaction import redacting

log = logging.getLogger(__name__)

BUSY = 429
WAIT_SECONDS_MAX = 5.0
"""If a webhook asks to wait longer, the notification is left to the next run."""


class _Unavailable(NotSent):
    """The webhook could not be reached or is busy; another attempt may succeed."""


@redacting
class Webhook:
    """Posts notifications to one address. A redirect counts as a failure."""

    def __init__(
        self, address: Address, retry: Retrying, deployment: str = "", timeout_seconds: float = 10
    ) -> None:
        self.address, self._retry, self._deployment = address, retry, deployment
        self.host = urlsplit(address.url).hostname
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)

    async def tell(self, news: News) -> None:
        """Post the notification if the address takes it. Raises NotSent."""
        if self.address.takes(news):
            await self.post(news)

    async def post(self, news: News) -> None:
        """Post it under the name of the deployment. Raises NotSent after the last attempt."""
        named = news.named(self._deployment)
        for body in FORMATS[self.address.style](named, self.address.key):
            post = partial(self._post, json.dumps(body))
            await self._retry(post, lambda e: isinstance(e, _Unavailable))

    async def _post(self, body: str) -> None:
        """Post once. Errors name only the host, because the rest of the address is a secret."""
        content_type = CONTENT_TYPES.get(self.address.style, JSON)
        headers = {"Content-Type": content_type, **self.address.headers}
        try:
            async with (
                aiohttp.ClientSession(timeout=self._timeout) as session,
                session.post(
                    self.address.url, data=body, headers=headers, allow_redirects=False
                ) as response,
            ):
                status, wait = response.status, retry_after_seconds(response) or 0
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _Unavailable(f"webhook at {self.host}: {type(error).__name__}") from None
        told = f"webhook at {self.host} answered {status}"
        if status == BUSY or status >= 500:
            if wait > WAIT_SECONDS_MAX:
                raise NotSent(f"{told} and asks to wait {wait:.0f} s")
            await asyncio.sleep(wait)
            raise _Unavailable(told)
        if status >= 300:
            raise NotSent(f"{told}: check WebhookUrl or Webhooks")


@redacting
class LogNotifier:
    """Writes each notification to the log, and posts it to the webhooks. One that fails does not
    make the others receive it again."""

    def __init__(self, webhooks: Sequence[Webhook] = ()) -> None:
        self._webhooks = webhooks

    async def tell(self, news: News) -> None:
        """Raises NotSent if no webhook accepted the notification."""
        action = news.kind.replace(".", "_")
        text = f"{news.headline}. {news.text}".rstrip()
        fields = {"action": action, "subject": news.subject}
        level = logging.getLevelNamesMapping()[news.severity.upper()]
        log.log(level, "[%s] %s", action, text, extra=fields)
        takers = [each for each in self._webhooks if each.address.takes(news)]
        answers = await asyncio.gather(
            *(each.post(news) for each in takers), return_exceptions=True
        )
        failed = [error for error in answers if error is not None]
        if failed and len(failed) == len(takers):
            raise NotSent("; ".join(map(str, failed))) from failed[0]
        for error in failed:
            log.warning("[notification_failed] %s: %s", news.subject, error)
