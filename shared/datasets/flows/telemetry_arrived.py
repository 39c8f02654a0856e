"""A blob of telemetry came: have its data set processed once its period is over."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from shared.datasets.arrivals import BlobArrived
from shared.datasets.errors import UnreadableMessage
from shared.datasets.periods import Period
from shared.datasets.processing import schedule_processing
from shared.messaging.model import Message, Order
from shared.messaging.ports import MessageSender

AHEAD_MAX = timedelta(days=1)
"""No telemetry is filed under a later time than that: a date further ahead is a mistake."""


async def run(
    arrival: BlobArrived, periods: Sequence[Period], sender: MessageSender, now: datetime
) -> list[Message]:
    """Answers what was scheduled, one message per kind of period. Raises UnreadableMessage."""
    observed_at = arrival.observed_at
    if observed_at > now + AHEAD_MAX:
        raise UnreadableMessage(
            f"event: {arrival.path} is filed under {observed_at}, which is to come"
        )
    messages = [
        schedule_processing(arrival.container, period, now, observed_at) for period in periods
    ]
    await sender.send(messages, Order.KEPT_PER_KEY)
    return messages
