"""Tells people of runs that fail: in the log, and through the webhook where there is one."""

from __future__ import annotations

import json
import logging
import uuid
from urllib.parse import urlsplit

import aiohttp

from shared.nightly.announcing import Style, announcement, content_type, headline
from shared.nightly.errors import NoticeUndelivered
from shared.nightly.model import Notice
from shared.nightly.ports import Notifier

log = logging.getLogger(__name__)


class LogNotifier:
    """Tells the log, then whoever else is to be told."""

    def __init__(self, then: Notifier | None = None) -> None:
        self._then = then

    async def notify(self, notice: Notice) -> None:
        level = logging.ERROR if notice.lasting else logging.WARNING
        extra = {"action": "trends_notice", "lasting": notice.lasting, "log_url": notice.log_url}
        log.log(level, "[trends_notice] %s", headline(notice), extra=extra)
        if self._then is not None:
            await self._then.notify(notice)


class WebhookNotifier:
    """Posts to one address, which is a secret, and follows no answer that leads elsewhere.

    It does not retry: the flow does.
    """

    def __init__(self, url: str, style: Style, timeout_seconds: float = 10) -> None:
        self._url, self._style = url, style
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)

    async def notify(self, notice: Notice) -> None:
        """Raises NoticeUndelivered, which names the host only."""
        host = urlsplit(self._url).hostname
        body = json.dumps(announcement(self._style, notice, uuid.uuid4().hex))
        headers = {"Content-Type": content_type(self._style)}
        try:
            async with (
                aiohttp.ClientSession(timeout=self._timeout) as session,
                session.post(
                    self._url, data=body, headers=headers, allow_redirects=False
                ) as answer,
            ):
                status = answer.status
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise NoticeUndelivered(f"webhook at {host}: {type(error).__name__}") from None
        if status >= 300:
            raise NoticeUndelivered(f"webhook at {host} answered {status}")
