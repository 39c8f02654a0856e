"""Faults that a test can arm for messages that clients send.

azure-servicebus and azure-eventhub recognize the conditions used here:
learn.microsoft.com/azure/service-bus-messaging/service-bus-amqp-troubleshoot.
"""

from dataclasses import dataclass
from enum import Enum, auto

SERVER_BUSY = "com.microsoft:server-busy"
SIZE_EXCEEDED = "amqp:link:message-size-exceeded"
DETACH_FORCED = "amqp:link:detach-forced"
TIMEOUT = "com.microsoft:timeout"


class FaultKind(Enum):
    """What happens to one transfer."""

    DROP_BEFORE_ACCEPT = auto()
    """The connection breaks; the messages are not stored."""
    DROP_AFTER_ACCEPT = auto()
    """The messages are stored, but the connection breaks before the sender is told."""
    REFUSE = auto()
    """The messages are not stored, and the sender receives the reason."""
    DETACH = auto()
    """The link is closed with a reason; the messages are not stored."""
    DELAY = auto()
    """The messages are stored, and the sender is told late."""


@dataclass(frozen=True, slots=True)
class TransferFault:
    """A fault for transfers to the path `entity`, or to every path if `entity` is None."""

    kind: FaultKind
    condition: str = DETACH_FORCED
    description: str = "ordered by the test"
    delay_seconds: float = 0.0
    entity: str | None = None

    def strikes(self, entity: str) -> bool:
        return self.entity is None or self.entity.lower() == entity.lower()


def drop_before_accept(entity: str | None = None) -> TransferFault:
    return TransferFault(FaultKind.DROP_BEFORE_ACCEPT, entity=entity)


def drop_after_accept(entity: str | None = None) -> TransferFault:
    return TransferFault(FaultKind.DROP_AFTER_ACCEPT, entity=entity)


def throttle(entity: str | None = None) -> TransferFault:
    """Server busy, as Azure answers when the namespace has used up its credits."""
    text = "The request was terminated because the entity is being throttled."
    return TransferFault(FaultKind.REFUSE, SERVER_BUSY, text, entity=entity)


def size_exceeded(entity: str | None = None) -> TransferFault:
    """The message is too large, although it is within the link's advertised limit."""
    text = "The received message exceeds the limit on the link."
    return TransferFault(FaultKind.REFUSE, SIZE_EXCEEDED, text, entity=entity)


def detach(entity: str | None = None) -> TransferFault:
    return TransferFault(FaultKind.DETACH, entity=entity)


def delay(seconds: float, entity: str | None = None) -> TransferFault:
    return TransferFault(FaultKind.DELAY, delay_seconds=seconds, entity=entity)
