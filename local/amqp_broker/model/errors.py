"""Why the broker refuses. The docstring is what the client is told when nothing better is known."""


class BrokerError(Exception):
    """The broker refused."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or type(self).__doc__)


class EntityNotFound(BrokerError):
    """The messaging entity could not be found."""


class EntityExists(BrokerError):
    """An entity of that name exists."""


class InvalidProperties(BrokerError, ValueError):
    """An entity cannot have these properties."""


class NotAllowed(BrokerError):
    """The entity does not do that."""


class InvalidArgument(BrokerError, ValueError):
    """A value is missing, of the wrong type or out of range."""


class NotSupported(BrokerError):
    """A client may ask for it and Azure has it."""

    def __init__(self, feature: str) -> None:
        super().__init__(f"This stand-in does not support {feature}.")


class LockLost(BrokerError):
    """The lock supplied is invalid: it expired, or the message was settled already."""


class SessionLockLost(LockLost):
    """The session lock has expired or was released."""


class SessionCannotBeLocked(BrokerError):
    """The requested session is locked by another receiver."""


class ReceiverDisconnected(BrokerError):
    """A receiver of a higher owner level holds the partition."""


class TooManyReceivers(BrokerError):
    """More receivers without an owner level than one consumer group may have."""
