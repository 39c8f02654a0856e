"""What the client's errors say about a batch: not there, perhaps there, or never to be sent."""

from __future__ import annotations

import re

from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from shared.messaging.errors import LinkFailed
from shared.messaging.sending import Disconnected, Outcome, ServerBusy, SizeExceeded

FOR_GOOD = (
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusQuotaExceededError,
)
PAUSE = re.compile(r"wait\s+(\d+)\s+seconds?", re.IGNORECASE)
"""A throttled namespace says: "… Error code : 50009. Please wait 2 seconds and try again." """


def outcome_of(error: ServiceBusError) -> Outcome:
    """What became of a batch. Raises LinkFailed where trying again would not help."""
    said = _said(error)
    if isinstance(error, FOR_GOOD):
        raise LinkFailed(said) from error
    if isinstance(error, MessageSizeExceededError):
        return SizeExceeded()
    if isinstance(error, ServiceBusServerBusyError):
        told = PAUSE.search(said)
        return ServerBusy(float(told[1]) if told else None)
    # Of any other error nobody knows what it left behind: the batch, or a broken link.
    return Disconnected(said)


def not_opened(error: ServiceBusError) -> Exception:
    """What to raise where a link could not be opened: LinkFailed or ConnectionError."""
    said = _said(error)
    return LinkFailed(said) if isinstance(error, FOR_GOOD) else ConnectionError(said)


def _said(error: ServiceBusError) -> str:
    return f"{type(error).__name__}: {error}"
