"""Sends messages in nearly as few batches as possible. A batch whose outcome is unknown is sent
again with the same ids, until ``duplicate_window`` has passed: then the sender stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from shared.messaging.model import (
    Batch,
    BatchLimits,
    EncodedMessage,
    Progress,
    SendingStopped,
)
from shared.messaging.packing import Encoded
from shared.messaging.send_state import (
    Disconnected,
    Outcome,
    RetryBudget,
    SendState,
    advance,
    begin,
    exhausted,
    opened,
    window_passed,
)
from shared.values.messages import LinkFailed, Message, MessagingError, Order, Result


class BatchLink(Protocol):
    """A link to one queue or topic."""

    def prepare(self, messages: Sequence[Message]) -> list[EncodedMessage]:
        """Encode each message once, or at least compute its size. Raises UnsendableMessage."""
        ...

    async def open(self) -> BatchLimits:
        """Open the link (again) and return the limits that it states. Raises LinkFailed if another
        attempt cannot help, otherwise ConnectionError."""
        ...

    async def send(self, batch: Batch) -> Outcome:
        """Send a batch once. Raises LinkFailed if retrying is useless, ConnectionError without a
        link."""
        ...

    async def close(self) -> None: ...


WINDOW_PASSED = "messages may have arrived, and the queue detects duplicates only for"
Sleep = Callable[[float], Awaitable[None]]
OnProgress = Callable[[Progress], object]
OnPause = Callable[[str, float], object]
"""Called with the failure and the seconds that the sender waits."""


@dataclass(slots=True)
class BatchSender:
    """Sends over one link, and remembers its limits. ``new_id`` gives ids to messages."""

    link: BatchLink
    sleep: Sleep
    new_id: Callable[[], str]
    budget: RetryBudget = field(default_factory=RetryBudget)
    on_pause: OnPause = lambda *_: None
    duplicate_window: timedelta | None = None
    """How long the queue recognizes ids. None if it does not, or if duplicates do no harm."""
    seconds: Callable[[], float] = time.monotonic
    limits: BatchLimits | None = None

    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False, repr=False)

    async def send(
        self,
        messages: Sequence[Message],
        order: Order = Order.KEPT,
        on_progress: OnProgress = lambda _: None,
    ) -> Result:
        """Send all messages except those that the service refused, which the result names. Raises
        UnsendableMessage before anything is sent, LinkFailed if the link was never opened, and
        SendingStopped with the unsent messages."""
        encoded = self.link.prepare(_identified(messages, self.new_id))
        async with self._turn:
            return await self._send(encoded, order, on_progress)

    async def close(self) -> None:
        await self.link.close()

    async def _send(self, encoded: Encoded, order: Order, on_progress: OnProgress) -> Result:
        state = begin(encoded, self.limits, order)
        while state.planned:
            before, state = state, await self._step(state)
            if state.progress != before.progress:
                on_progress(state.progress)
        return state.result

    async def _step(self, state: SendState) -> SendState:
        if exhausted(state, self.budget):
            raise self._stopped(state, state.last_failure)
        if state.pause_seconds:
            self.on_pause(state.last_failure, state.pause_seconds)
            await self.sleep(state.pause_seconds)
        try:
            if state.must_open:
                state = opened(state, await self.link.open())
            else:
                began = self.seconds()
                if window_passed(state, self.duplicate_window, began):
                    raise self._stopped(state, f"{WINDOW_PASSED} {self.duplicate_window}")
                outcome = await self.link.send(state.batch)
                state = advance(state, outcome, self.budget, began)
        except ConnectionError as error:
            lost = Disconnected(f"no connection: {error}", was_sent=False)
            return advance(state, lost, self.budget)
        except LinkFailed as error:
            raise self._stopped(state, str(error)) from error
        self.limits = state.limits
        return state

    def _stopped(self, state: SendState, reason: str) -> MessagingError:
        """The error to raise. Over a link that was never opened, nothing was sent."""
        if self.limits is None:
            return LinkFailed(reason)
        unsent = [each.message for each in state.waiting]
        return SendingStopped(reason, state.result, unsent, state.unknown_names)


def _identified(messages: Sequence[Message], new_id: Callable[[], str]) -> Sequence[Message]:
    if all(message.message_id for message in messages):
        return messages
    start = new_id()
    return [
        message if message.message_id else message._replace(message_id=f"{start}-{place}")
        for place, message in enumerate(messages)
    ]
