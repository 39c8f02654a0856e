"""Send any number of messages in close to the fewest batches, each message exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from shared.messaging.errors import LinkFailed, MessagesTooLarge, SendingStopped
from shared.messaging.model import (
    BATCH_MESSAGES_MAX,
    BatchLimits,
    Cargo,
    Message,
    Order,
    Progress,
    Result,
)
from shared.messaging.packing import cargo_of, too_large
from shared.messaging.ports import BatchLink
from shared.messaging.sending import (
    Outcome,
    RetryBudget,
    Sending,
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
    patience: RetryBudget = field(default_factory=RetryBudget)
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
        cargo = cargo_of(self.link.prepare(_identified(messages, self.new_id)))
        async with self._turn:
            return await self._send(cargo, order, on_progress)

    async def close(self) -> None:
        await self.link.close()

    async def _send(self, cargo: Cargo, order: Order, on_progress: OnProgress) -> Result:
        limits = await self._known_limits()
        if refused := too_large(range(len(cargo.parcels)), cargo, limits):
            raise MessagesTooLarge(cargo.names(refused), limits.link_bytes)
        sending = begin(cargo, limits, order)
        while sending.chunks:
            sending = await self._step(sending)
            on_progress(sending.progress)
        return sending.result

    async def _step(self, sending: Sending) -> Sending:
        if exhausted(sending, self.patience):
            raise SendingStopped(sending.last_failure, sending.result, sending.unsent)
        if sending.pause_seconds:
            await self._pause(sending.last_failure, sending.pause_seconds)
        try:
            if sending.must_open:
                return opened(sending, await self.link.open())
            outcome: Outcome = await self.link.send(sending.batch)
        except ConnectionError as error:
            outcome = Unreachable(str(error))
        except LinkFailed as error:
            raise SendingStopped(str(error), sending.result, sending.unsent) from error
        sending = advance(sending, outcome, self.patience)
        self.limits = sending.limits
        return sending

    async def _known_limits(self) -> BatchLimits:
        """Opens the link where it was never open. Raises LinkFailed."""
        failures = 0
        while self.limits is None:
            try:
                self.limits = BatchLimits(await self.link.open(), self.batch_messages)
            except ConnectionError as error:
                failures += 1
                if failures >= self.patience.failures_max:
                    raise LinkFailed(f"no connection: {error}") from error
                await self._pause(str(error), self.patience.pause(failures))
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
