"""Send any number of messages in close to the fewest batches, each message exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from shared.messaging.errors import LinkFailed, MessagesTooLarge, SendingStopped
from shared.messaging.model import (
    BATCH_MESSAGES_MAX,
    BatchLimits,
    Message,
    Order,
    Progress,
    Result,
    SendRequest,
)
from shared.messaging.packing import build_request, too_large
from shared.messaging.ports import BatchLink
from shared.messaging.send_state import (
    Outcome,
    RetryBudget,
    SendState,
    Unreachable,
    advance,
    begin,
    exhausted,
    opened,
)

Sleep = Callable[[float], Awaitable[None]]
OnProgress = Callable[[Progress], object]
OnPause = Callable[[str, float], object]
"""Told what failed, and for how many seconds the sender waits before it tries again."""


@dataclass(slots=True)
class BatchSender:
    """Sends over one link and remembers what the link taught it from call to call.

    ``new_id`` makes a text that no other call makes: messages without an id get one from it, for
    only a message with an id can be sent again without becoming two.
    """

    link: BatchLink
    sleep: Sleep
    new_id: Callable[[], str]
    budget: RetryBudget = field(default_factory=RetryBudget)
    batch_messages: int = BATCH_MESSAGES_MAX
    on_pause: OnPause = lambda *_: None
    limits: BatchLimits | None = None
    """What is known of the link: None before it was opened first."""

    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False, repr=False)
    """A link carries one batch at a time; calls that come meanwhile wait for their turn."""

    async def send(
        self,
        messages: Sequence[Message],
        order: Order = Order.KEPT,
        on_progress: OnProgress = lambda _: None,
    ) -> Result:
        """Returns when everything has arrived, but for what the service refused.

        Raises before anything is sent: UnsendableMessage and MessagesTooLarge, which name all of
        the messages concerned. Raises later: SendingStopped, which knows what is left.
        """
        request = build_request(self.link.prepare(_identified(messages, self.new_id)))
        async with self._turn:
            return await self._send(request, order, on_progress)

    async def close(self) -> None:
        await self.link.close()

    async def _send(self, request: SendRequest, order: Order, on_progress: OnProgress) -> Result:
        limits = await self._known_limits()
        if refused := too_large(range(len(request.encoded)), request, limits):
            raise MessagesTooLarge(request.names(refused), limits.link_bytes)
        state = begin(request, limits, order)
        while state.chunks:
            state = await self._step(state)
            on_progress(state.progress)
        return state.result

    async def _step(self, state: SendState) -> SendState:
        if exhausted(state, self.budget):
            raise SendingStopped(state.last_failure, state.result, state.unsent)
        if state.pause_seconds:
            await self._pause(state.last_failure, state.pause_seconds)
        try:
            if state.must_open:
                return opened(state, await self.link.open())
            outcome: Outcome = await self.link.send(state.batch)
        except ConnectionError as error:
            outcome = Unreachable(str(error))
        except LinkFailed as error:
            raise SendingStopped(str(error), state.result, state.unsent) from error
        state = advance(state, outcome, self.budget)
        self.limits = state.limits
        return state

    async def _known_limits(self) -> BatchLimits:
        """Opens the link where it was never open. Raises LinkFailed."""
        failures = 0
        while self.limits is None:
            try:
                self.limits = BatchLimits(await self.link.open(), self.batch_messages)
            except ConnectionError as error:
                failures += 1
                if failures >= self.budget.failures_max:
                    raise LinkFailed(f"no connection: {error}") from error
                await self._pause(str(error), self.budget.pause(failures))
        return self.limits

    async def _pause(self, why: str, seconds: float) -> None:
        self.on_pause(why, seconds)
        await self.sleep(seconds)


def _identified(messages: Sequence[Message], new_id: Callable[[], str]) -> Sequence[Message]:
    if all(message.message_id for message in messages):
        return messages
    start = new_id()
    return [
        message if message.message_id else message._replace(message_id=f"{start}-{place}")
        for place, message in enumerate(messages)
    ]
