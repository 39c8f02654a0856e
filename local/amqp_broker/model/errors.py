"""Errors of the broker. A docstring is the message to the client if no other one is given."""


class BrokerError(Exception):
    """The broker refused the operation."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or type(self).__doc__)


class EntityNotFound(BrokerError):
    """The messaging entity could not be found."""


class EntityExists(BrokerError):
    """An entity with this name already exists."""


class InvalidProperties(BrokerError, ValueError):
    """An entity cannot have these properties."""


class Unauthorized(BrokerError):
    """The client has sent no valid token for this entity."""


class NotAllowed(BrokerError):
    """The entity does not allow this operation."""


class InvalidArgument(BrokerError, ValueError):
    """A value is missing, of the wrong type or out of range."""


class NotSupported(BrokerError):
    """The operation exists in Azure but not in this stand-in."""

    def __init__(self, feature: str) -> None:
        super().__init__(f"This stand-in does not support {feature}.")


class LockLost(BrokerError):
    """The lock supplied is invalid: it expired, or the message was already settled."""


class SessionLockLost(LockLost):
    """The session lock has expired or was released."""


class SessionCannotBeLocked(BrokerError):
    """The requested session is locked by another receiver."""


class ReceiverDisconnected(BrokerError):
    """A receiver with a higher owner level holds the partition."""


class TooManyReceivers(BrokerError):
    """The consumer group already has the maximum number of receivers without an owner level."""
