"""The intake of a queue or topic: drops duplicates and holds scheduled messages back.

Sources, all below learn.microsoft.com/azure/service-bus-messaging:
- message-sequencing: a scheduled message has its sequence number only until it becomes active.
  Then it is enqueued as if it were sent at that moment, with a new number.
- duplicate-detection: only the message id is compared, at the time of sending, also for
  scheduled messages.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from local.amqp_broker.model.message import Content


class DuplicateWindow:
    """Remembers message ids for `length`. With None, no message is a duplicate."""

    def __init__(self, length: timedelta | None) -> None:
        self.length = length
        self._seen: set[str] = set()
        self._order: deque[tuple[datetime, str]] = deque()

    def is_duplicate(self, message_id: str | None, now: datetime) -> bool:
        """Return whether the id was seen before. A new id is remembered."""
        if self.length is None or message_id is None:
            return False
        while self._order and self._order[0][0] + self.length <= now:
            self._seen.discard(self._order.popleft()[1])
        if message_id in self._seen:
            return True
        self._seen.add(message_id)
        self._order.append((now, message_id))
        return False


@dataclass(frozen=True, slots=True)
class Offer:
    """The result of offering a message. The message continues only if `goes_on`."""

    sequence_number: int
    goes_on: bool


@dataclass(frozen=True, slots=True, order=True)
class Scheduled:
    """A message that becomes active at `due`. Until then, `number` is its sequence number."""

    due: datetime
    number: int
    content: Content = field(compare=False)


class Intake:
    """Numbers incoming messages. A duplicate also gets a number, which no message has."""

    def __init__(self, duplicate_window: timedelta | None) -> None:
        self._duplicates = DuplicateWindow(duplicate_window)
        self._numbers = itertools.count(1)
        self._due: list[Scheduled] = []

    def next_number(self) -> int:
        return next(self._numbers)

    def offer(self, content: Content, now: datetime) -> Offer:
        number = self.next_number()
        if self._duplicates.is_duplicate(content.message_id, now):
            return Offer(number, goes_on=False)
        due = content.scheduled_for
        if due is None or due <= now:
            return Offer(number, goes_on=True)
        heapq.heappush(self._due, Scheduled(due, number, content))
        return Offer(number, goes_on=False)

    def take_due(self, now: datetime) -> Iterator[Scheduled]:
        """Yield and remove the messages that have become active by now, earliest first."""
        while self._due and self._due[0].due <= now:
            yield heapq.heappop(self._due)

    @property
    def scheduled(self) -> Sequence[Scheduled]:
        """The messages that are not active yet."""
        return self._due
