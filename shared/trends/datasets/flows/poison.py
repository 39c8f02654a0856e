"""Handles the poison queue of telemetry events: logs each event as a whole, with the reason."""

from __future__ import annotations

import logging

from shared.trends.datasets.arrivals import decode_arrival
from shared.trends.datasets.errors import UnreadableMessage

log = logging.getLogger(__name__)

UNEXPLAINED = (
    "the event is valid, but scheduling its processing failed each time; "
    "see the errors in the function's log, and put the event back on its queue"
)


def log_poison(body: str, message_id: str) -> str:
    """Log the event, and return the reason."""
    try:
        _ = decode_arrival(body).observed_at
        reason = UNEXPLAINED
    except UnreadableMessage as error:
        reason = str(error)
    extra = {"action": "poison", "message_id": message_id, "body": body}
    log.error("[poison] event %s could not be processed: %s", message_id, reason, extra=extra)
    return reason
