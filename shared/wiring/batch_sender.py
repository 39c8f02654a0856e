"""Builds the sender of messages to Service Bus, for the app and for other programs."""

from __future__ import annotations

import asyncio
import uuid

from shared.adapters.service_bus.clients import AioClient
from shared.adapters.service_bus.link import ServiceBusLink
from shared.adapters.service_bus.loading import Clock, loader
from shared.messaging.send import BatchSender, OnPause
from shared.messaging.sending import RetryBudget
from shared.settings.connections import ServiceBusConnection


def batch_sender(
    connection: ServiceBusConnection,
    entity: str,
    now: Clock,
    *,
    topic: bool = False,
    patience: RetryBudget | None = None,
    on_pause: OnPause = lambda *_: None,
) -> BatchSender:
    """A sender to a queue or topic for use with ``await``; close it in the end."""
    link = ServiceBusLink(AioClient(connection, entity, topic=topic), loader(now))
    budget = patience or RetryBudget()
    return BatchSender(link, asyncio.sleep, lambda: uuid.uuid4().hex, budget, on_pause=on_pause)
