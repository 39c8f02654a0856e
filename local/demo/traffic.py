"""The workload as messages in a broker: they come as the trace says and go as capacity drains.

Straight into the broker's model, not over AMQP. A client of Service Bus and the stand-in
together spend half a millisecond of processor on a message sent, received and completed, the
model a hundredth of that; a trace that is replayed at a minute a second brings hundreds or
thousands a second, and the functions under test need the machine too. Who counts or receives
over HTTP or AMQP sees these very messages.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from proton import Message

from local.amqp_broker.broker import Broker
from local.amqp_broker.messages import content_of
from local.azure_apis.plans import PlanId
from local.demo.workload import Workload

TICK_SECONDS = 0.05
WHOLE = 1e-6
"""Sums of fractions come this close to a whole item."""


class Traffic:
    """Ties a topic, a subscription and a plan to a workload, at the `minute` of its trace.

    An item is sent once all of it has arrived, and taken once all of it is drained.
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
        self._content = content_of(Message(body=b"an item of the trace", inferred=True).encode())
        self._sent = 0
        self._taken = 0

    def advance(self) -> None:
        """Let everything happen that the workload says has happened by now."""
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
        """Go on by itself until the end of the `with`."""
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

    def _take(self, count: int) -> None:
        """What somebody else holds or has received is missing: then fewer can be taken."""
        now = self._broker.now()
        for _ in range(count):
            if self._waiting.receive_and_delete(now) is None:
                return
            self._taken += 1
