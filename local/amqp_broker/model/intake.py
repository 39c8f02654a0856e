"""The entrance of a queue or topic: duplicates stay out, scheduled messages wait.

Sources, all below learn.microsoft.com/azure/service-bus-messaging:
- message-sequencing: the sequence number of a scheduled message is valid only until the message
  becomes active; then it is enqueued as if sent at that moment, with a new number.
- duplicate-detection: only the message id counts, and it counts when the message is sent,
  scheduled or not.
"""

import heapq
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from local.amqp_broker.model.duplicates import DuplicateWindow
from local.amqp_broker.model.errors import MessageNotFound
from local.amqp_broker.model.message import Content, Message, State


@dataclass(frozen=True, slots=True)
class Offer:
    """What became of a message at the entrance. It goes on only if `goes_on`."""

    sequence_number: int
    goes_on: bool


class Intake:
    """Numbers what comes in. A duplicate gets a number too, one that names no message."""

    def __init__(self, duplicate_window: timedelta | None) -> None:
        self._duplicates = DuplicateWindow(duplicate_window)
        self._numbers = itertools.count(1)
        self._scheduled: dict[int, Message] = {}
        self._due: list[tuple[datetime, int]] = []

    def change_window(self, duplicate_window: timedelta | None) -> None:
        self._duplicates.length = duplicate_window

    def next_number(self) -> int:
        return next(self._numbers)

    def offer(self, content: Content, now: datetime) -> Offer:
        number = self.next_number()
        if self._duplicates.is_duplicate(content.message_id, now):
            return Offer(number, goes_on=False)
        due = content.scheduled_for
        if due is None or due <= now:
            return Offer(number, goes_on=True)
        self._scheduled[number] = Message(content, number, number, now, state=State.SCHEDULED)
        heapq.heappush(self._due, (due, number))
        return Offer(number, goes_on=False)

    def cancel(self, numbers: Iterable[int]) -> None:
        """All of them, or none when one is not scheduled."""
        wanted = list(numbers)
        for number in wanted:
            if number not in self._scheduled:
                raise MessageNotFound(f"No scheduled message {number}.")
        for number in wanted:
            self._scheduled.pop(number, None)

    def take_due(self, now: datetime) -> Iterator[tuple[datetime, Message]]:
        """What has become active by now, with the moment it did, earliest first."""
        while self._due and self._due[0][0] <= now:
            due, number = heapq.heappop(self._due)
            message = self._scheduled.pop(number, None)
            if message is not None:
                yield due, message

    @property
    def scheduled(self) -> Iterable[Message]:
        return self._scheduled.values()

    @property
    def scheduled_count(self) -> int:
        return len(self._scheduled)
