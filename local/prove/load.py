"""The load of a proof: messages that come by the script, and workers that complete them.

The workers are part of this program: as many work as the plan has instances, each a start-up time
after the plan shows it. So what scales is a real plan, but nobody's app has to be deployed on it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from azure.servicebus import ServiceBusReceivedMessage, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

from local.prove.script import COMPLETED, RATE, START_UP, Script
from shared.azure.credentials import credential_for
from shared.messaging.batch_sender import BatchSender
from shared.settings.connections import ServiceBusConnection
from shared.values.measurements import Metric, MetricValue
from shared.values.messages import Message, Order
from shared.values.samples import encode_samples
from shared.wiring.app import App
from shared.wiring.batch_sender import batch_sender

TICK_SECONDS, WAIT_SECONDS = 0.5, 0.5
READING_MINUTES = 0.5
BAD_EVENT = b'{"schemaVersion": 1, "metric'
RECEIVED_MAX, LAST_SECONDS = 250, 3.0


@dataclass(slots=True)
class Load:
    """Sends what the script says, completes what the instances can, and keeps account of both."""

    app: App
    script: Script
    minute: Callable[[], float]
    sender: BatchSender
    receiver: ServiceBusReceiver
    dead: ServiceBusReceiver
    """A receiver of the dead-letter queue."""
    capacity: int = 1
    """The instances that the plan shows; the watch sets it."""
    is_stopped: bool = False
    sent: int = 0
    received: Counter[str] = field(default_factory=Counter)
    events: int = 0
    poison_events: int = 0
    _waiting: dict[int, float] = field(default_factory=dict)
    """The minute in which each message was sent, the oldest first."""
    _ready: list[float] = field(default_factory=list)
    _unreported: int = 0

    async def open_sender(self) -> None:
        """Raises an error of the client without the right to send."""
        await self.sender.link.open()

    async def send(self) -> None:
        """Send the messages that are due by now."""
        now, new = self.minute(), range(self.sent, int(self.script.messages(self.minute())))
        if new:
            messages = [Message(b"an order", message_id=f"{number}") for number in new]
            await self.sender.send(messages, Order.FREE)
            self._waiting |= dict.fromkeys(new, now)
            self.sent = new.stop

    async def work(self) -> None:
        """Complete what the instances can, until cancelled. Idle instances save nothing up."""
        credit, before = 0.0, self.minute()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = self.minute()
            able = RATE * self._working(now) * (now - before)
            credit, before = min(credit + able, max(2 * able, 1.0)), now
            while not self.is_stopped and credit >= 1:
                taken = await self._take(int(credit))
                credit = credit - taken if taken else 0.0

    def _working(self, now: float) -> int:
        del self._ready[self.capacity :]
        started = now > START_UP or bool(self._ready)
        while len(self._ready) < self.capacity:
            self._ready.append(now + START_UP if started else now)
        return 0 if self.is_stopped else sum(ready <= now for ready in self._ready)

    async def _take(self, count: int) -> int:
        messages = await self.receiver.receive_messages(count, max_wait_time=WAIT_SECONDS)
        await asyncio.gather(*map(self._complete, messages))
        return len(messages)

    async def _complete(self, message: ServiceBusReceivedMessage) -> None:
        await self.receiver.complete_message(message)
        self.received[str(message.message_id)] += 1
        self._unreported += 1

    @property
    def oldest_minutes(self) -> float:
        """For how long the oldest message waits, in minutes of the script; 0 if none does."""
        for number in [each for each in self._waiting if str(each) in self.received]:
            del self._waiting[number]
        came = next(iter(self._waiting.values()), None)
        return 0.0 if came is None else self.minute() - came

    async def left(self) -> tuple[int, int]:
        """The messages that wait, and those in the dead-letter queue."""
        return await _count(self.receiver), await _count(self.dead)

    async def report(self, resource: str) -> None:
        """Send the number of completed messages as an event, as workers of a user would."""
        count, self._unreported = self._unreported, 0
        reading = Metric(resource, COMPLETED, MetricValue(datetime.now(UTC), count))
        await self._event(encode_samples([reading]).encode())

    async def poison(self) -> None:
        """An event and a message of the app that nobody can read."""
        self.poison_events += 1
        await self._event(BAD_EVENT)
        await self.app.scaling.metrics_queue.send_texts([json.dumps({"proof": "unreadable"})])

    async def _event(self, body: bytes) -> None:
        await self.app.ingestion.send_event(body)
        self.events += 1


@asynccontextmanager
async def loading(app: App, script: Script, minute: Callable[[], float]) -> AsyncIterator[Load]:
    """A load whose connections are closed at the end."""
    connection = app.settings.service_bus("ServiceBusConnection")
    one = app.settings.single_resource()
    async with AsyncExitStack() as stack:
        sender = batch_sender(connection, one.topic, app.now, topic=True)
        stack.push_async_callback(sender.close)
        client = await stack.enter_async_context(_client(connection))
        of = (one.topic, one.subscription)
        waiting = client.get_subscription_receiver(*of)
        dead = client.get_subscription_receiver(*of, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
        for each in (waiting, dead):  # they connect when they are first used
            stack.push_async_callback(each.close)
        yield Load(app, script, minute, sender, waiting, dead)


async def _count(receiver: ServiceBusReceiver) -> int:
    """The messages that can be received. They stay locked, so none is counted twice."""
    count = 0
    while some := await receiver.receive_messages(RECEIVED_MAX, max_wait_time=LAST_SECONDS):
        count += len(some)
    return count


def _client(connection: ServiceBusConnection) -> ServiceBusClient:
    if connection.connection_string:
        return ServiceBusClient.from_connection_string(connection.connection_string)
    return ServiceBusClient(connection.namespace, credential_for(connection.namespace))
