"""Refusals of the broker as AMQP error conditions and management status codes.

Sources: learn.microsoft.com/azure/service-bus-messaging/service-bus-amqp-troubleshoot, and the
table from condition to exception in azure-servicebus (`_ERROR_CODE_TO_ERROR_MAPPING`).
"""

from local.amqp_broker.model import errors

INTERNAL_ERROR = "amqp:internal-error"
NOT_FOUND = "amqp:not-found"
NOT_ALLOWED = "amqp:not-allowed"
STOLEN = "amqp:link:stolen"

_BY_ERROR: tuple[tuple[type[errors.BrokerError], str, int], ...] = (
    (errors.EntityNotFound, NOT_FOUND, 404),
    (errors.EntityExists, "com.microsoft:entity-already-exists", 409),
    (errors.NotAllowed, NOT_ALLOWED, 400),
    (errors.InvalidArgument, "com.microsoft:argument-error", 400),
    (errors.InvalidProperties, "com.microsoft:argument-error", 400),
    (errors.NotSupported, "amqp:not-implemented", 501),
    (errors.SessionLockLost, "com.microsoft:session-lock-lost", 410),
    (errors.LockLost, "com.microsoft:message-lock-lost", 410),
    (errors.SessionCannotBeLocked, "com.microsoft:session-cannot-be-locked", 409),
    (errors.ReceiverDisconnected, STOLEN, 409),
    (errors.TooManyReceivers, "amqp:resource-limit-exceeded", 403),
)


def condition_of(error: errors.BrokerError) -> str:
    return _row(error)[0]


def status_of(error: errors.BrokerError) -> int:
    return _row(error)[1]


def _row(error: errors.BrokerError) -> tuple[str, int]:
    """Subclasses stand before their bases in the table."""
    for kind, condition, status in _BY_ERROR:
        if isinstance(error, kind):
            return condition, status
    return INTERNAL_ERROR, 500
