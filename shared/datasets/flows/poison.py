"""The poison queue of telemetry: say what is wrong with an event, and keep it in the log whole."""

from __future__ import annotations

import logging

from shared.datasets.arrivals import decode_arrival
from shared.datasets.errors import UnreadableMessage

log = logging.getLogger(__name__)

UNEXPLAINED = (
    "the event is in order, but scheduling its processing failed each time; "
    "see the errors of the function in its log, and put the event back on its queue"
)


def run(body: str, message_id: str) -> str:
    """Answers the reason that it logs."""
    try:
        _ = decode_arrival(body).observed_at
        reason = UNEXPLAINED
    except UnreadableMessage as error:
        reason = str(error)
    extra = {"action": "poison", "message_id": message_id, "body": body}
    log.error("[poison] event %s could not be processed: %s", message_id, reason, extra=extra)
    return reason
