"""The entrance of a queue or topic: duplicates stay out, scheduled messages wait.

Sources, all below learn.microsoft.com/azure/service-bus-messaging:
- message-sequencing: the sequence number of a scheduled message is valid only until the message
  becomes active; then it is enqueued as if sent at that moment, with a new number.
- duplicate-detection: only the message id counts, and it counts when the message is sent,
  scheduled or not.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from local.amqp_broker.model.message import Content


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


@dataclass(frozen=True, slots=True)
class Offer:
    """What became of a message at the entrance. It goes on only if `goes_on`."""

    sequence_number: int
    goes_on: bool


@dataclass(frozen=True, slots=True, order=True)
class Scheduled:
    """A message that becomes active at `due`. `number` is the one that it has until then."""

    due: datetime
    number: int
    content: Content = field(compare=False)


class Intake:
    """Numbers what comes in. A duplicate gets a number too, one that names no message."""

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
        """What has become active by now, earliest first."""
        while self._due and self._due[0].due <= now:
            yield heapq.heappop(self._due)

    @property
    def scheduled(self) -> Sequence[Scheduled]:
        """What waits for its time."""
        return self._due
