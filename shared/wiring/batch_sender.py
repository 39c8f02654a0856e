"""Builds a sender of messages to Service Bus, for the app and for programs of users."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta

from shared.messaging.batch_sender import BatchSender, OnPause
from shared.messaging.link import Clock, ServiceBusLink
from shared.messaging.send_state import RetryBudget
from shared.settings.connections import ServiceBusConnection


def batch_sender(
    connection: ServiceBusConnection,
    entity: str,
    now: Clock,
    *,
    topic: bool = False,
    budget: RetryBudget | None = None,
    on_pause: OnPause = lambda *_: None,
    duplicate_window: timedelta | None = None,
) -> BatchSender:
    """A sender to a queue or topic. The caller closes it."""
    link = ServiceBusLink(connection, entity, now, topic=topic)
    return BatchSender(
        link,
        asyncio.sleep,
        lambda: uuid.uuid4().hex,
        budget or RetryBudget(),
        on_pause=on_pause,
        duplicate_window=duplicate_window,
    )
