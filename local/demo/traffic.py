"""Turns the workload into messages in a broker: they arrive as in the trace and are removed as
capacity drains them.

The messages go straight into the broker's model rather than over AMQP. To send, receive and
complete a message over AMQP, a Service Bus client and the stand-in together need half a
millisecond of processor time; the model needs a hundredth of that. A trace that is replayed at one
minute a second brings hundreds or thousands of messages a second, and the functions under test
need the machine too. Clients that count or receive over HTTP or AMQP see the same messages.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from local.amqp_broker.broker import Broker
from local.amqp_broker.model.message import Content
from local.azure_apis.plans import PlanId
from local.demo.workload import Workload

TICK_SECONDS = 0.05
WHOLE = 1e-6
"""A sum of fractions that is this close to a whole item counts as the item."""


ITEM = b"an item of the trace"


def an_item() -> Content:
    """A message for `Namespace.send`: in AMQP, one section of binary data."""
    return Content(b"\x00\x53\x75\xa0" + bytes([len(ITEM)]) + ITEM)


class Traffic:
    """Connects a workload to a topic, a subscription and a plan.

    `minute` returns the current minute of the trace. An item is sent once all of it has arrived,
    and removed once all of it is drained.
    """

    def __init__(
        self,
        workload: Workload,
        minute: Callable[[], float],
        broker: Broker,
        *,
        topic: str,
        subscription: str,
        plan: PlanId,
    ) -> None:
        self.workload = workload
        self._minute = minute
        self._broker = broker
        self._topic = topic
        self._waiting = broker.namespace.store(f"{topic}/subscriptions/{subscription}")
        self._plan = plan
        self.count: Callable[[str, int], None] = lambda _metric, _messages: None
        """Receives the messages of each step, by the metric that Azure Monitor has of them."""
        self._content = an_item()
        self._sent = 0
        self._taken = 0

    def advance(self) -> None:
        """Advance the workload to the current minute, and send and remove messages accordingly."""
        self.workload.advance_to(self._minute())
        counters = self.workload.counters
        self._send(math.floor(counters.arrivals + WHOLE) - self._sent)
        self._take(math.floor(counters.drained + WHOLE) - self._taken)

    def on_capacity_ordered(self, plan: PlanId, capacity: int) -> None:
        if plan.key == self._plan.key:
            self.advance()
            self.workload.order_capacity(capacity)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Advance regularly in the background until the end of the `async with`."""
        task = asyncio.create_task(self._run(), name="traffic")
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        while True:
            self.advance()
            await asyncio.sleep(TICK_SECONDS)

    def _send(self, count: int) -> None:
        if count > 0:
            contents = [self._content] * count
            self._broker.namespace.send(self._topic, contents, self._broker.now())
            self._sent += count
            self.count("IncomingMessages", count)

    def _take(self, count: int) -> None:
        """Remove up to `count` messages: fewer if another client has received or locked some."""
        now, taken = self._broker.now(), 0
        while taken < count and self._waiting.receive_and_delete(now) is not None:
            taken += 1
        self._taken += taken
        if taken:
            self.count("CompleteMessage", taken)
