"""Message ids that a queue or topic has seen within its window.

Source: learn.microsoft.com/azure/service-bus-messaging/duplicate-detection. The window counts
from the first message of an id and does not slide when a duplicate comes.
"""

from collections import deque
from datetime import datetime, timedelta


class DuplicateWindow:
    """Remembers ids for `length`; None remembers nothing."""

    def __init__(self, length: timedelta | None) -> None:
        self.length = length
        self._seen: set[str] = set()
        self._order: deque[tuple[datetime, str]] = deque()

    def is_duplicate(self, message_id: str | None, now: datetime) -> bool:
        """Whether the id came before. One that did not is remembered from now on."""
        if self.length is None or message_id is None:
            return False
        while self._order and self._order[0][0] + self.length <= now:
            self._seen.discard(self._order.popleft()[1])
        if message_id in self._seen:
            return True
        self._seen.add(message_id)
        self._order.append((now, message_id))
        return False
