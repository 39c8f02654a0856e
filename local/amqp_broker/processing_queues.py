"""Declares the two queues for one message per data set and period, like infra/ does in Azure."""

from __future__ import annotations

from datetime import timedelta

from local.amqp_broker.model.namespace import Namespace
from local.amqp_broker.model.properties import QueueProperties
from shared.trends.datasets.periods import DUPLICATE_WINDOW_MAX


def declare_processing_queues(
    namespace: Namespace,
    processing: str = "processing",
    working: str = "working",
    window: timedelta = DUPLICATE_WINDOW_MAX,
) -> None:
    """``processing`` detects duplicates and forwards to ``working``, which requires sessions."""
    sessions = QueueProperties(lock_duration=timedelta(minutes=5), requires_session=True)
    namespace.declare_queue(working, sessions)
    namespace.declare_queue(
        processing, QueueProperties(duplicate_window=window, forward_to=working)
    )
