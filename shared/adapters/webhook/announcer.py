"""Tells of a breaker's opening as of any other news."""

from __future__ import annotations

from collections.abc import Callable

from shared.ingestion.breaker.announcement import opening_news
from shared.ingestion.breaker.breaker import Breaker
from shared.ingestion.errors import AnnouncementFailed
from shared.notifications.ports import Notifier, NotSent
from shared.values.redaction import redacting

LinkOf = Callable[[Breaker], str]


@redacting
class NotifierAnnouncer:
    """See Announcer."""

    def __init__(self, notifier: Notifier, name: str, link_of: LinkOf) -> None:
        self._notifier, self._name, self._link_of = notifier, name, link_of

    async def announce(self, breaker: Breaker) -> None:
        try:
            await self._notifier.tell(opening_news(self._name, breaker, self._link_of(breaker)))
        except NotSent as error:
            raise AnnouncementFailed(str(error)) from None
