"""Builds a sender of messages to Service Bus, for the app and for programs of users."""

from __future__ import annotations

import asyncio
import uuid

from shared.adapters.service_bus.link import Clock, ServiceBusLink
from shared.messaging.batch_sender import BatchSender, OnPause
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
) -> BatchSender:
    """A sender to a queue or topic. The caller closes it."""
    link = ServiceBusLink(connection, entity, now, topic=topic)
    return BatchSender(link, asyncio.sleep, _new_id, budget or RetryBudget(), on_pause=on_pause)


def _new_id() -> str:
    return uuid.uuid4().hex
