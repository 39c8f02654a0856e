"""Batch senders to use: one for programs with an event loop, one for those without."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Self, TypeVar

from shared.adapters.service_bus.clients import AioClient, BlockingClient
from shared.adapters.service_bus.link import Client, ServiceBusLink
from shared.adapters.service_bus.loading import Clock, loader
from shared.messaging.model import Message, Order, Progress, Result
from shared.messaging.send import BatchSender, OnPause, Sleep
from shared.messaging.sending import RetryBudget
from shared.settings.connections import ServiceBusConnection

T = TypeVar("T")


def batch_sender(
    connection: ServiceBusConnection,
    entity: str,
    now: Clock,
    *,
    topic: bool = False,
    patience: RetryBudget | None = None,
    on_pause: OnPause = lambda *_: None,
) -> BatchSender:
    """A sender to a queue or topic for use with ``await``; close its ``link`` in the end."""
    sender = _sender(AioClient(connection, entity, topic=topic), now, asyncio.sleep, patience)
    sender.on_pause = on_pause
    return sender


class BlockingBatchSender:
    """The same sender for programs without an event loop."""

    def __init__(
        self,
        connection: ServiceBusConnection,
        entity: str,
        now: Clock,
        *,
        topic: bool = False,
        patience: RetryBudget | None = None,
    ) -> None:
        client = BlockingClient(connection, entity, topic=topic)
        self._sender = _sender(client, now, _sleep, patience)

    def send(
        self,
        messages: Sequence[Message],
        order: Order = Order.KEPT,
        on_progress: Callable[[Progress], object] = lambda _: None,
    ) -> Result:
        """See BatchSender.send."""
        return _run(self._sender.send(messages, order, on_progress))

    def close(self) -> None:
        _run(self._sender.link.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()


def _sender(client: Client, now: Clock, sleep: Sleep, patience: RetryBudget | None) -> BatchSender:
    link = ServiceBusLink(client, loader(now))
    return BatchSender(link, sleep, lambda: uuid.uuid4().hex, patience or RetryBudget())


async def _sleep(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 - nobody else waits in this program


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's answer, at once: nothing in it suspends, for every wait in it blocks."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        answer: T = done.value
        return answer
    raise AssertionError("a coroutine that should block suspends")
