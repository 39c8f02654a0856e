"""Schedules the processing of a data set when a blob of its telemetry arrives."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from shared.datasets.arrivals import BlobArrived
from shared.datasets.errors import UnreadableMessage
from shared.datasets.periods import Period
from shared.datasets.processing import schedule_processing
from shared.messaging.errors import check_all_sent
from shared.messaging.model import Message, Order
from shared.messaging.ports import MessageSender

AHEAD_MAX = timedelta(days=1)
"""How far in the future the time of telemetry may be. A later time is treated as an error."""


async def run(
    arrival: BlobArrived, periods: Sequence[Period], sender: MessageSender, now: datetime
) -> list[Message]:
    """Schedule one message per kind of period, and return the messages. Raises
    UnreadableMessage."""
    observed_at = arrival.observed_at
    if observed_at > now + AHEAD_MAX:
        raise UnreadableMessage(
            f"event: the path {arrival.path} holds the time {observed_at}, which is in the future"
        )
    messages = [
        schedule_processing(arrival.container, period, now, observed_at) for period in periods
    ]
    check_all_sent(await sender.send(messages, Order.KEPT_PER_KEY))
    return messages
